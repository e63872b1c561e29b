"""The edges: parse, one service call, render. Knows status codes, JSON shapes and frames, and nothing of how things are done."""

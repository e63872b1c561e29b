"""The edges: parse, one service call, render. Knows status codes, JSON shapes and frames, not how
things are done."""

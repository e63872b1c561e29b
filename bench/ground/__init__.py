"""What several benchmarks stand on: a target, the real server, a client that makes tasks, and the
facts read from its store."""

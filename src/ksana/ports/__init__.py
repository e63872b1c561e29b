"""Contracts in prose. What a backend must guarantee; the conformance suites in tests/ hold every
backend to it."""

"""The console: how it is built, what it says, and what it does in a real browser."""

"""The moving parts: loops that sleep until something is due, and the transaction functions they
run."""

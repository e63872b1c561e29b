"""The HTTP layer that every surface is served by."""

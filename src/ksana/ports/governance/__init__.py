"""What governance needs of a store."""

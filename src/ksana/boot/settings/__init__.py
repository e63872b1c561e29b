"""Settings: the table, where values come from, what they mean."""

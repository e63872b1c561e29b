"""Tasks, runs and their history in SQL."""

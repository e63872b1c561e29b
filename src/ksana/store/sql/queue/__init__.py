"""Jobs, leases and capacity in SQL."""

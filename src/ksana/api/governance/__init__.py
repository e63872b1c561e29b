"""The endpoints of governance."""

"""Calls by libcurl."""

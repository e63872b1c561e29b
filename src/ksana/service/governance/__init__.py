"""Governance as callers use it."""

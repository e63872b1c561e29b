"""Ksana: one scheduling service for everything that must happen later, again, or elsewhere."""

__version__ = "0.1.0"

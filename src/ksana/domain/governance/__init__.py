"""Governance, pure: objects that fall due, who may be handed their jobs, and what is recorded."""

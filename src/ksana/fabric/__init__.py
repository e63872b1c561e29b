"""Coordination that may be lost: `memory` for one process, `redis` for many."""

"""Timers, tasks, runs and callbacks over HTTP."""

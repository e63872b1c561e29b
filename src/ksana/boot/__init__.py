"""Putting it together: settings, the choice of adapters, start and drain. The only place that names
a concrete adapter."""

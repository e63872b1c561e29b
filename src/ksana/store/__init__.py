"""Durable truth. Adapters of `ports.store`; only `boot` names them."""

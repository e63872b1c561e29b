"""Nodes: sockets held here, jobs in our charge, messages between instances."""

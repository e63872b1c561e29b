"""The nodes surface: sockets for nodes and sessions, and the endpoints beside them."""

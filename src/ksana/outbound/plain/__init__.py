"""HTTP/1.1 on kept sockets, for plain http."""

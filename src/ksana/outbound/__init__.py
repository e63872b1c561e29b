"""One HTTP attempt: our own client for plain http, libcurl for the rest, and the egress rules."""

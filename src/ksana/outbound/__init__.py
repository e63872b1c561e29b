"""One HTTP attempt: libcurl on the event loop, the egress rules, and plain words for what went wrong."""

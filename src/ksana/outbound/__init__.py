"""One HTTP attempt: a lane for plain http, libcurl for the rest, the egress rules, and plain words
for what went wrong."""

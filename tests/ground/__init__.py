"""The test ground: private servers, a faulty proxy, a hostile target, the real program, and the
clock. No tests in here."""

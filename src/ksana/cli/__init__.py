"""Commands. Each lives in its own module, imported only when it is asked for."""

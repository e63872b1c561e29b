"""Tasks and runs: what they are and every rule about them. Pure."""

"""Queue jobs: what they are and every rule about them. Pure."""

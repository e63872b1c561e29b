"""What a store keeps for the queue."""

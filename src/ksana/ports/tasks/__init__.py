"""What a store keeps for tasks and runs."""

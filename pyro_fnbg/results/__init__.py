"""What is made of draws: ArviZ's groups, estimates, predictions."""

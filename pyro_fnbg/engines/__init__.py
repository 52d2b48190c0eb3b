"""What runs sweeps: the model itself, or its network in torch or compiled."""

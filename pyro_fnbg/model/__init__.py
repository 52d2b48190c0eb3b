"""What is read from a Pyro model: its sites, their supports, its density, where chains start."""

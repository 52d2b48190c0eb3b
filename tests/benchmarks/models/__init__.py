"""Models as Pyro users write them: how fast each is sampled, and whether NUTS finds the same."""

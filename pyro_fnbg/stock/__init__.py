"""What exists only because of Pyro's own ``MCMC``; the one room that uses private names of it."""

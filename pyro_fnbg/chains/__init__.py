"""Chains: their set-up, their state, how many sweeps a call makes, and what is told of them."""

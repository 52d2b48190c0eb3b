"""Chains: their set-up, how many sweeps a call makes, and what is told of them."""

"""The algorithm in torch and NumPy: blocks, moves, the step, noise and batches. Never Pyro."""

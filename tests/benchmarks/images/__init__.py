"""Chains from fits beside ensembles of fits on images, at equal time."""

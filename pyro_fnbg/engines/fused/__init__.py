"""The engine for CPUs, whose sweeps are compiled by Numba."""

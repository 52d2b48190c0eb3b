"""Draws on disk while chains run, and what chains need to go on from there."""

"""Engines: ways of computing the same sweeps from the same noise."""

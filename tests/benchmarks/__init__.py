"""Benchmarks; ``make bench`` and ``make bench-full`` run them."""

"""Moves: what a block's candidate is, one file each. ``plan.Moves`` joins those of a partition."""

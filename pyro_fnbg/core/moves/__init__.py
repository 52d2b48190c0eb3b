"""Moves: what a block's candidate is, one file each; ``joint`` joins those of a partition."""

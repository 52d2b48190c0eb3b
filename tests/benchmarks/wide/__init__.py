"""How far a wide network gets from a draw of the prior, without gradients."""

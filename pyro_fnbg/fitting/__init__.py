"""Where chains may start instead of a draw from the prior: fits of the model's own density."""

"""Regression and classification sets that are in common use: our chains beside other methods."""

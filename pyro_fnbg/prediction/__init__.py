"""Predictions from posterior draws: distributions of responses, their uncertainty and scores."""

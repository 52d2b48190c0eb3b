"""Samplers at equal time: moves of ours, NUTS, and slice sampling."""

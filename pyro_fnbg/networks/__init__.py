"""Networks: how a model states that it is one, and ``BayesianMLP``."""

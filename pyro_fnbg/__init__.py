"""Minibatch blocked Gibbs sampling of Bayesian neural networks as a Pyro MCMC kernel."""

from importlib.metadata import version

from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.layout import Layout, Site
from pyro_fnbg.data.images import fashion_mnist, mnist
from pyro_fnbg.data.xor import noisy_xor, read_noisy_xor
from pyro_fnbg.drivers.multi_chain import MultiChainMCMC
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.networks.statement import Feedforward
from pyro_fnbg.prediction.likelihood import log_likelihood, sample_responses
from pyro_fnbg.prediction.outcomes import ClassPrediction, NumberPrediction
from pyro_fnbg.prediction.predictive import (
    marginal_predictive,
    predict,
    predictive_probabilities,
)
from pyro_fnbg.results.export import to_arviz

__all__ = [
    "FNBG",
    "BayesianMLP",
    "Block",
    "ClassPrediction",
    "Feedforward",
    "Layout",
    "MultiChainMCMC",
    "NumberPrediction",
    "Partition",
    "Site",
    "__version__",
    "fashion_mnist",
    "log_likelihood",
    "marginal_predictive",
    "mnist",
    "noisy_xor",
    "predict",
    "predictive_probabilities",
    "read_noisy_xor",
    "sample_responses",
    "to_arviz",
]

__version__ = version("pyro-fnbg")

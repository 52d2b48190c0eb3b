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
from pyro_fnbg.prediction.predictive import marginal_predictive, predictive_probabilities
from pyro_fnbg.results.export import to_arviz

__all__ = [
    "FNBG",
    "BayesianMLP",
    "Block",
    "Feedforward",
    "Layout",
    "MultiChainMCMC",
    "Partition",
    "Site",
    "__version__",
    "fashion_mnist",
    "marginal_predictive",
    "mnist",
    "noisy_xor",
    "predictive_probabilities",
    "read_noisy_xor",
    "to_arviz",
]

__version__ = version("pyro-fnbg")

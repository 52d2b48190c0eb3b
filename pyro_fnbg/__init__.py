"""Minibatch blocked Gibbs sampling of Bayesian neural networks as a Pyro MCMC kernel."""

from importlib.metadata import version

from pyro_fnbg.blocks import Block, Partition
from pyro_fnbg.data import noisy_xor, read_noisy_xor
from pyro_fnbg.driver import MultiChainMCMC
from pyro_fnbg.images import fashion_mnist, mnist
from pyro_fnbg.interop import to_arviz
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.layout import Layout, Site
from pyro_fnbg.models import BayesianMLP
from pyro_fnbg.predictive import marginal_predictive, predictive_probabilities
from pyro_fnbg.structure import Feedforward

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

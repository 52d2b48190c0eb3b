"""Minibatch blocked Gibbs sampling of Bayesian neural networks as a Pyro MCMC kernel."""

from importlib.metadata import version

from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.layout import Layout, Site
from pyro_fnbg.data.images import fashion_mnist, mnist
from pyro_fnbg.data.xor import noisy_xor, read_noisy_xor
from pyro_fnbg.drivers.multi_chain import MultiChainMCMC
from pyro_fnbg.drivers.store_hook import StoreHook
from pyro_fnbg.fitting.warm_start import warm_start
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.networks.canonical import canonical_samples
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.networks.priors import ScalePrior
from pyro_fnbg.networks.statement import Feedforward
from pyro_fnbg.prediction.likelihood import log_likelihood, sample_responses
from pyro_fnbg.prediction.outcomes import ClassPrediction, NumberPrediction
from pyro_fnbg.prediction.predictive import (
    marginal_predictive,
    predict,
    predictive_probabilities,
)
from pyro_fnbg.prediction.scores import ood_auroc, score_classes, score_numbers
from pyro_fnbg.prediction.selection import risk_coverage
from pyro_fnbg.prediction.temperature import fit_temperature
from pyro_fnbg.prediction.thinning import fewer_draws
from pyro_fnbg.results.export import to_arviz
from pyro_fnbg.results.function_space import diagnose_predictions
from pyro_fnbg.stores.opening import open_store
from pyro_fnbg.stores.predictions import store_predictions
from pyro_fnbg.stores.samples import open_samples
from pyro_fnbg.versions import show_versions

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
    "ScalePrior",
    "Site",
    "StoreHook",
    "__version__",
    "canonical_samples",
    "diagnose_predictions",
    "fashion_mnist",
    "fewer_draws",
    "fit_temperature",
    "log_likelihood",
    "marginal_predictive",
    "mnist",
    "noisy_xor",
    "ood_auroc",
    "open_samples",
    "open_store",
    "predict",
    "predictive_probabilities",
    "read_noisy_xor",
    "risk_coverage",
    "sample_responses",
    "score_classes",
    "score_numbers",
    "show_versions",
    "store_predictions",
    "to_arviz",
    "warm_start",
]

__version__ = version("pyro-fnbg")

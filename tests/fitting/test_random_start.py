"""Fits start at random, at a scale that networks of any width can learn from."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import BayesianMLP
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.fitting.joint import JointDensity
from pyro_fnbg.fitting.random_start import at_medians, random_start
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.planning import NO_PLATE
from pyro_fnbg.model.sites import inspect_model
from support.data import normal


def parts_of(model, *args):
    bound = BoundModel(model, args)
    with torch.no_grad():
        sites = inspect_model(bound)
    return bound, sites, JointDensity(ModelDensity(bound, sites, NO_PLATE))


def start(model, *args, chain=0, seed=1):
    bound, sites, density = parts_of(model, *args)
    position = random_start(bound, sites, density, None, None, ChainKey(seed, chain))
    return sites.layout.unflatten(position)


def test_weights_have_the_variance_that_keeps_activations_in_size():
    model = BayesianMLP([50, 400, 1], prior_scale=7.0, activation="relu", likelihood="normal")
    found = start(model, normal(10, 50), normal(10))
    for layer, inputs in (("layer1", 50), ("layer2", 400)):
        weights = found[f"{layer}.weight"]
        expected = math.sqrt(2 / inputs)
        # Five standard errors of a standard deviation
        error = 5 * expected / math.sqrt(2 * weights.numel())
        assert float(weights.std()) == pytest.approx(expected, abs=error)
        assert not found[f"{layer}.bias"].any()


def test_other_sites_are_drawn_from_their_priors():
    def model(y):
        pyro.sample("level", dist.Normal(5.0, 0.1).expand([2000]).to_event(1))
        pyro.sample("scale", dist.LogNormal(1.0, 0.1).expand([2000]).to_event(1))
        # Not a site of a layer, whatever its name: it is constrained
        pyro.sample("gate.weight", dist.Beta(50.0, 50.0).expand([20, 100]).to_event(2))
        pyro.sample("y", dist.Normal(0.0, 1.0).expand([10]).to_event(1), obs=y)

    found = start(model, normal(10))
    # Five standard errors of the means of 2,000
    assert float(found["level"].mean()) == pytest.approx(5.0, abs=0.0112)
    assert float(found["scale"].mean()) == pytest.approx(1.0, abs=0.0112)
    assert float(found["gate.weight"].std()) == pytest.approx(0.2, abs=0.02)


def test_key_decides_and_chains_differ():
    model, args = BayesianMLP([2, 3, 1], likelihood="normal"), (normal(10, 2), normal(10))
    first, again, other = (start(model, *args, chain=chain) for chain in (0, 0, 1))
    assert torch.equal(first["layer1.weight"], again["layer1.weight"])
    assert not torch.equal(first["layer1.weight"], other["layer1.weight"])


def test_start_is_drawn_until_its_density_is_finite():
    def model(y):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(level, 1.0), obs=torch.where(level > 1.0, y, torch.nan))

    assert float(start(model, torch.tensor(0.0))["level"]) > 1.0
    with pytest.raises(ValueError, match="no start of the fit with a finite log density in 100"):
        start(model, torch.tensor(torch.nan))


def test_some_coordinates_are_put_at_the_median_unless_that_is_impossible():
    def model(y):
        pyro.sample("scale", dist.LogNormal(1.0, 0.1))
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.where(level > 5.0, torch.nan, y))

    bound, sites, density = parts_of(model, torch.tensor(0.0))
    starts = torch.tensor([[-3.0, 0.5], [-3.0, 6.0]])
    is_held = torch.tensor([True, False])
    moved = at_medians(bound, sites, density, (None, None), starts, is_held, ChainKey(1, 0))
    # Five standard errors of a median of 100
    assert float(moved[0, 0]) == pytest.approx(1.0, abs=0.065)
    assert float(moved[0, 1]) == 0.5
    assert torch.equal(moved[1], starts[1])

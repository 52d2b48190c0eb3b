"""Latent sites that are sampled and never used are named, and no others."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.engines.influence import unused_sites
from pyro_fnbg.engines.structure import Structure
from pyro_fnbg.testing import start

X = torch.linspace(-1, 1, 12).reshape(6, 2)
Y = (X.sum(1) > 0).float()


def vector(name, size=2, scale=1.0):
    return pyro.sample(name, dist.Normal(0.0, scale).expand([size]).to_event(1))


def observe(logits, rows):
    pyro.sample("y", dist.Bernoulli(logits=logits), obs=Y[rows])


def one_unused(x):
    used, _ = vector("used"), vector("left")
    with pyro.plate("data", len(x)) as rows:
        observe((x[rows] @ used).sin(), rows)


def unused_with_a_scale(x):
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    vector("left", scale=scale)
    used = vector("used")
    with pyro.plate("data", len(x)) as rows:
        observe((x[rows] @ used).sin(), rows)


def scale_of_a_used_one(x):
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    used = vector("used", scale=scale)
    with pyro.plate("data", len(x)) as rows:
        observe((x[rows] @ used).sin(), rows)


def another_group(x):
    """A site without data whose prior the data inform: its draws are not those of its prior."""
    middle = pyro.sample("middle", dist.Normal(0.0, 1.0))
    pyro.sample("group without data", dist.Normal(middle, 1.0))
    with pyro.plate("data", len(x)) as rows:
        observe((middle + x[rows].sum(-1)).sin(), rows)


def in_a_factor(x):
    used, also = vector("used"), vector("also")
    pyro.factor("penalty", -also.abs().sum())
    with pyro.plate("data", len(x)) as rows:
        observe((x[rows] @ used).sin(), rows)


def without_data(x):
    vector("left")


CASES = {
    one_unused: ["left"],
    unused_with_a_scale: ["scale", "left"],
    scale_of_a_used_one: [],
    another_group: [],
    in_a_factor: [],
    without_data: [],
}


def found_in(model, batch_size, *, is_captured=True):
    def by_values(x):
        """Takes a value out of a site, so that nothing can be captured."""
        with pyro.poutine.trace() as traced:
            model(x)
        for name in traced.trace.stochastic_nodes:
            traced.trace.nodes[name]["value"].sum().item()

    made = model if is_captured else by_values
    run = start("trace", made, X, batch_size=batch_size)
    problem = run.problem
    others = None if batch_size is None else torch.arange(batch_size)
    at = torch.randn(4, problem.partition.num_params)
    structure = Structure(
        problem.bound, problem.sites, problem.plan, problem.density, at[0], others
    )
    is_known = not isinstance(structure.captured, ValueError)
    assert is_known == is_captured
    return unused_sites(structure, at)


@pytest.mark.parametrize("is_captured", [True, False], ids=["captured", "by moving"])
@pytest.mark.parametrize("model", CASES, ids=lambda model: model.__name__)
@pytest.mark.filterwarnings("ignore:nothing observed was found", "ignore:the model has no observed")
def test_unused_sites_are_named_and_no_others(model, is_captured):
    for batch_size in (None, 3) if CASES[model] else (None,):
        assert found_in(model, batch_size, is_captured=is_captured) == CASES[model]


def test_a_network_uses_all_of_its_sites():
    kernel = FNBG(BayesianMLP([2, 3, 1], likelihood="bernoulli"), engine="feedforward")
    kernel.setup(0, X, Y)
    problem = kernel.problem
    at = torch.zeros(2, problem.partition.num_params)
    where = problem.bound, problem.sites, problem.plan, problem.density
    assert unused_sites(Structure(*where, at[0], None), at) == []

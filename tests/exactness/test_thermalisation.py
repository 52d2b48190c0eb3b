"""Thermalisation: a chain that starts at the teacher, and chains that start cold, must meet.

A teacher network is drawn from the prior, and labels from its likelihood. So the teacher is one
exact draw of the posterior given these labels, and a chain from there has nothing to find: if the
cold ones, from draws of the prior, predict something else, they have not arrived. All of a run is
judged, by its default settings; of what it converges to, ``test_teachers.py`` is the judge.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
from pyro_fnbg.testing import assert_same_expectation

ROWS, COLD = 60, 3
# Wide weights and narrow biases: labels of both kinds, from which there is much to find
GIVEN = {"prior_scale": 2.0, "bias_prior_scale": 0.5, "activation": "tanh"}
NETWORKS = {
    "bernoulli": lambda: BayesianMLP([2, 3, 1], **GIVEN, likelihood="bernoulli"),
    "categorical": lambda: BayesianMLP([2, 3, 3], **GIVEN, likelihood="categorical"),
    "normal": lambda: BayesianMLP(
        [2, 2, 1],
        **GIVEN,
        likelihood="normal",
        observation_scale=dist.LogNormal(torch.zeros((), dtype=torch.float64), 0.5),
    ),
}


def draws_of(network, num_samples, **options):
    """Run a chain from a teacher and others from the prior; return what they say of the rows."""
    pyro.set_rng_seed(2)
    x = torch.randn(ROWS, 2, dtype=torch.float64)

    def from_the_prior():
        nodes = pyro.poutine.trace(network).get_trace(x).nodes
        sites = [*network.parameter_shapes, *(["obs_scale"] if "obs_scale" in nodes else [])]
        values = {name: nodes[name]["value"] for name in sites}
        return values, nodes["obs"]["value"]

    teacher, labels = from_the_prior()
    starts = [teacher, *(from_the_prior()[0] for _ in range(COLD))]
    begin = {
        # As ``initial_params`` are: on the whole real line
        name: torch.stack([one[name].log() if name == "obs_scale" else one[name] for one in starts])
        for name in teacher
    }
    kernel = FNBG(network, **options)
    mcmc = MultiChainMCMC(
        kernel, num_samples, num_chains=1 + COLD, initial_params=begin, disable_progbar=True
    )
    mcmc.run(x, labels)
    assert kernel.engine == "fused"
    assert kernel.target == "exact: the posterior of the model"
    return functions(network, mcmc.get_samples(group_by_chain=True), x, labels)


def functions(network, samples, x, labels):
    """Functions that the order and the signs of nodes do not change, each (chains, draws)."""
    scale = samples.pop("obs_scale", None)
    outputs = network.forward(samples, x)
    if network.likelihood == "categorical":
        response = dist.Categorical(logits=outputs)
        predicted = response.probs[..., 0]
    elif network.likelihood == "bernoulli":
        response = dist.Bernoulli(logits=outputs.squeeze(-1))
        predicted = response.probs
    else:
        response = dist.Normal(outputs.squeeze(-1), scale.unsqueeze(-1))
        predicted = response.mean
    found = {f"prediction {row}": predicted[..., row] for row in range(0, ROWS, 4)}
    found["log likelihood"] = response.log_prob(labels).sum(-1)
    found["sum of squares"] = sum(value.square().flatten(2).sum(-1) for value in samples.values())
    return found if scale is None else found | {"scale": scale}


def assert_that_they_meet(found):
    for name, values in found.items():
        try:
            assert_same_expectation(values[:1], values[1:])
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.slow  # seconds each
@pytest.mark.parametrize("likelihood", NETWORKS)
def test_chains_from_the_teacher_and_cold_ones_meet(likelihood):
    assert_that_they_meet(draws_of(NETWORKS[likelihood](), 20_000))


def test_chains_that_cannot_get_there_are_found_out():
    with pytest.raises(AssertionError, match=r"^prediction 0: (means|effective sample size)"):
        assert_that_they_meet(
            draws_of(NETWORKS["bernoulli"](), 400, proposal_scale=0.01, adapt=False)
        )

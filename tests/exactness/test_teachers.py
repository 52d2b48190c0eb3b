"""Simulation-based calibration: a teacher's place among the draws given what it taught is uniform.

Every chain starts cold, from a draw of the prior that knows nothing of the teacher, and is tuned as
by default: warmup and tuning are judged along with the sweeps.
"""

import dataclasses
import math
from typing import NamedTuple

import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.testing import assert_calibrated, kernel_posterior, start
from support.engines import past_the_check, put_labels
from support.faults import FAULTS, ROOT, assert_killed, run_fault
from support.slow import slowly

TURNS = torch.linspace(0.0, 6.0, 12, dtype=torch.float64)
X = 1.4 * torch.stack([(2 * TURNS).cos(), (3 * TURNS).sin()], -1)
# Of the logarithm of the responses' standard deviation, where it is sampled
LOG_SCALE = 0.5


class Case(NamedTuple):
    """A likelihood, its scale, its power in the target, and options of the kernel."""

    likelihood: str
    scale: float | dist.LogNormal = 1.0
    power: float = 1.0
    options: dict = {}


SAMPLED = dist.LogNormal(torch.zeros((), dtype=torch.float64), LOG_SCALE)


CASES = {
    "bernoulli": Case("bernoulli"),
    "categorical": Case("categorical"),
    "normal": Case("normal", SAMPLED),
    "normal, pcn": Case("normal", SAMPLED, options={"moves": "pcn"}),
    # A power of a Normal density is one of another scale, up to what must not depend on parameters
    "normal, tempered": Case("normal", 0.7, 0.5, {"likelihood_scale": 0.5}),
}


class Teachers:
    """Draw teachers from a network's prior, have them label the rows, and judge draws."""

    def __init__(self, case):
        self.likelihood, self.scale, self.power, self.options = case
        self.is_sampled = self.scale is SAMPLED
        widths = [2, 2, 3 if self.likelihood == "categorical" else 1]
        self.network = BayesianMLP(
            widths, activation="tanh", likelihood=self.likelihood, observation_scale=self.scale
        )

    def start(self, engine, warmup_steps=0):
        run = start(
            engine, self.network, X, torch.zeros(12), warmup_steps=warmup_steps, **self.options
        )
        self.layout = run.problem.sites.layout
        return run

    def sample_prior(self, draws, rng):
        theta = torch.randn(draws, self.layout.num_params, generator=rng, dtype=torch.float64)
        if self.is_sampled:
            theta[:, -1] *= LOG_SCALE
        return theta

    def outputs(self, theta):
        return self.network.forward(self.layout.unflatten(theta), X)

    def scales(self, theta):
        return theta[..., -1:].exp() if self.is_sampled else self.scale

    def simulate(self, theta, rng):
        """Draw responses; of a tempered likelihood, a Normal density to a power, those of it."""
        outputs = self.outputs(theta)
        if self.likelihood == "categorical":
            probs = outputs.softmax(-1)
            return torch.multinomial(probs.flatten(0, -2), 1, generator=rng).view(
                outputs.shape[:-1]
            )
        outputs = outputs.squeeze(-1)
        if self.likelihood == "bernoulli":
            return torch.bernoulli(outputs.sigmoid(), generator=rng)
        noise = torch.randn(outputs.shape, generator=rng, dtype=torch.float64)
        return outputs + self.scales(theta) / math.sqrt(self.power) * noise

    def statistics(self, theta, y):
        """Functions that the order and the signs of nodes do not change."""
        outputs = self.outputs(theta)
        at = outputs[..., 0]
        found = {"at row 0": at[..., 0], "difference": at[..., 1] - at[..., 2]}
        if self.likelihood == "categorical":
            response = dist.Categorical(logits=outputs)
        elif self.likelihood == "bernoulli":
            response = dist.Bernoulli(logits=at)
        else:
            response = dist.Normal(at, self.scales(theta))
        found["log likelihood"] = response.log_prob(y).sum(-1)
        if self.is_sampled:
            found["log scale"] = theta[..., -1]
            theta = theta[..., :-1]
        return found | {"sum of squares": theta.square().sum(-1)}


def posterior_of(teachers, engine, warmup_steps, num_draws):
    """Return chains of an engine that no check at set-up has seen."""
    run = past_the_check(teachers.start("trace", warmup_steps), engine)
    problem = run.problem
    rng = torch.Generator().manual_seed(7)

    def posterior(labels, number):
        put_labels(run, labels)
        cold = teachers.sample_prior(1, rng)[0]
        chain = dataclasses.replace(run.chain, key=ChainKey(5, number), position=cold)
        (chain,), _ = problem.engine.sweeps(problem, [chain], warmup_steps)
        _, record = problem.engine.sweeps(problem, [chain], num_draws)
        return record.positions[0]

    return posterior


def assert_teachers_fit_in(teachers, posterior, num_teachers, **options):
    given = teachers.sample_prior, teachers.simulate, teachers.statistics
    return assert_calibrated(posterior, *given, num_teachers, seed=4, **options)


@pytest.mark.slow  # seconds each
@pytest.mark.parametrize("case", CASES)
def test_a_teacher_is_like_any_draw(case):
    teachers = Teachers(CASES[case])
    assert_teachers_fit_in(teachers, posterior_of(teachers, "fused", 500, 3500), 100)


@pytest.mark.slow  # sets a kernel up for every teacher
def test_a_teacher_is_like_any_draw_of_a_kernel():
    """What goes wrong around the sweeps, which the test above makes by itself."""
    teachers = Teachers(CASES["normal"])
    layout = teachers.start("trace").problem.sites.layout
    posterior = kernel_posterior(
        lambda: FNBG(teachers.network), lambda y: (X, y), layout, 2000, warmup_steps=300
    )
    assert_teachers_fit_in(teachers, posterior, 25, min_ess=50)


@pytest.mark.slow  # seconds each
@pytest.mark.parametrize("case", ["bernoulli", "normal"])
def test_a_batch_that_stands_in_for_the_data_is_wider_than_what_the_teacher_is_a_draw_of(case):
    """Its target is prior x likelihood^(n / N): a wider one, of which the teacher is no draw."""
    given = CASES[case]
    teachers = Teachers(given._replace(options={"batch_size": 4}))
    posterior = posterior_of(teachers, "fused", 500, 2500)
    with pytest.raises(AssertionError, match="spread too far|^log likelihood: draws are too small"):
        assert_teachers_fit_in(teachers, posterior, 100)


# --- Power ---------------------------------------------------------------------------------------

# Mistakes in the fused engine, by the case that shows them
GROSS = {
    "ratio-sign": "normal",
    "no-revert": "normal",
    "stale-proposal": "normal",
    "always-accept": "normal",
    "prior-dropped": "normal",
    "likelihood-factor-dropped": "normal, tempered",
}


@pytest.mark.parametrize("case", ["normal", slowly("normal, tempered")])
def test_few_teachers(case):
    """As few as gross mistakes need: with one in it, the engine runs uncompiled."""
    teachers = Teachers(CASES[case])
    assert_teachers_fit_in(teachers, posterior_of(teachers, "fused", 100, 300), 16, min_ess=10)


@pytest.mark.slow  # each takes a process of its own
@pytest.mark.parametrize("mistake", GROSS)
def test_few_teachers_notice_gross_mistakes(mistake):
    (fault,) = [fault for fault in FAULTS if fault.name == f"{mistake}-fused"]
    named = f"tests/exactness/test_teachers.py::test_few_teachers[{GROSS[mistake]}]"
    fault = dataclasses.replace(fault, killed_by=named)
    assert_killed(fault, run_fault(fault, ROOT, timeout=600.0))

"""The model's own judgement finds engines that are wrong."""

import pytest
import torch

from pyro_fnbg import BayesianMLP
from pyro_fnbg.engines.trace import TraceEngine
from pyro_fnbg.testing import assert_as_model, make_inputs, run_on, start, with_engine

CHANGES = {
    "the log ratio is not the model's": lambda r: r._replace(log_ratios=r.log_ratios + 1e-6),
    "the decision is not the reported ratio's": lambda r: r._replace(
        accepted=torch.cat([r.accepted[..., :-1], ~r.accepted[..., -1:]], -1)
    ),
    "the position is another": lambda r: r._replace(positions=r.positions + 1e-9),
    "Scalars are not close": lambda r: r._replace(log_densities=r.log_densities + 1e-6),
}


class Wrong(TraceEngine):
    """The reference engine, whose record is changed."""

    change = staticmethod(lambda record: record)

    def run(self, inputs):
        return self.change(super().run(inputs))


@pytest.mark.parametrize("complaint", [None, *CHANGES])
def test_a_wrong_engine_is_found(complaint):
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(-1)
    run = start("trace", BayesianMLP([1, 2, 1], likelihood="bernoulli"), x, torch.arange(6) % 2)
    problem = run.problem
    engine = Wrong(problem.density, problem.partition, problem.moves)
    engine.change = CHANGES.get(complaint, lambda record: record)
    run = with_engine(run, engine)
    inputs = make_inputs(run, chains=2, sweeps=3, scale=0.5)
    record = run_on(run, inputs)
    if complaint is None:
        assert_as_model(run, inputs, record)
    else:
        with pytest.raises(AssertionError, match=complaint):
            assert_as_model(run, inputs, record)


def test_inputs_by_which_moves_learn_are_refused():
    model = BayesianMLP([1, 1], likelihood="bernoulli")
    run = start("trace", model, torch.ones(2, 1), torch.ones(2), warmup_steps=5)
    inputs = make_inputs(run)
    with pytest.raises(ValueError, match="inputs must have no gains"):
        assert_as_model(run, inputs, run_on(run, inputs))

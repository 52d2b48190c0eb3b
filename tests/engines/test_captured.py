"""A model's computation is written down once, and cut by sites: the same decisions, less work."""

import re

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG
from pyro_fnbg.engines.captured import engine as module
from pyro_fnbg.engines.captured.parts import Parts
from pyro_fnbg.engines.choice import OF_CAPTURED
from pyro_fnbg.graphs.capture import NotCaptured, capture
from pyro_fnbg.testing import assert_as_model, make_inputs, run_on, start
from support.captured_models import (
    IMPOSSIBLE,
    MODELS,
    Lifted,
    X,
    Y,
    by_hand,
    horseshoe,
    inputs_some_impossible,
    normal,
)
from support.engines import past_the_check
from support.slow import slowly

TENSOR_TO_NUMPY = torch.Tensor.numpy
# An operation a row takes long
NAMES = [slowly(name) if name == "recurrent" else name for name in MODELS]


@pytest.mark.parametrize("num_chains", [1, 4])
@pytest.mark.parametrize("model", IMPOSSIBLE, ids=lambda model: model.__name__)
def test_impossible_candidates_are_rejected_chain_by_chain(model, num_chains):
    run = start("trace", model, X, Y)
    inputs = inputs_some_impossible(run, num_chains)
    found, expected = run_on(past_the_check(run, "captured"), inputs), run_on(run, inputs)
    is_impossible = expected.log_ratios.isnan()
    assert 5 < int(is_impossible.sum()) < is_impossible.numel() / 2
    assert torch.equal(found.log_ratios.isnan(), is_impossible)
    assert torch.equal(found.accepted, expected.accepted)
    torch.testing.assert_close(found.positions, expected.positions, rtol=0, atol=1e-12)


def test_chains_step_together_where_torch_can_and_what_is_kept_is_small(monkeypatch):
    run = past_the_check(start("trace", by_hand, X, Y, batch_size=7), "captured")
    engine, inputs = run.problem.engine, make_inputs(run, chains=3, sweeps=2, scale=0.3)
    run_on(run, inputs)
    assert engine._together[3] is not None
    monkeypatch.setattr(module, "SMALL", 10)
    run = past_the_check(run, "captured")
    run_on(run, inputs)
    assert run.problem.engine._together[3] is None


class Watched(module.CapturedEngine):
    """Note on how many threads parts are computed."""

    def _prepare(self, function):
        def call(*values):
            self.threads.append(torch.get_num_threads())
            return function(*values)

        return call

    threads: list[int]


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize(("small", "expected"), [(40_000, 1), (10, 2)])
def test_small_computations_are_made_on_one_thread(small, expected, chains, monkeypatch):
    """Threads wait for each other longer than small operations take."""
    monkeypatch.setattr(module, "SMALL", small)
    monkeypatch.setitem(OF_CAPTURED, "captured", Watched)
    monkeypatch.setattr(Watched, "threads", [], raising=False)
    kept = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = past_the_check(start("trace", by_hand, X, Y), "captured")
        run_on(run, make_inputs(run, chains=chains, sweeps=2, scale=0.3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(kept)
    # The first evaluation says how large the computation is
    assert set(Watched.threads[1:]) == {expected}


@pytest.mark.parametrize(
    ("batch_size", "together"),
    [(7, True), slowly(None, True), slowly(7, False), slowly(None, False)],
)
@pytest.mark.parametrize("name", NAMES)
def test_sweeps_are_those_of_trace(name, batch_size, together, monkeypatch):
    if not together:
        monkeypatch.setattr(module, "SMALL", 0)
    model = MODELS[name]()
    run = start("trace", model, X, Y, batch_size=batch_size)
    inputs = make_inputs(run, chains=2, sweeps=12, scale=0.3)
    found, expected = run_on(past_the_check(run, "captured"), inputs), run_on(run, inputs)
    assert torch.equal(found.accepted, expected.accepted)
    assert 0 < int(found.accepted.sum()) < found.accepted.numel()
    assert torch.equal(found.positions, expected.positions)
    for one, other in ((found.log_ratios, expected.log_ratios), (*found[3:4], *expected[3:4])):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_rejected_blocks_leave_no_trace_of_what_is_kept(name):
    run = past_the_check(start("trace", MODELS[name](), X, Y, batch_size=7), "captured")
    inputs = make_inputs(run, chains=1, sweeps=25, scale=0.5)
    record = run_on(run, inputs)
    assert_as_model(run, inputs, record, 1e-9)
    assert 10 <= int(record.accepted.sum()) <= record.accepted.numel() - 10


@pytest.mark.parametrize("name", NAMES)
def test_the_log_density_changes_by_the_ratios_of_what_is_accepted(name):
    """The model says where it starts; what is kept leads to the same sums as whole evaluations."""
    run = past_the_check(start("trace", MODELS[name](), X, Y), "captured")
    inputs = make_inputs(run, chains=1, sweeps=25, scale=0.5)
    record = run_on(run, inputs).of_chain(0)
    changes = (record.log_ratios * record.accepted).sum(-1)
    assert changes.count_nonzero() >= 10
    expected = run.problem.density.on(None)(inputs.positions[0]).log_density + changes.cumsum(0)
    torch.testing.assert_close(record.log_densities, expected, rtol=0, atol=1e-9)


def test_it_is_the_choice_for_what_is_no_network():
    kernel = FNBG(horseshoe)
    kernel.setup(0, X, Y)
    assert kernel.engine == "captured"
    assert "compared with the model" in kernel.problem.engine_reason


def test_a_block_evaluates_what_follows_from_its_sites_alone():
    run = start("captured", Lifted(), X, Y)
    captured = capture(run.problem.density, run.chain.position, None)
    layout = run.problem.sites.layout
    numbers = {site.name: number for number, site in enumerate(layout.sites)}
    groups = {name: frozenset([number]) for name, number in numbers.items()}
    parts = Parts(captured, len(layout.sites), groups.values(), lambda function: function)
    terms = {name: len(parts.of_group[group].terms) for name, group in groups.items()}
    # A prior and the data; a scale has its Jacobian beside them
    assert terms == {
        "scale": 3,
        "below.weight": 2,
        "below.bias": 2,
        "above.weight": 2,
        "above.bias": 2,
    }
    assert len(parts.whole.terms) == len(captured.terms) == 7


def test_operations_are_called_by_the_functions_that_torch_has_for_them():
    run = start("captured", horseshoe, X, Y)
    block = run.problem.engine._alone._blocks[0]
    targets = {str(node.target) for node in block.part.function.__self__.graph.nodes}
    assert not any(target.startswith("aten") for target in targets)
    assert "view" in targets


def branches(x, y=None):
    weight = pyro.sample("weight", normal())
    mean = x[:, 0] * (weight if weight > 0 else 2 * weight)
    pyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


def by_numpy(x, y=None):
    weight = pyro.sample("weight", normal())
    mean = x[:, 0] * float(np.exp(weight.detach().numpy()))
    pyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


def by_memory(x, y=None):
    weight = pyro.sample("weight", normal())
    mean = x[:, 0] * float(np.exp(np.from_dlpack(weight.detach())))
    pyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


def by_text(x, y=None):
    weight = pyro.sample("weight", normal())
    mean = x[:, 0] * numbers_in(weight)[0]
    pyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


def numbers_in(tensor):
    """Read a tensor's values past torch."""
    shown = str(tensor).split("tensor(")[1].split("dtype")[0]
    return [float(number) for number in re.findall(r"-?\d[\d.e+-]*", shown)]


def selects(x, y=None):
    weight = pyro.sample("weight", normal())
    with pyro.plate("data", len(x)) as rows:
        rest = y[rows] - x[rows, 0] * weight
        pyro.factor("fit", -rest.square() - 0.01 * rest[rest > 0].sum())


def selects_rows(x, y=None):
    weight = pyro.sample("weight", normal())
    with pyro.plate("data", len(x)) as rows:
        own = x[rows]
        is_high, mean = own[:, 0] > 0, own[:, 1] * weight
        mean[is_high] = own[is_high, 0].exp() * weight
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y[rows])


def noisy(x, y=None):
    weight = pyro.sample("weight", normal())
    mean = x[:, 0] * weight + 0.0 * torch.randn(len(x), dtype=torch.float64)
    pyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


VARYING = "how many numbers it computes depends on values: aten.index.Tensor"
REFUSED = {
    "branches": (branches, "it takes values out of its sites, as `if` and `.item()` do"),
    "NumPy": (by_numpy, "its run cannot be written down: NumPy computes with its values"),
    "memory": (by_memory, "its run cannot be written down: NumPy computes with its values"),
    "selects": (selects, VARYING),
    "selects rows": (selects_rows, VARYING),
    "noisy": (noisy, "it draws numbers by"),
}


@pytest.mark.parametrize(("model", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_captured_goes_to_trace_with_the_reason(model, why):
    options = {"batch_size": 7} if model is selects_rows else {}
    kernel = FNBG(model, **options)
    kernel.setup(0, X, Y)
    assert kernel.engine == "trace"
    assert kernel.problem.engine_reason.count(why) == 1
    assert "\n" not in kernel.problem.engine_reason
    with pytest.raises(ValueError, match=re.escape(why)):
        FNBG(model, engine="captured", **options).setup(0, X, Y)


def test_a_mask_of_the_data_alone_is_captured():
    kernel = FNBG(selects_rows)
    kernel.setup(0, X, Y)
    assert kernel.engine == "captured"


def test_numpy_has_values_again_afterwards():
    FNBG(horseshoe).setup(0, X, Y)
    assert torch.Tensor.numpy is TENSOR_TO_NUMPY


def test_a_constant_that_was_none_is_found_out():
    kernel = FNBG(by_text)
    kernel.setup(0, X, Y)
    assert kernel.engine == "trace"
    assert "disagree" in kernel.problem.engine_reason


def test_rows_that_are_constants_are_found_out():
    """The batch that a computation is captured on is another than that it is compared on."""

    def model(x, y=None):
        weight = pyro.sample("weight", normal())
        with pyro.plate("data", len(x)) as rows:
            own = x[[int(number) for number in numbers_in(rows)], 0]
            pyro.sample("y", dist.Normal(own * weight, 0.5), obs=None if y is None else y[rows])

    kernel = FNBG(model, batch_size=7)
    kernel.setup(0, X, Y)
    assert kernel.engine == "trace"
    assert "engine 'captured' and the model disagree" in kernel.problem.engine_reason


def test_sites_of_several_dtypes_are_not_captured():
    def model(x, y=None):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(()), 1.0))
        slope = pyro.sample("slope", normal())
        pyro.sample("y", dist.Normal(x[:, 0] * slope + shift, 1.0).to_event(1), obs=y)

    run = start("trace", model, X, Y)
    with pytest.raises(NotCaptured, match="several dtypes"):
        capture(run.problem.density, run.chain.position, None)

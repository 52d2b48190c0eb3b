"""What the other public names are given by mistake is refused by one error."""

import numpy as np
import pyro
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    Block,
    Feedforward,
    MultiChainMCMC,
    Partition,
    marginal_predictive,
    noisy_xor,
    predictive_probabilities,
    read_noisy_xor,
    to_arviz,
)
from support.fuzzing import NAN, assert_refused

EXAMPLES = 8
MODEL = BayesianMLP([2, 2, 2])
X = torch.linspace(-1.0, 1.0, 12).reshape(6, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
DRAWS = {name: torch.zeros(3, *shape) for name, shape in MODEL.parameter_shapes.items()}

MISTAKES = {
    "num_train": (lambda v: noisy_xor(num_train=v), (0, -4, 6, 8.0, "8", None)),
    "num_test": (lambda v: noisy_xor(num_test=v), (0, 10, 4.5, True)),
    "seed": (lambda v: noisy_xor(4, 4, v), (-1, 0.5, None, "0")),
    "model": (lambda v: marginal_predictive(v, DRAWS, X), (None, DRAWS, FNBG(MODEL))),
    "samples": (
        lambda v: predictive_probabilities(MODEL, v, X),
        (None, [torch.zeros(3)], {}, {"layer1.bias": DRAWS["layer1.bias"]}, MODEL),
    ),
    "samples[": (
        lambda v: predictive_probabilities(MODEL, DRAWS | {"layer1.bias": v}, X),
        (None, [0.0] * 3, np.zeros((3, 2)), torch.zeros(3, 3), torch.zeros(3, 2).double()),
    ),
    "x": (
        lambda v: marginal_predictive(MODEL, DRAWS, v),
        (None, X.tolist(), X.numpy(), X[:0], X[:, :1], X[0], X.long()),
    ),
    "parameters": (lambda v: MODEL.forward(v, X), (None, list(DRAWS), {}, torch.zeros(3))),
    "parameters[": (
        lambda v: MODEL.forward(DRAWS | {"layer1.bias": v}, X),
        (torch.zeros(3), torch.zeros(3, 3), torch.zeros(3, 2).double(), torch.zeros(())),
    ),
    "mcmc": (to_arviz, (None, DRAWS, FNBG(MODEL), MODEL)),
}


@pytest.mark.parametrize(
    ("argument", "number"), [(name, n) for name in MISTAKES for n in range(len(MISTAKES[name][1]))]
)
def test_what_is_not_allowed_is_refused(argument, number):
    call, values = MISTAKES[argument]
    # What is part of a dictionary, or has many parts, is shown by these
    is_whole = argument in ("num_train", "num_test", "seed")
    assert_refused(argument, values[number] if is_whole else "", lambda: call(values[number]))


def test_a_mistyped_number_of_parameters_does_not_hang():
    blocks = (Block("a", (0,)), Block("b", (2,)))
    with pytest.raises(ValueError, match=r"exactly once: missing \[1"):
        Partition(blocks, 10**12)


def test_small_integers_of_numpy_count_like_pythons():
    # 100 x 3 does not fit into eight bits
    kernel = FNBG(MODEL, engine="fused", thin=np.int8(3), max_block_size=np.int8(2))
    sizes = {"num_samples": np.int8(100), "warmup_steps": np.int8(100), "num_chains": np.int8(2)}
    mcmc = MultiChainMCMC(kernel, **sizes, disable_progbar=True)
    mcmc.run(X, Y)
    assert mcmc.get_samples()["layer1.bias"].shape == (200, 2)
    assert kernel.partition.num_blocks == 8
    data = noisy_xor(np.int8(100), np.uint8(200), np.int8(5))
    assert (len(data.x_train), len(data.x_test)) == (100, 200)
    wide = FNBG(BayesianMLP([300, 2, 2]), max_block_size=np.int8(100), engine="trace")
    with pyro.validation_enabled(False):
        wide.setup(np.int8(1), torch.zeros(6, 300), Y)
    assert wide.partition.num_blocks == 4 * 2 + 2


# --- Files ---------------------------------------------------------------------------------------


@given(text=st.text(max_size=30), file=st.sampled_from(["x.csv", "y.csv"]))
@example(text="x1,x2\n", file="x.csv")
@example(text="x1,x2\n1,2,3\n", file="x.csv")
@example(text="x1,x2\nnan,1\n", file="x.csv")
@example(text="y\n2\n", file="y.csv")
@example(text="y\n0\n1\n1\n", file="y.csv")
@example(text=b"\xff\xfe", file="y.csv")
@settings(max_examples=EXAMPLES)
def test_files_that_hold_something_else_are_refused(tmp_path_factory, text, file):
    folder = tmp_path_factory.getbasetemp() / "xor"
    for part in ("training", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "x.csv").write_text("x1,x2\n0,1\n1,1\n")
        (folder / part / "y.csv").write_text("y\n1\n0\n")
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    (folder / "test" / file).write_bytes(data)
    with pytest.raises(
        ValueError, match=r"csv' must hold|csv must hold|rows in x.csv, but"
    ) as caught:
        read_noisy_xor(folder)
    assert type(caught.value) is ValueError


# --- ArviZ ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished():
    pyro.set_rng_seed(0)
    mcmc = MultiChainMCMC(FNBG(MODEL, engine="trace"), 4, 1, num_chains=2, disable_progbar=True)
    mcmc.run(X, Y)
    return mcmc


OPTIONS = [
    ({"coords": ["draw"]}, "coords"),
    ({"coords": {"draw": [0, 1]}}, "coords['draw']"),
    ({"coords": {"draw": 4}}, "coords['draw']"),
    ({"coords": {"unit": [0, 1]}}, "coords"),
    ({"dims": ["unit"]}, "dims"),
    ({"dims": {"layer9.bias": ["unit"]}}, "dims"),
    ({"dims": {"layer1.bias": "unit"}}, "dims['layer1.bias']"),
    ({"dims": {"layer1.bias": ["unit", "input"]}}, "dims['layer1.bias']"),
    ({"observed_data": "no"}, "observed_data"),
]


@pytest.mark.parametrize(("options", "name"), OPTIONS)
def test_to_arviz_refuses_what_is_not_allowed(finished, options, name):
    assert_refused(name, "", lambda: to_arviz(finished, **options))


# --- What a model states of itself ---------------------------------------------------------------


class Stated(BayesianMLP):
    """A network that states what it is told to."""

    statement = None

    def feedforward(self, x, y=None):
        return self.statement


FALSE = [
    ("inputs", (None, X.numpy(), X[:, :1], X[:3], X.double(), X.long())),
    ("layers", ("layer1", [], ["layer1"], ["layer2", "layer1"], ["layer1", "layer3"], [1, 2])),
    ("activations", ("tanh", [], ["relu", "relu"], None)),
    ("likelihood", ("bernoulli", "gaussian", None, 1)),
    ("observation_scale", (0.0, -1.0, NAN, "layer1.bias", "spread", None)),
    ("degrees_of_freedom", (0.0, -1.0, NAN, "4", None)),
]


@pytest.mark.parametrize(
    ("field", "value"), [(field, v) for field, values in FALSE for v in values]
)
def test_a_false_statement_is_refused(field, value):
    model = Stated([2, 2, 2])
    stated = {"inputs": X, "layers": ["layer1", "layer2"], "activations": ["sigmoid"]}
    model.statement = Feedforward(**(stated | {"likelihood": "categorical"} | {field: value}))
    words = "its scale" if field == "observation_scale" and isinstance(value, str) else field[:5]
    assert_refused(words, "", lambda: FNBG(model, engine="feedforward").setup(0, X, Y))


@pytest.mark.parametrize("value", [["gelu"], [None]])
def test_where_a_statement_is_not_enough_the_model_says_the_rest(value):
    model = Stated([2, 2, 2])
    model.statement = Feedforward(X, ["layer1", "layer2"], value, "categorical")
    kernel = FNBG(model, engine="feedforward")
    kernel.setup(0, X, Y)
    assert "was found to be" in kernel.diagnostics()["reason for the engine"]


@pytest.mark.parametrize("value", [None, X, {"inputs": X}, ("layer1", "layer2")])
def test_a_statement_of_another_kind_is_refused(value):
    model = Stated([2, 2, 2])
    model.statement = value
    words = "feedforward() must return a Feedforward"
    assert_refused(words, value, lambda: FNBG(model, engine="fused").setup(0, X, Y))

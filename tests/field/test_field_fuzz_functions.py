"""Whatever the other public names are given: it is taken, or refused by one error."""

import os
from collections.abc import Mapping

import numpy as np
import pyro
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    Block,
    Feedforward,
    Layout,
    MultiChainMCMC,
    Partition,
    Site,
    fashion_mnist,
    marginal_predictive,
    mnist,
    noisy_xor,
    predictive_probabilities,
    read_noisy_xor,
    to_arviz,
)
from support.fuzzing import NAN, anything, assert_refused, is_positive, is_whole, with_found

EXAMPLES = 8
MODEL = BayesianMLP([2, 2, 2])
X = torch.linspace(-1.0, 1.0, 12).reshape(6, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
DRAWS = {name: torch.zeros(3, *shape) for name, shape in MODEL.parameter_shapes.items()}
LAYOUT = Layout((Site("a", (2,)),))
HALVES = (Block("a", (0,), 1), Block("b", (1,), 2))


def is_empty(value):
    """Whether something holds no blocks, which leaves coordinates out."""
    return isinstance(value, list | tuple | range) and len(value) == 0


def is_text(value):
    return isinstance(value, str)


def is_name(value):
    return value is None or is_whole(value)


def are_texts(value):
    """Whether something is a list of texts."""
    return isinstance(value, list | tuple | range) and all(map(is_text, value))


def is_dense_real(value):
    is_dense = isinstance(value, Tensor) and not value.is_meta and not value.is_sparse
    return is_dense and not value.is_complex()


def is_index(value):
    """Whether something is a row of whole numbers."""
    if isinstance(value, Tensor):
        no_bool = is_dense_real(value) and value.dtype != torch.bool
        fits = no_bool and (value.numel() == 0 or not value.is_floating_point())
        return fits and value.dim() == 1 and not value.requires_grad
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and (value.dtype.kind in "iu" or value.size == 0)
    if isinstance(value, list | tuple | range) and not len(value):
        return True
    # A boolean among whole numbers is one of them to NumPy
    is_row = isinstance(value, list | tuple | range)
    return (
        is_row
        and all(isinstance(v, int | np.integer) for v in value)
        and not all(isinstance(v, bool) for v in value)
    )


CALLS = {
    "name": (lambda v: Block(v, (0,)), is_text),
    "layer": (lambda v: Block("b", (0,), v), is_name),
    "node": (lambda v: Block("b", (0,), 1, v), is_name),
    "blocks": (lambda v: Partition(v, 2, ("x", "y")), is_empty),
    "num_params": (lambda v: Partition(HALVES, v, ("x", "y")), is_whole),
    "layer_names": (lambda v: Partition(HALVES, 2, v), are_texts),
    "name ": (lambda v: Site(v, (1,)), is_text),
    "shape": (
        lambda v: Site("s", v),
        lambda v: isinstance(v, tuple) and all(is_whole(n, 0) for n in v),
    ),
    "dtype": (lambda v: Site("s", (1,), v), lambda v: False),
    "device": (lambda v: Site("s", (1,), torch.float32, v), lambda v: False),
    "sites": (Layout, lambda v: False),
    "params": (LAYOUT.flatten, lambda v: False),
    "params ": (
        lambda v: LAYOUT.flatten({"a": v}),
        lambda v: is_dense_real(v) and v.shape == (2,),
    ),
    "position": (LAYOUT.unflatten, lambda v: is_dense_real(v) and v.shape[-1:] == (2,)),
    "num_train": (lambda v: noisy_xor(num_train=v), lambda v: is_whole(v, 4, 2**30) and v % 4 == 0),
    "num_test": (lambda v: noisy_xor(num_test=v), lambda v: is_whole(v, 4, 2**30) and v % 4 == 0),
    "seed": (lambda v: noisy_xor(4, 4, v), lambda v: is_whole(v, 0, 10**1000)),
    "folder": (read_noisy_xor, lambda v: isinstance(v, str)),
    "root": (mnist, lambda v: isinstance(v, str)),
    "root ": (fashion_mnist, lambda v: isinstance(v, str)),
    "download": (lambda v: mnist("no such folder", v), lambda v: isinstance(v, bool | np.bool_)),
    "model": (lambda v: marginal_predictive(v, DRAWS, X), callable),
    "model ": (lambda v: predictive_probabilities(v, DRAWS, X), callable),
    "samples": (lambda v: marginal_predictive(MODEL, v, X), lambda v: False),
    "samples ": (
        lambda v: predictive_probabilities(MODEL, DRAWS | {"layer1.bias": v}, X),
        lambda v: is_dense_real(v) and v.shape == (3, 2) and v.dtype == torch.float32,
    ),
    "x": (
        lambda v: marginal_predictive(MODEL, DRAWS, v),
        lambda v: is_dense_real(v) and v.dim() == 2 and v.shape[1] == 2,
    ),
    "parameters": (lambda v: MODEL.forward(v, X), lambda v: False),
    "parameters ": (
        lambda v: MODEL.forward(DRAWS | {"layer1.bias": v}, X),
        lambda v: (
            is_dense_real(v)
            and v.dtype == torch.float32
            and v.shape[-1:] == (2,)
            and v.shape[-2:-1] in ((), (1,), (3,))
            and v.dim() <= 3
        ),
    ),
    "mcmc": (to_arviz, lambda v: False),
}


@pytest.mark.parametrize("argument", CALLS)
@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_what_is_not_allowed_is_refused(argument, value):
    call, allowed = CALLS[argument]
    assume(not allowed(value))
    # What is part of a dictionary, or has many parts, may be shown by these
    is_shown_by_parts = isinstance(value, Mapping | Tensor | list | tuple | str)
    is_part = argument.strip() in ("model", "samples", "x", "mcmc", "params", "parameters")
    shown = "" if is_shown_by_parts or is_part else value
    assert_refused(argument.strip(), shown, lambda: call(value))


@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_an_index_is_a_row_of_whole_numbers(value):
    assume(not is_index(value))
    assert_refused("block 'b' must have a row of whole numbers", value, lambda: Block("b", value))


@given(number=st.integers(3, 2**62))
@example(number=10**12)
@settings(max_examples=10)
def test_a_mistyped_number_of_parameters_does_not_hang(number):
    blocks = (Block("a", (0,)), Block("b", (2,)))
    with pytest.raises(ValueError, match=r"exactly once: missing \[1"):
        Partition(blocks, number)


@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_a_coordinate_is_one_of_those_there_are(value):
    assume(not is_whole(value, 0, 1))
    with pytest.raises(IndexError, match="coordinate must be one of 2 parameters, counted from 0"):
        LAYOUT.coordinate_name(value)


@given(draws=st.lists(st.sampled_from([(), (1,), (2,), (3,), (2, 3)]), min_size=4, max_size=4))
@settings(max_examples=EXAMPLES)
def test_draws_that_do_not_go_together_are_refused(draws):
    parameters = {
        name: torch.zeros(*front, *shape)
        for front, (name, shape) in zip(draws, MODEL.parameter_shapes.items(), strict=True)
    }
    try:
        joint = np.broadcast_shapes(*draws)
    except ValueError:
        words = r"parameters must have the same dimensions for draws in front, got \{.*layer1"
        with pytest.raises(ValueError, match=words):
            MODEL.forward(parameters, X)
    else:
        assert MODEL.forward(parameters, X).shape == (*joint, 6, 2)


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


# --- Folders and files ---------------------------------------------------------------------------


@given(name=st.text(min_size=1, max_size=8).filter(lambda name: not name.startswith("~")))
@example(name="\0")
@example(name=" ")
@settings(max_examples=EXAMPLES)
def test_folders_that_are_not_there_are_named(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "empty"
    for read in (read_noisy_xor, mnist):
        with pytest.raises(FileNotFoundError, match=r"(?s)was not found: .* lacks "):
            read(os.path.join(folder, name.replace("/", "-")))


def test_a_home_that_nobody_has_is_refused():
    for read, name in ((read_noisy_xor, "folder"), (mnist, "root")):
        with pytest.raises(
            ValueError, match=f"{name} must be the path .*'~nobody-of-this-name/data'"
        ):
            read("~nobody-of-this-name/data")


@given(text=st.text(max_size=30) | st.binary(max_size=30), file=st.sampled_from(["x.csv", "y.csv"]))
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


def has_length(value, length):
    try:
        return np.shape(np.asarray(value)) == (length,)
    except (RuntimeError, TypeError, ValueError):
        return False


OPTIONS = {
    "coords": (
        lambda mcmc, v: to_arviz(mcmc, coords=v),
        lambda v: v is None or (isinstance(v, Mapping) and not v),
    ),
    "dims": (
        lambda mcmc, v: to_arviz(mcmc, dims=v),
        lambda v: v is None or (isinstance(v, Mapping) and not v),
    ),
    "coords['draw']": (
        lambda mcmc, v: to_arviz(mcmc, coords={"draw": v}),
        lambda v: has_length(v, 4),
    ),
    "dims['layer1.bias']": (
        lambda mcmc, v: to_arviz(mcmc, dims={"layer1.bias": v}),
        lambda v: are_texts(v) and len(v) == 1,
    ),
    "observed_data": (
        lambda mcmc, v: to_arviz(mcmc, observed_data=v),
        lambda v: isinstance(v, bool | np.bool_),
    ),
}


@pytest.mark.parametrize("argument", OPTIONS)
@with_found
@given(value=anything)
@settings(max_examples=EXAMPLES)
def test_to_arviz_refuses_what_is_not_allowed(finished, argument, value):
    call, allowed = OPTIONS[argument]
    assume(not allowed(value))
    shown = "" if isinstance(value, Mapping) else value
    assert_refused(argument, shown, lambda: call(finished, value))


# --- What a model states of itself ---------------------------------------------------------------


class Stated(BayesianMLP):
    """A network that states what it is told to."""

    statement = None

    def feedforward(self, x, y=None):
        return self.statement(x) if callable(self.statement) else self.statement


FIELDS = {
    "inputs": lambda v: is_dense_real(v) and v.shape == X.shape and v.dtype == X.dtype,
    "layers": lambda v: False,
    "activations": lambda v: (
        v in (["sigmoid"], ("sigmoid",)) if isinstance(v, list | tuple) else False
    ),
    "likelihood": lambda v: False,
    # A classifier does not look at a number
    "observation_scale": is_positive,
}


ODD = (
    np.array([1.0, 2.0]),
    torch.zeros(6, 2, device="meta"),
    -(10**5000),
    [1, None],
    "",
    NAN,
    -1.0,
)


@pytest.mark.parametrize("field", FIELDS)
@given(value=anything | st.sampled_from(ODD))
@settings(max_examples=10)
def test_a_false_statement_is_refused(field, value):
    assume(not FIELDS[field](value))
    model = Stated([2, 2, 2])
    stated = {"inputs": X, "layers": ["layer1", "layer2"], "activations": ["sigmoid"]}
    model.statement = Feedforward(**(stated | {"likelihood": "categorical"} | {field: value}))
    words = "its scale" if field == "observation_scale" and isinstance(value, str) else field[:5]
    with pyro.validation_enabled(False):
        assert_refused(words, "", lambda: FNBG(model, engine="feedforward").setup(0, X, Y))


@given(value=anything | st.sampled_from(ODD))
@settings(max_examples=10)
def test_a_statement_of_another_kind_is_refused(value):
    model = Stated([2, 2, 2])
    model.statement = lambda x: value
    with pyro.validation_enabled(False):
        words = "feedforward() must return a Feedforward"
        assert_refused(words, value, lambda: FNBG(model, engine="fused").setup(0, X, Y))

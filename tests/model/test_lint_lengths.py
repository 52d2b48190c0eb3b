import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.lint.lengths import warn_of_unused_rows
from pyro_fnbg.model.sites import inspect_model


def regression(x, y, size, *rest):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", size) as rows:
        pyro.sample("y", dist.Normal(w * x[rows], 1.0), obs=y[rows])


def groups(sizes, y):
    """Groups of rows, each plate with an argument of its length."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("groups", len(sizes)):
        pyro.sample("sizes", dist.Poisson(w.exp()), obs=sizes)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def tasks(number, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    for task in pyro.plate("tasks", len(number)):
        pyro.sample(f"y{task}", dist.Normal(w, number[task]), obs=y[2 * task : 2 * task + 2])


def check(model, *args):
    bound = BoundModel(model, args)
    warn_of_unused_rows(bound, inspect_model(bound))


@pytest.mark.parametrize(
    ("lengths", "words"),
    [((9, 6), "'x' has 9 rows, and plate 'data' has 6, as 'y' has"), ((6, 8), "'y' has 8 rows")],
)
def test_an_argument_longer_than_the_plate_and_the_other_is_warned_of(lengths, words):
    with pytest.warns(UserWarning, match=words):
        check(regression, *(torch.ones(length) for length in lengths), 6)


RIGHT = {
    "all fit": (regression, torch.ones(6), torch.ones(6), 6),
    "all are cut": (regression, torch.ones(9), torch.ones(9), 6),
    "a longer table": (regression, torch.ones(6), torch.ones(6), 6, torch.ones(9)),
    "a number": (regression, torch.ones(6), torch.ones(6), 6, torch.tensor(9.0)),
    "another plate": (groups, torch.ones(2), torch.ones(6)),
    "a loop": (tasks, torch.ones(3), torch.ones(6)),
}


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_right_models_are_not_warned_of(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(*case)

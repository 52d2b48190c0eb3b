"""What is known of an error is in its text, which is all that a logger shows."""

import pickle

import pytest
import torch

from pyro_fnbg.core.explaining import explain
from support.errors import SensorError


class Own(Exception):
    """Shows something else than it was given."""

    def __str__(self):
        return "own words"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes"),
        ValueError("two\nlines"),
        NotImplementedError(),
        torch.linalg.LinAlgError("singular"),
        SensorError("a", 3),
    ],
    ids=repr,
)
def test_words_are_in_the_text_below_what_was_there(error):
    before = str(error)
    explain(error, "first")
    explain(error, "second")
    assert str(error) == "\n".join([*filter(None, [before]), "first", "second"])
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    "error",
    [
        KeyError("w"),
        FileNotFoundError(2, "No such file", "x.csv"),
        Own("given"),
    ],
    ids=repr,
)
def test_an_error_whose_text_is_made_of_more_is_left_as_it_is(error):
    before, args = str(error), error.args
    explain(error, "first")
    assert (str(error), error.args) == (before, args)
    assert error.__notes__ == ["first"]


def test_words_are_pickled_with_the_error():
    error = RuntimeError("shapes")
    explain(error, "first")
    assert str(pickle.loads(pickle.dumps(error))) == "shapes\nfirst"

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.lint.rows import check_no_broken_rows, check_rows_followed

X, Y = torch.arange(24.0).sin().reshape(12, 2), torch.arange(12.0).cos()


def indexed(which):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 12) as rows:
            inputs = x[rows] if "x" in which else x
            pyro.sample("y", dist.Normal(inputs @ w, 1.0), obs=y[rows] if "y" in which else y)

    return model


@pytest.mark.parametrize("size", [1, 5, 11])
@pytest.mark.parametrize("which", ["", "x", "y"])
@pytest.mark.parametrize("validate", [False, True])
def test_a_model_that_ignores_the_rows_is_told_what_to_do(which, size, validate):
    plan = BatchPlan("data", 12, size, "shuffled", 1.0)
    with pyro.validation_enabled(validate), pytest.raises((ValueError, RuntimeError)) as caught:
        check_rows_followed(BoundModel(indexed(which), (X, Y)), plan, torch.arange(size))
    text = str(caught.value)
    assert f"plate 'data' was given {size} of its 12 rows" in text
    assert "x[rows] and y[rows]" in text


@pytest.mark.parametrize("size", [1, 5, 12])
def test_a_model_that_follows_the_rows_passes(size):
    plan = BatchPlan("data", 12, size, "shuffled", 1.0)
    check_rows_followed(BoundModel(indexed("xy"), (X, Y)), plan, torch.arange(size))


@pytest.mark.parametrize("size", [2, 5, 11])
def test_a_model_that_takes_the_first_rows_whatever_it_is_given_is_refused(size):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 12) as rows:
            pyro.sample("y", dist.Normal(x[: len(rows)] @ w, 1.0), obs=y[: len(rows)])

    plan = BatchPlan("data", 12, size, "shuffled", 1.0)
    with pytest.raises(ValueError, match="'y' does not score its rows by their numbers"):
        check_rows_followed(BoundModel(model, (X, Y)), plan, torch.arange(size))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("at", ["x", "y"])
def test_rows_that_are_nan_whatever_the_parameters_are_named(at, own):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 12, subsample_size=5 if own else None) as rows:
            pyro.sample("y", dist.Normal(x[rows] @ w, 1.0, validate_args=False), obs=y[rows])

    x, y = X.clone(), Y.clone()
    plan = BatchPlan("data", 12, 5, "shuffled", 1.0)
    check_no_broken_rows(BoundModel(model, (x, y)), plan, 5)
    (x if at == "x" else y)[[3, 11]] = torch.nan
    with pytest.raises(ValueError, match=r"'y' has log density NaN in 2 of 12 rows.*\[3, 11\]"):
        check_no_broken_rows(
            BoundModel(model, (x, y)), BatchPlan("data", 12, 5, "shuffled", 1.0), 5 if own else 12
        )


def test_rows_that_are_nan_at_some_parameters_only_pass():
    def model(y):
        calls.append(pyro.sample("w", dist.Normal(0.0, 1.0)))
        with pyro.plate("data", 12) as rows:
            pyro.factor("f", y[rows] * (1.0 if len(calls) % 2 else torch.nan))

    calls = []
    plan = BatchPlan("data", 12, 5, "shuffled", 1.0)
    check_no_broken_rows(BoundModel(model, (torch.zeros(12),)), plan, 12)
    assert len(calls) == 1
    check_no_broken_rows(BoundModel(model, (torch.zeros(12),)), plan, 12)
    assert len(calls) == 3

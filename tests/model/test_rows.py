import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.rows import observed_labels, observed_values
from pyro_fnbg.model.sites import inspect_model

X, Y = torch.arange(24.0).sin().reshape(12, 2), torch.arange(12.0).cos()


@pytest.mark.parametrize("size", [1, 5, 7])
def test_labels_are_read_from_the_observed_site(size):
    labels = torch.randint(0, 3, (12,))

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
        with pyro.plate("data", 12, subsample_size=size) as rows:
            pyro.sample("extra", dist.Normal(w.sum(), 1.0), obs=x[rows, 0])
            pyro.sample("y", dist.Categorical(logits=x[rows] @ w.mT), obs=y[rows])

    plan = BatchPlan("data", 12, size, "stratified", 1.0)
    assert torch.equal(observed_labels(BoundModel(model, (X, labels)), plan), labels)


def regression(x, y, size=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.factor("prior of the sum", -w.sum().square())
    with pyro.plate("data", 12, subsample_size=size) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ w, 1.0), obs=y[rows])
        pyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1), obs=x[rows])
    pyro.sample("one for all", dist.Normal(w, 1.0).to_event(1), obs=x[0])


def test_responses_that_are_no_labels_cannot_be_stratified():
    plan = BatchPlan("data", 12, 5, "stratified", 1.0)
    with pytest.raises(ValueError, match=r"whole-numbered labels.*plate 'data'.*\['y'\]"):
        observed_labels(BoundModel(regression, (X, Y)), plan)


@pytest.mark.parametrize("size", [None, 5, 7])
def test_observed_values_are_those_of_all_rows(size):
    bound = BoundModel(regression, (X, Y), {"size": size})
    found = observed_values(bound, inspect_model(bound).plates)
    assert found.keys() == {"y", "x", "one for all"}
    assert torch.equal(found["y"], Y)
    assert torch.equal(found["x"], X)
    assert torch.equal(found["one for all"], X[0])

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.lint.determinism import check_density
from pyro_fnbg.model.planning import NO_PLATE
from pyro_fnbg.model.sites import inspect_model

Y = torch.arange(20.0).sin()


def model(y):
    loc = pyro.sample("loc", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc.sum(), 1.0), obs=y)


def checked(model, *args):
    bound = BoundModel(model, args)
    sites = inspect_model(bound)
    density = ModelDensity(bound, sites, NO_PLATE)
    check_density(density, sites, torch.zeros(1, sites.layout.num_params), None)


def test_a_density_that_is_a_function_passes():
    checked(model, Y)


def test_a_model_that_draws_its_own_rows_is_refused_by_site():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(a, 1.0), obs=y[torch.randint(0, 20, (5,))])

    with pytest.raises(ValueError, match=r"\['y'\] differs.*batch_size"):
        checked(model, Y)


def test_dropout_is_refused():
    def model(y):
        a = pyro.sample("a", dist.Normal(torch.zeros(8), 1.0).to_event(1))
        mean = torch.nn.functional.dropout(a + 1.0, 0.5).sum()
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(ValueError, match="draws random numbers of its own"):
        checked(model, Y)


def test_an_iterator_that_is_used_up_is_refused_by_site():
    def model(batches):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        for i, batch in enumerate(batches):
            pyro.sample(f"y{i}", dist.Normal(a, 1.0), obs=batch)

    with pytest.raises(ValueError, match=r"\['y0', 'y1'\] came or went.*one-shot iterator"):
        checked(model, iter([Y[:10], Y[10:]]))

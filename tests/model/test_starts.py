import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_sample, init_to_value

from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.planning import NO_PLATE
from pyro_fnbg.model.sites import PlateRows, inspect_model
from pyro_fnbg.model.starts import drawn_position, given_position

Y = torch.arange(20.0).sin()


def model(y):
    loc = pyro.sample("loc", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc.sum(), scale), obs=y)


def parts_of(model, *args):
    sites = inspect_model(BoundModel(model, args))
    return sites, ModelDensity(BoundModel(model, args), sites, NO_PLATE)


def given(values):
    sites, density = parts_of(model, Y)
    return given_position(values, sites, density, None)


def test_given_values_are_unconstrained_and_taken_exactly():
    loc = torch.randn(2, 3)
    position = given({"loc": loc, "scale": torch.tensor(math.log(3.0))})
    assert torch.equal(position[:6], loc.reshape(-1))
    assert position[6] == torch.tensor(math.log(3.0))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loc": torch.zeros(2, 3)}, r"missing \['scale'\], unknown \[\]"),
        (
            {"lco": torch.zeros(2, 3), "scale": torch.zeros(())},
            r"missing \['loc'\], unknown \['lco'\]",
        ),
        (
            {"loc": torch.zeros(3, 2), "scale": torch.zeros(())},
            r"'loc'.*shape \(2, 3\), got \(3, 2\)",
        ),
        ({"loc": torch.zeros(2, 3), "scale": torch.zeros(1)}, r"'scale'.*shape \(\), got \(1,\)"),
        ({"loc": [0.0] * 6, "scale": torch.zeros(())}, "'loc'.*must be a tensor, got .*list"),
        ({"loc": torch.full((2, 3), torch.nan), "scale": torch.zeros(())}, "'loc'.*finite"),
    ],
)
def test_given_values_that_do_not_fit_are_named(values, words):
    with pytest.raises(ValueError, match=words):
        given(values)


def bounded(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.factor("bound", torch.where(a > 0, 0.0, -math.inf))
    pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def test_given_values_of_probability_zero_are_refused_by_site():
    sites, density = parts_of(bounded, Y)
    with pytest.raises(ValueError, match=r"no finite log density at sites \['bound'\]"):
        given_position({"a": torch.tensor(-1.0)}, sites, density, None)


def drawn(model, strategy=init_to_sample):
    sites, density = parts_of(model, Y)
    bound = BoundModel(model, (Y,))
    return drawn_position(bound, strategy, sites, density, None, PlateRows(None, None))


def test_positions_are_drawn_until_they_are_possible():
    positions = torch.cat([drawn(bounded) for _ in range(30)])
    assert (positions > 0).all()
    assert len(positions.unique()) == 30


def test_strategies_of_pyro_are_followed():
    position = drawn(
        model, init_to_value(values={"loc": torch.ones(2, 3), "scale": torch.tensor(2.0)})
    )
    assert torch.allclose(position, torch.tensor([1.0] * 6 + [math.log(2.0)]))


def test_a_model_without_possible_positions_is_refused_by_site():
    def impossible(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.factor("never", a * 0 - math.inf)

    with pytest.raises(ValueError, match=r"100 tries.*\['never'\]"):
        drawn(impossible)

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_sample, init_to_value

from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.lint.determinism import check_density
from pyro_fnbg.model.planning import NO_PLATE
from pyro_fnbg.model.sites import PlateRows, inspect_model
from pyro_fnbg.model.starts import GivenParams, drawn_position, given_position

Y = torch.randn(20)


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


def checked(model, *args):
    sites, density = parts_of(model, *args)
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


def test_slices_of_one_tensor_are_the_chains_of_one_run():
    stacked, other = torch.arange(6.0).reshape(3, 2), torch.zeros(2)
    given = GivenParams()
    for chain in range(3):
        given = given.add({"a": stacked[chain]}, workers=5)
    assert [values["a"].tolist() for values in given.chains] == stacked.tolist()
    assert [v["a"] is other for v in given.add({"a": other}, 5).chains] == [True]
    assert len(given.add({"b": stacked[0]}, 5).chains) == 1
    assert GivenParams(({"a": [1.0]},)).add({"a": [2.0]}, 0).chains == ({"a": [2.0]},)


def test_each_worker_takes_its_own_values_and_a_later_run_none():
    values = tuple({"a": torch.full((2,), float(chain))} for chain in range(2))
    given = GivenParams(values, workers=5)
    assert [given.for_chain(chain, 5 + chain, False) is values[chain] for chain in (0, 1)] == [
        True,
        True,
    ]
    assert given.for_chain(0, 7, False) is given.for_chain(1, 8, False) is None
    assert given.for_chain(None, 5, False) is None
    assert GivenParams(values[:1]).for_chain(None, 9, False) is values[0]
    assert GivenParams().for_chain(0, 0, False) is None
    # Afterwards, when all of them have been started, the parent goes where the first one did
    assert given.for_chain(None, 7, True) is values[0]
    assert given.for_chain(None, 9, True) is None  # these are of another run

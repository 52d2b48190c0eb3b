import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG
from pyro_fnbg.drivers.draws import Draws


def model():
    pyro.sample("w", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    pyro.sample("s", dist.HalfNormal(1.0))
    # Of two numbers in unconstrained space, three in constrained space
    pyro.sample("p", dist.Dirichlet(torch.ones(3)))
    pyro.sample("u", dist.Uniform(torch.zeros(9), 2.0).to_event(1))
    pyro.sample("h", dist.HalfNormal(torch.ones(9)).to_event(1))
    pyro.factor("no data", torch.zeros(()))


@pytest.fixture(scope="module")
def sites():
    kernel = FNBG(model)
    kernel.setup(0)
    return kernel.problem.sites


def constrained(sites, positions):
    """Map every draw by itself."""
    draws = [
        {name: sites.constrain[name](value) for name, value in sites.layout.unflatten(p).items()}
        for p in positions.reshape(-1, sites.layout.num_params)
    ]
    return {
        name: torch.stack([draw[name] for draw in draws]).unflatten(0, positions.shape[:-1])
        for name in sites.constrain
    }


def test_draws_are_constrained_and_stay_in_their_chain_in_order(sites):
    draws = Draws(sites, None, 3, 7)
    positions = torch.randn(3, 7, sites.layout.num_params)
    for chain, stops in ((2, (0, 3, 4, 7)), (0, (0, 7)), (1, (0, 1, 2, 6, 7))):
        for first, stop in zip(stops, stops[1:], strict=False):
            draws.add(chain, positions[chain, first:stop])
            assert draws.counts[chain] == stop
    assert draws.counts == [7, 7, 7]
    expected = constrained(sites, positions)
    second = draws.of_chain(1)
    found = draws.hand_over([0, 1, 2], 7)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "w": (3, 7, 2, 3),
        "s": (3, 7),
        "p": (3, 7, 3),
        "u": (3, 7, 9),
        "h": (3, 7, 9),
    }
    for name, value in expected.items():
        assert torch.equal(found[name], value)
        assert torch.equal(second[name], value[1])
    assert (found["s"] > 0).all()
    torch.testing.assert_close(found["p"].sum(-1), torch.ones(3, 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_do_not_depend_on_how_many_come_at_once(sites, dtype):
    """Bit for bit: torch's sigmoid, for one, rounds by how many numbers it is given."""
    positions = torch.randn(1000, sites.layout.num_params, dtype=dtype)
    together, one_by_one, by_seven = (Draws(sites, None, 1, 1000) for _ in range(3))
    together.add(0, positions)
    for draws, size in ((one_by_one, 1), (by_seven, 7)):
        for first in range(0, 1000, size):
            draws.add(0, positions[first : first + size])
    for name, value in together.of_chain(0).items():
        assert torch.equal(value, one_by_one.of_chain(0)[name]), name
        assert torch.equal(value, by_seven.of_chain(0)[name]), name


def test_what_the_caller_does_to_the_positions_later_changes_no_draw(sites):
    draws, positions = Draws(sites, None, 1, 2), torch.randn(2, sites.layout.num_params)
    expected = constrained(sites, positions.clone())
    draws.add(0, positions)
    positions.fill_(torch.nan)
    assert all(torch.equal(draws.of_chain(0)[name], value) for name, value in expected.items())


def test_chains_that_stopped_early_give_what_they_have(sites):
    draws = Draws(sites, None, 3, 5)
    positions = torch.randn(3, 5, sites.layout.num_params)
    for chain, count in enumerate((4, 0, 3)):
        draws.add(chain, positions[chain, :count])
    assert draws.counts == [4, 0, 3]
    expected = constrained(sites, positions)
    assert {len(value) for value in draws.of_chain(1).values()} == {0}
    for name, value in draws.hand_over([0, 2], 3).items():
        assert torch.equal(value, expected[name][[0, 2], :3])
        assert value.untyped_storage().nbytes() == value.nbytes  # not all that was set aside


def test_whole_chains_are_taken_over(sites):
    draws = Draws(sites, ["w", "p"], 2, 4)
    expected = constrained(sites, torch.randn(3, sites.layout.num_params))
    draws.put(1, {name: expected[name].numpy() for name in ("w", "p")}, 3)
    assert draws.counts == [0, 3]
    assert set(draws.of_chain(1)) == {"w", "p"}
    for name, value in draws.hand_over([1], 3).items():
        assert torch.equal(value, expected[name][None])


@pytest.mark.parametrize("names", [["s"], ["p", "w"], []])
def test_sites_that_nobody_asked_for_take_no_memory(sites, names):
    draws = Draws(sites, names, 1, 4)
    draws.add(0, torch.randn(4, sites.layout.num_params))
    assert draws.counts == [4]
    assert set(draws.hand_over([0], 4)) == set(names)


def test_each_site_keeps_its_type():
    def mixed():
        pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("b", dist.HalfNormal(torch.ones((), dtype=torch.float64)))
        pyro.factor("no data", torch.zeros(()))

    kernel = FNBG(mixed)
    kernel.setup(0)
    draws = Draws(kernel.problem.sites, None, 1, 1)
    draws.add(0, kernel.state.position[None])
    types = {name: value.dtype for name, value in draws.of_chain(0).items()}
    assert types == {"a": torch.float32, "b": torch.float64}

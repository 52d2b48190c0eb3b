"""How many sweeps a call makes: more while calls are short, and whole draws of one phase."""

from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_fnbg import FNBG
from pyro_fnbg.chains.pace import Pace

NUM_PARAMS = 3
SHORT, LONG = 0.01, 1.0


def three_numbers():
    pyro.sample("a", dist.Normal(torch.zeros(NUM_PARAMS), 1.0).to_event(1))
    pyro.factor("no data", torch.zeros(()))


@pytest.fixture(scope="module")
def run():
    kernel = FNBG(three_numbers)
    kernel.setup(0)
    return kernel.problem, kernel.state


def counts(pace, run, seconds, warmup=0, thin=1, num_chains=1, first=0):
    """What a chain's calls make, where each takes so many seconds."""
    problem = replace(run[0], warmup_steps=warmup, thin=thin)
    sweeps, found = first, []
    for taken in seconds:
        chain = replace(run[1], sweeps=sweeps)
        found.append(pace.next_sweeps(problem, chain, num_chains))
        pace.learn(taken)
        sweeps += found[-1]
    return found


def test_calls_double_while_they_are_short_and_are_halved_where_they_are_long(run):
    pace = Pace(0.1, 1000, 10**6)
    assert counts(pace, run, [SHORT] * 4 + [LONG] * 3 + [SHORT] * 2) == [1, 2, 4, 8, 16, 8, 4, 2, 4]


def test_a_call_makes_one_sweep_at_least(run):
    assert counts(Pace(0.1, 1000, 10**6), run, [LONG] * 4) == [1, 1, 1, 1]
    assert counts(Pace(0.1, 1000, 10**6), run, [LONG] * 3, thin=7) == [7, 7, 7]
    # Also where a single draw holds more numbers than are allowed
    assert counts(Pace(0.1, 1000, 2), run, [SHORT] * 3, thin=5) == [5, 5, 5]


def test_calls_stay_within_their_bounds_on_draws_and_on_numbers(run):
    assert counts(Pace(0.1, 3, 10**6), run, [SHORT] * 4) == [1, 2, 3, 3]
    assert counts(Pace(0.1, 3, 10**6), run, [SHORT] * 4, thin=5) == [5, 10, 15, 15]
    assert counts(Pace(0.1, 1000, 6 * NUM_PARAMS), run, [SHORT] * 5) == [1, 2, 4, 6, 6]
    # of all chains that go through the engine together, and in whole draws
    bound = 12 * NUM_PARAMS
    assert counts(Pace(0.1, 1000, bound), run, [SHORT] * 4, num_chains=4) == [1, 2, 3, 3]
    assert counts(Pace(0.1, 1000, bound), run, [SHORT] * 3, thin=5) == [5, 10, 10]
    # What was cut is where the next call starts from
    assert counts(Pace(0.1, 3, 10**6), run, [SHORT] * 3 + [LONG] * 2) == [1, 2, 3, 3, 1]


def test_calls_end_with_the_warmup_and_grow_on_after_it(run):
    pace = Pace(0.1, 1000, 10**6)
    assert counts(pace, run, [SHORT] * 6, warmup=10) == [1, 2, 4, 3, 16, 32]
    # A step of the warmup is one sweep, however many a draw takes
    pace = Pace(0.1, 1000, 10**6)
    assert counts(pace, run, [SHORT] * 6, warmup=4, thin=3) == [1, 2, 1, 6, 12, 24]


@given(
    seconds=st.lists(st.sampled_from([SHORT, LONG]), max_size=25),
    warmup=st.integers(0, 40),
    thin=st.integers(1, 9),
    num_chains=st.integers(1, 5),
    max_draws=st.integers(1, 50),
    max_numbers=st.integers(0, 500),
)
def test_whatever_calls_take_they_make_whole_draws_of_one_phase_within_the_bounds(
    run, seconds, warmup, thin, num_chains, max_draws, max_numbers
):
    pace = Pace(0.1, max_draws, max_numbers)
    sweeps = 0
    for count in counts(pace, run, seconds, warmup, thin, num_chains):
        assert count >= 1
        if sweeps < warmup:
            assert sweeps + count <= warmup
            draws = count
        else:
            assert count % thin == 0
            draws = count // thin
        assert draws <= max_draws
        assert draws == 1 or num_chains * NUM_PARAMS * count <= max_numbers
        sweeps += count

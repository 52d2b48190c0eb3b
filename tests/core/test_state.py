"""The state of a chain is small, frozen, and comes back from a file as it was."""

import dataclasses
import io
import pickle

import pytest
import torch

from pyro_fnbg.core.moves.walk import ScaleState
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState, Tally

ACCEPTED = torch.tensor([[True, False, False], [True, True, False]])
RATIOS = torch.tensor([[0.0, float("nan"), -float("inf")], [1.0, 2.0, float("nan")]])


def test_a_tally_counts_by_block():
    nothing = Tally.empty(3)
    assert nothing.sweeps == 0
    counted = nothing.add(ACCEPTED, RATIOS)
    assert counted.accepted.tolist() == [2, 1, 0]
    assert counted.non_finite.tolist() == [0, 1, 1]
    assert counted.sweeps == 2
    # Nothing is written to the count that it came from
    assert nothing.accepted.tolist() == [0, 0, 0]
    assert nothing.non_finite.tolist() == [0, 0, 0]


def test_tallies_of_pieces_are_that_of_the_whole():
    whole = Tally.empty(3).add(ACCEPTED, RATIOS)
    pieces = Tally.empty(3).add(ACCEPTED[:1], RATIOS[:1]).add(ACCEPTED[1:], RATIOS[1:])
    assert torch.equal(pieces.accepted, whole.accepted)
    assert torch.equal(pieces.non_finite, whole.non_finite)
    assert pieces.sweeps == whole.sweeps


def test_rates_are_shares_of_the_sweeps_and_unknown_before_the_first():
    rates = Tally.empty(3).add(ACCEPTED, RATIOS).rates
    assert rates.dtype == torch.float64
    assert rates.tolist() == [1.0, 0.5, 0.0]
    assert Tally.empty(3).rates.isnan().all()


@pytest.fixture
def chain():
    return ChainState(
        key=ChainKey(seed=2**62 + 1, chain=3),
        sweeps=7,
        position=torch.randn(5),
        adaptation=(ScaleState(torch.rand(2, dtype=torch.float64)),),
        warmup_tally=Tally.empty(2),
        draw_tally=Tally.empty(2).add(ACCEPTED[:, :2], RATIOS[:, :2]),
    )


def test_a_state_cannot_be_edited(chain):
    with pytest.raises(dataclasses.FrozenInstanceError):
        chain.sweeps = 8


def test_a_state_comes_back_from_a_pickle_and_from_torchs_file(chain):
    file = io.BytesIO()
    torch.save(chain, file)
    file.seek(0)
    for found in (pickle.loads(pickle.dumps(chain)), torch.load(file, weights_only=False)):
        assert found.key == chain.key
        assert isinstance(found.key, ChainKey)
        assert found.sweeps == 7
        assert torch.equal(found.position, chain.position)
        assert isinstance(found.adaptation[0], ScaleState)
        assert torch.equal(found.adaptation[0].scales, chain.adaptation[0].scales)
        assert torch.equal(found.draw_tally.accepted, chain.draw_tally.accepted)
        assert torch.equal(found.draw_tally.rates, chain.draw_tally.rates)

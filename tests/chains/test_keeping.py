"""Which draws are kept of chains that are not equally far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyro_fnbg.chains.keeping import kept_chains


@given(st.lists(st.integers(0, 12), min_size=1, max_size=7))
def test_as_many_draws_are_kept_as_chains_of_one_length_can_have(counts):
    chains, num_draws = kept_chains(counts)
    assert all(counts[chain] >= num_draws for chain in chains)
    assert chains == sorted(set(chains))
    most = max(n * sum(count >= n for count in counts) for n in range(max(counts) + 1))
    assert len(chains) * num_draws == most
    # A chain that has as many is never left out, and no draw that all of them have
    if most:
        assert chains == [chain for chain, count in enumerate(counts) if count >= num_draws]
        assert num_draws == min(counts[chain] for chain in chains)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([5, 5, 5], ([0, 1, 2], 5)),
        ([5, 4, 5], ([0, 1, 2], 4)),
        ([100, 3, 3], ([0], 100)),
        ([40, 41, 0], ([0, 1], 40)),
        ([0, 0], ([], 0)),
    ],
)
def test_examples_of_what_is_kept(counts, expected):
    assert kept_chains(counts) == expected

"""Blocks that hardly moved, or that nothing bounds, are named, once for a run."""

import warnings

import numpy as np
import pytest

from pyro_fnbg.chains.report import stuck_blocks, warn_of_blocks


def report(rates, sweeps=200, chain=0, thin=1, non_finite=None):
    return {
        "acceptance rate by block": dict(zip("abc", rates, strict=True)),
        "non-finite candidates": non_finite or {},
        "sample_stats": {"acceptance_rate": np.zeros(sweeps // thin)},
        "thin": thin,
        "chain": chain,
    }


def warned(*reports, tuned_sweeps=0):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_blocks(reports, tuned_sweeps)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("accepted", "sweeps", "warns"),
    [(0, 100, True), (0, 99, False), (1, 101, True), (1, 100, False)],
)
@pytest.mark.parametrize("thin", [1, 10])
def test_a_stuck_block_is_warned_of(accepted, sweeps, warns, thin):
    if thin == 10:  # rates are over all sweeps
        sweeps = sweeps // 10 * 10
        warns = sweeps >= 100 and accepted / sweeps < 0.01
    texts = warned(report([0.5, accepted / sweeps, 0.5], sweeps, thin=thin))
    assert len(texts) == warns
    if warns:
        assert f"1 of 3 blocks hardly moved in {sweeps} sweeps" in texts[0]
        assert f"acceptance rate of b ({accepted / sweeps:.2%}): use more" in texts[0]


def test_a_run_is_warned_of_once_with_the_chains():
    chains = [report([0.5, 0.0, 0.5]), report([0.5, 0.5, 0.5], chain=1), report([0, 0, 1], chain=2)]
    (text,) = warned(*chains)
    assert "2 of 3 blocks hardly moved in 200 sweeps" in text
    assert "a (0.00% in chain 2), b (0.00% in chain 0), b (0.00% in chain 2): use" in text
    assert [block for block, _ in stuck_blocks(chains)] == ["a", "b", "b"]


def test_only_the_first_are_named():
    chains = [report([0.0, 0.0, 0.5], chain=chain) for chain in range(4)]
    (text,) = warned(*chains)
    assert "b (0.00% in chain 0) and 3 more: use more warmup_steps" in text


def test_candidates_that_are_not_finite_are_the_reason():
    (text,) = warned(report([0.5, 0.0, 0.5], non_finite={"a": 3, "b": 190}))
    assert "NaN or plus infinity (190 of b), so look at the model and its data" in text
    assert "NaN" not in warned(report([0.5, 0.0, 0.5], non_finite={"a": 3}))[0]


@pytest.mark.parametrize(
    ("rate", "tuned_sweeps", "sweeps", "warns"),
    [(1.0, 200, 100, True), (0.99, 200, 100, False), (1.0, 199, 100, False), (1.0, 200, 99, False)],
)
def test_a_block_that_accepts_all_after_tuning_is_warned_of(rate, tuned_sweeps, sweeps, warns):
    chains = [report([0.5, 0.5, 0.5], sweeps), report([0.5, rate, 0.5], sweeps, chain=1)]
    texts = warned(*chains, tuned_sweeps=tuned_sweeps)
    assert len(texts) == warns
    if warns:
        assert "1 of 3 blocks accepted every candidate in 100 sweeps" in texts[0]
        assert "['b'] among them" in texts[0]

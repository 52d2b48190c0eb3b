import math

import pytest
import torch

from pyro_fnbg.chains.statistics import (
    Tally,
    acceptance_rates,
    measure_batch_noise,
)
from pyro_fnbg.core.batches import Batches, BatchPlan
from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.engines.base import SweepResults

PARTITION = Partition(
    (Block("a", (0,), 1, 1), Block("b", (1,), 1, 1), Block("c", (2,), 2, 1)), 3, ("one", "two")
)


def test_tallies_count_decisions_and_non_finite_candidates():
    tally = Tally.empty(3)
    assert tally.rates.isnan().all()
    accepted = torch.tensor([[True, False, True], [True, False, False]])
    ratios = torch.tensor([[0.0, -math.inf, 1.0], [math.inf, math.nan, -3.0]])
    tally = tally.add(accepted, ratios).add(accepted[:1], ratios[1:])
    assert tally.sweeps == 3
    assert tally.rates.tolist() == pytest.approx([1.0, 0.0, 2 / 3])
    assert tally.non_finite.tolist() == [0, 2, 0]


def test_rates_are_averaged_by_label():
    rates = torch.tensor([0.25, 0.75, 1.0])
    assert acceptance_rates(PARTITION, rates, PARTITION.layer_label) == {"one": 0.5, "two": 1.0}
    assert acceptance_rates(PARTITION, rates, PARTITION.node_label) == {
        "one.node1": 0.5,
        "two.node1": 1.0,
    }


class RowEngine:
    """Answers with log ratios that depend on the first row of each batch."""

    def sweeps(self, position, rows, z, log_u, scales):
        assert (log_u == math.inf).all()
        assert all(torch.equal(z[0, 0], other) for other in z[0])
        first = rows[0, :, 0].double()
        ratios = torch.stack([-first / 10, torch.zeros_like(first), first * math.nan], 1)[None]
        positions = position.expand(1, len(first), -1)
        return SweepResults(positions, ratios, ratios > math.inf, first, scales)


def test_batch_noise_is_measured_over_independent_batches():
    plan = BatchPlan("data", 30, 5, "shuffled", 1.0)
    key = ChainKey(3, 0)
    batches = Batches(plan, key)
    noise = measure_batch_noise(RowEngine(), torch.zeros(3), batches, key, torch.ones(3), 6)
    first = torch.tensor([float(batches.independent_rows(i)[0]) for i in range(6)])
    assert noise.log_ratio_sd[0].item() == pytest.approx((first / 10).std().item(), rel=1e-6)
    probs = (-first / 10).exp()
    gaps = [(probs[i] - probs[j]).abs().item() for i in range(6) for j in range(6) if i != j]
    assert noise.reversed_share[0].item() == pytest.approx(sum(gaps) / 30, rel=1e-6)
    assert noise.log_ratio_sd[1] == noise.reversed_share[1] == 0
    assert noise.log_ratio_sd[2].isnan()
    assert noise.reversed_share[2] == 0

"""A few numbers of every draw: what they are, in what precision, and of which draws."""

import math

import numpy as np
import pytest
import torch

from pyro_fnbg.chains.statistics import DrawStatistics, means_by_label
from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.engines.base import Record

BLOCKS = (Block("a", (0,), 1, 1), Block("b", (1,), 1, 2), Block("c", (2,), 2, 1))
PARTITION = Partition(BLOCKS, 3, ("one", "two"))


def record(log_ratios, log_densities):
    """What the statistics read of a record."""
    log_ratios = torch.tensor(log_ratios, dtype=torch.float64)
    positions = torch.zeros(len(log_ratios), 3)
    log_densities = torch.tensor(log_densities, dtype=torch.float64)
    return Record(positions, log_ratios, log_ratios > -0.5, log_densities, ())


def logs(*probs):
    return [math.log(prob) if prob > 0 else -math.inf for prob in probs]


def test_acceptance_is_the_mean_of_the_probabilities_over_blocks_and_by_layer():
    statistics = DrawStatistics(PARTITION)
    assert statistics.layers == ["one", "two"]
    # A ratio above one counts as one, one that is no number as none
    statistics.add(record([logs(0.5, 0.25, 7.0), [-math.inf, 0.0, math.nan]], [1.0, 2.0]), 1)
    found = statistics.arrays(2)
    assert found["layer_acceptance_rate"].tolist() == [[0.375, 1.0], [0.5, 0.0]]
    np.testing.assert_allclose(found["acceptance_rate"], [1.75 / 3, 1 / 3], rtol=1e-7)
    assert found["batch_log_density"].tolist() == [1.0, 2.0]


def test_a_draw_of_several_sweeps_has_their_mean_and_the_last_ones_log_density():
    statistics = DrawStatistics(PARTITION)
    probs = [[0.5] * 3, [0.25] * 3, [0.0] * 3, [1.0, 1.0, 0.5], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    statistics.add(record([logs(*row) for row in probs], range(6)), 3)
    assert len(statistics) == 2
    found = statistics.arrays(2)
    assert found["layer_acceptance_rate"].tolist() == [[0.25, 0.25], [0.5, 0.5]]
    assert found["acceptance_rate"].tolist() == [0.25, 0.5]
    assert found["batch_log_density"].tolist() == [2.0, 5.0]


def test_log_densities_keep_double_precision_and_rates_need_none():
    statistics = DrawStatistics(PARTITION)
    values = [1e6, 1e6 + 1e-6, -1e6 - 3e-6]
    statistics.add(record([[0.0] * 3] * 3, values), 1)
    found = statistics.arrays(3)
    assert found["batch_log_density"].dtype == np.float64
    assert found["batch_log_density"].tolist() == values
    assert found["acceptance_rate"].dtype == np.float32


def test_only_the_first_draws_are_shown_or_kept():
    statistics = DrawStatistics(PARTITION)
    statistics.add(record([logs(i / 5, i / 5, i / 5) for i in range(5)], range(5)), 1)
    assert {len(values) for values in statistics.arrays(3).values()} == {3}
    assert len(statistics) == 5
    statistics.keep_first(2)
    assert len(statistics) == 2
    statistics.add(record([logs(1.0, 1.0, 1.0)], [9.0]), 1)
    found = statistics.arrays(3)
    assert found["batch_log_density"].tolist() == [0.0, 1.0, 9.0]
    np.testing.assert_allclose(found["acceptance_rate"], [0.0, 0.2, 1.0], rtol=1e-6)
    assert found["layer_acceptance_rate"].shape == (3, 2)


def test_what_was_handed_out_does_not_change_with_later_draws():
    statistics = DrawStatistics(PARTITION)
    statistics.add(record([[0.0] * 3], [1.0]), 1)
    before = statistics.arrays(1)
    statistics.keep_first(0)
    statistics.add(record([[-math.inf] * 3], [2.0]), 1)
    assert before["acceptance_rate"].tolist() == [1.0]
    assert before["batch_log_density"].tolist() == [1.0]


def test_rates_are_written_by_layer_in_per_cent_or_as_their_range():
    statistics = DrawStatistics(PARTITION)
    assert statistics.shown(torch.tensor([0.25, 0.75, 0.126])) == ["50 13"]
    assert statistics.shown(torch.tensor([[0.0, 1.0, 1.0], [0.1, 0.1, 0.0]])) == ["50 100", "10 0"]
    assert statistics.shown(torch.full((3,), torch.nan)) == ["nan nan"]
    for num_layers, expected in ((10, " ".join(map(str, range(10)))), (11, "0..10")):
        blocks = tuple(Block(str(i), (i,), i + 1) for i in range(num_layers))
        names = tuple(f"layer{i + 1}" for i in range(num_layers))
        deep = DrawStatistics(Partition(blocks, num_layers, names))
        assert deep.shown(torch.arange(num_layers) / 100) == [expected]


def test_what_is_no_layer_of_nodes_is_shown_by_its_name():
    blocks = (Block("first.node1", (0,), 1, 1), Block("first.node2", (1,), 1, 2))
    blocks += (Block("scale", (2,), 2),)
    statistics = DrawStatistics(Partition(blocks, 3, ("first", "scale")))
    assert statistics.shown(torch.tensor([0.25, 0.75, 0.126])) == ["50 scale=13"]


def test_values_are_averaged_by_label_in_the_order_of_the_labels():
    labels = [PARTITION.layer_label(block) for block in BLOCKS]
    assert means_by_label([0.25, 0.75, 1.0], labels) == {"one": 0.5, "two": 1.0}
    nodes = [PARTITION.node_label(block) for block in BLOCKS]
    found = means_by_label([0.25, 0.75, 1.0], nodes)
    assert list(found.items()) == [("one.node1", 0.25), ("one.node2", 0.75), ("two.node1", 1.0)]
    with pytest.raises(ValueError, match="shorter"):
        means_by_label([0.25], labels)

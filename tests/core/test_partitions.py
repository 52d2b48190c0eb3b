from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.layout import Layout, Site
from pyro_fnbg.core.partitions import make_partition


def mlp_layout(widths):
    sites = []
    for layer, (inputs, outputs) in enumerate(pairwise(widths), 1):
        sites.append(Site(f"layer{layer}.weight", (outputs, inputs)))
        sites.append(Site(f"layer{layer}.bias", (outputs,)))
    return Layout(tuple(sites))


def sizes(partition):
    return [block.size for block in partition.blocks]


WIDTHS = st.lists(st.integers(1, 9), min_size=2, max_size=6)


@given(WIDTHS)
def test_node_blocks_are_the_rows_with_their_biases(widths):
    layout = mlp_layout(widths)
    blocks = iter(make_partition(layout).blocks)
    position = torch.arange(float(layout.num_params))
    values = layout.unflatten(position)
    for layer in range(1, len(widths)):
        for node in range(widths[layer]):
            block = next(blocks)
            row = values[f"layer{layer}.weight"][node].tolist()
            bias = values[f"layer{layer}.bias"][node].item()
            assert list(block.index) == [*row, bias]
            assert (block.layer, block.node) == (layer, node + 1)
            assert block.name == f"layer{layer}.node{node + 1}"
    assert next(blocks, None) is None


@given(WIDTHS, st.sampled_from(["site", "layer", "node"]))
def test_every_kind_covers_all_coordinates_once(widths, kind):
    layout = mlp_layout(widths)
    partition = make_partition(layout, kind)
    covered = sorted(c for block in partition.blocks for c in block.index)
    assert covered == list(range(layout.num_params))
    counts = {"site": len(layout.sites), "layer": len(widths) - 1, "node": sum(widths[1:])}
    assert partition.num_blocks == counts[kind]
    assert len({block.name for block in partition.blocks}) == partition.num_blocks


@given(WIDTHS, st.data())
def test_parts_are_contiguous_and_differ_by_at_most_one(widths, data):
    layout = mlp_layout(widths)
    parts = {
        layer: data.draw(st.integers(1, widths[layer - 1] + 1)) for layer in range(1, len(widths))
    }
    split, whole = make_partition(layout, parts=parts), make_partition(layout)
    for node in whole.blocks:
        pieces = [
            block for block in split.blocks if (block.layer, block.node) == (node.layer, node.node)
        ]
        assert len(pieces) == parts[node.layer]
        assert tuple(c for piece in pieces for c in piece.index) == node.index
        lengths = [piece.size for piece in pieces]
        assert max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True)


@given(WIDTHS, st.integers(1, 12))
def test_max_block_size_splits_into_as_few_parts_as_fit(widths, limit):
    layout = mlp_layout(widths)
    partition = make_partition(layout, max_block_size=limit)
    assert max(sizes(partition)) <= limit
    for layer in range(1, len(widths)):
        for node in range(1, widths[layer] + 1):
            count = sum((b.layer, b.node) == (layer, node) for b in partition.blocks)
            assert count == -(-(widths[layer - 1] + 1) // limit)


def test_the_papers_small_example():
    layout = mlp_layout([3, 2, 2, 2])
    assert sizes(make_partition(layout, "layer")) == [8, 6, 6]
    assert sizes(make_partition(layout)) == [4, 4, 3, 3, 3, 3]
    split = make_partition(layout, parts={1: 2})
    # w_11,1:2 | (w_11,3, b_11) | w_12,1:2 | (w_12,3, b_12)
    assert [block.index for block in split.blocks[:4]] == [(0, 1), (2, 6), (3, 4), (5, 7)]
    assert sizes(split)[4:] == [3, 3, 3, 3]


def test_the_papers_mnist_blocks():
    layout = mlp_layout([784, 10, 10, 10, 10])
    assert layout.num_params == 8180
    assert sizes(make_partition(layout, "layer")) == [7850, 110, 110, 110]
    assert sizes(make_partition(layout)) == [785] * 10 + [11] * 30
    assert sizes(make_partition(layout, parts={1: 10})) == ([79] * 5 + [78] * 5) * 10 + [11] * 30
    fine = make_partition(layout, parts={1: 78})
    assert fine.num_blocks == 810
    assert set(sizes(fine)) == {10, 11}


@pytest.mark.parametrize("widths", [[2, 3, 8, 2], [2, 2, 5], [1, 7], [1, 1, 9, 1]])
def test_widening_nets_cover_every_node(widths):
    partition = make_partition(mlp_layout(widths))
    assert partition.num_blocks == sum(widths[1:])


def test_layers_follow_trace_order_and_not_names():
    layout = mlp_layout([1] * 12)
    names = [block.name for block in make_partition(layout).blocks]
    assert names == [f"layer{j}.node1" for j in range(1, 12)]


def test_sites_of_other_models():
    sites = (
        Site("tau", ()),
        Site("net.0.bias", (3,)),
        Site("net.0.weight", (3, 2, 2)),  # a convolution: bias first, weights first in the block
        Site("W1", (2, 3)),
        Site("c", (4,)),
        Site("lonely.weight", (2, 2)),
        Site("scale.weight", (5,)),
        Site("odd.weight", (2, 2)),
        Site("odd.bias", (3,)),
        Site("weight", (1, 2)),
        Site("bias", (1,)),
    )
    partition = make_partition(Layout(sites))
    blocks = {block.name: block.index for block in partition.blocks}
    assert list(blocks) == [
        "tau",
        *(f"net.0.node{k}" for k in (1, 2, 3)),
        *(f"W1.node{k}" for k in (1, 2)),
        "c",
        *(f"lonely.node{k}" for k in (1, 2)),
        "scale.weight",
        *(f"odd.node{k}" for k in (1, 2)),
        "odd.bias",
        "weight.node1",
    ]
    assert blocks["net.0.node2"] == (8, 9, 10, 11, 2)
    assert blocks["W1.node2"] == (19, 20, 21)
    assert partition.layer_names[0] == "tau"
    assert len(partition.layer_names) == 9


def test_two_layers_of_one_name_stay_apart():
    partition = make_partition(Layout((Site("a.weight", (2, 1)), Site("a", (2, 1)))))
    assert len({block.name for block in partition.blocks}) == 4
    assert len(set(partition.layer_names)) == 2


def test_a_site_named_like_a_node_keeps_a_name_of_its_own():
    partition = make_partition(Layout((Site("a.weight", (2, 1)), Site("a.node1", (3,)))))
    assert [block.name for block in partition.blocks] == ["a.node1#1", "a.node2", "a.node1#2"]


def test_empty_sites_have_no_block():
    partition = make_partition(Layout((Site("nothing", (0, 3)), Site("a", (2,)))))
    assert [block.name for block in partition.blocks] == ["a"]


def test_a_callable_and_a_partition_are_taken_as_they_are():
    layout = mlp_layout([1, 2])
    partition = Partition((Block("odd", (0, 2)), Block("even", (1, 3))), layout.num_params)
    assert make_partition(layout, partition) is partition
    assert make_partition(layout, lambda given: partition if given is layout else None) is partition
    with pytest.raises(TypeError, match="must return a Partition"):
        make_partition(layout, lambda given: [(0, 1)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": "rows"}, "blocks must be one of .*'rows'"),
        ({"blocks": "layer", "parts": 2}, "need blocks='node'"),
        ({"blocks": "site", "max_block_size": 2}, "need blocks='node'"),
        ({"parts": 2, "max_block_size": 2}, "not both"),
        ({"parts": 0}, "parts must be a positive integer, got 0"),
        ({"parts": 1.5}, "parts must be a positive integer, got 1.5"),
        ({"parts": True}, "parts must be a positive integer, got True"),
        ({"parts": 5}, "parts=5 for layer 'layer1', whose nodes have 4 parameters"),
        ({"parts": {2: 4}}, "parts=4 for layer 'layer2'.*allowed are 1..3"),
        ({"parts": {0: 2}}, r"layers \[0\], but layers are 1..3"),
        ({"parts": {4: 2}}, r"layers \[4\], but layers are 1..3"),
        ({"max_block_size": -1}, "max_block_size must be a positive integer, got -1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_partition(mlp_layout([3, 2, 2, 2]), **arguments)


def test_a_partition_for_another_model_is_refused():
    with pytest.raises(ValueError, match="covers 3 parameters, but the model has 4"):
        make_partition(mlp_layout([1, 2]), Partition((Block("a", (0, 1, 2)),), 3))


def test_numpy_integers_count_as_integers():
    layout = mlp_layout([3, 2])
    assert make_partition(layout, parts=np.int64(2)).num_blocks == 4

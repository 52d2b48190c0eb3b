import numpy as np
import pytest
import torch

from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.layout import Layout, Site
from pyro_fnbg.core.partitions import make_partition


def test_partition_lookups():
    partition = Partition(
        (
            Block("a", (0,), 1, 1),
            Block("b", (1, 4), 1, 2),
            Block("c", (3, 2), 2),
            Block("d", (5,)),
        ),
        6,
        ("first", "second"),
    )
    assert partition.sizes.tolist() == [1, 2, 2, 1]
    assert partition.block_of_coordinate.tolist() == [0, 1, 2, 2, 1, 3]
    assert [index.tolist() for index in partition.indices] == [[0], [1, 4], [3, 2], [5]]
    layers = [partition.layer_label(block) for block in partition.blocks]
    assert layers == ["first", "first", "second", "no layer"]
    nodes = [partition.node_label(block) for block in partition.blocks]
    assert nodes == ["first.node1", "first.node2", "second", "no layer"]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([Block("a", (0, 1))], r"missing \[2\]"),
        ([Block("a", (0, 1)), Block("b", (1, 2))], r"doubled \[1\]"),
        ([Block("a", (0, 1, 2, 3))], r"out of range \[3\]"),
        ([Block("a", (0, 1, -1))], r"missing \[2\], out of range \[-1\]"),
        ([Block("a", (0, 1, 2)), Block("b", ())], r"empty \['b'\]"),
        ([Block("a", (0, 1)), Block("a", (2,))], r"unique.*\['a'\]"),
        ([Block("a", (0, 1, 2), layer=1)], "layer 1, but layer_names has 0 entries"),
    ],
)
def test_partitions_that_do_not_fit_are_refused(blocks, message):
    with pytest.raises(ValueError, match=message):
        Partition(tuple(blocks), 3)


def test_long_lists_of_coordinates_are_cut_short():
    with pytest.raises(ValueError, match=r"missing \[1, 2, 3, 4, 5, 6, 7, 8, ...\]"):
        Partition((Block("a", (0,)),), 1000)


@pytest.mark.parametrize("index", [np.arange(3), torch.arange(3), [0, 1, 2], range(3)])
def test_any_row_of_whole_numbers_is_an_index(index):
    block = Block("a", index)
    assert block.index == (0, 1, 2)
    assert Partition((block,), 3).num_blocks == 1


@pytest.mark.parametrize("index", [(0.0, 1.0), ("a",), np.zeros((2, 2), dtype=int), 3])
def test_other_indices_are_refused(index):
    with pytest.raises(ValueError, match="block 'a' must have a row of whole numbers"):
        Block("a", index)


def test_a_partition_shows_its_size_and_its_layers_in_a_line():
    layout = Layout((Site("one.weight", (3, 2)), Site("one.bias", (3,)), Site("scale", ())))
    text = repr(make_partition(layout))
    assert text == "<Partition of 10 parameters into 4 blocks of 1 to 3: 3 in one, 1 in scale>"
    alone = Partition(tuple(Block(f"b{i}", (i,)) for i in range(1000)), 1000)
    assert repr(alone) == "<Partition of 1000 parameters into 1000 blocks of 1: 1000 in no layer>"
    sites = tuple(Site(f"w{number}", ()) for number in range(30))
    deep = repr(make_partition(Layout(sites)))
    assert deep.endswith(", 1 in w7 and 22 more layers>")

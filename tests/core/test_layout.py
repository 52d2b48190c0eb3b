import pytest
import torch

from pyro_fnbg.core.layout import Layout, Site


def test_flatten_and_unflatten_are_inverse():
    layout = Layout((Site("w", (2, 3)), Site("s", ()), Site("b", (2,))))
    position = torch.arange(9.0)
    values = layout.unflatten(position)
    assert {name: tuple(value.shape) for name, value in values.items()} == {
        "w": (2, 3),
        "s": (),
        "b": (2,),
    }
    assert torch.equal(values["w"], torch.arange(6.0).reshape(2, 3))
    assert torch.equal(layout.flatten(values), position)


def test_many_positions_are_split_at_once_and_share_their_memory():
    layout = Layout((Site("w", (2, 3)), Site("s", ()), Site("b", (2,))))
    positions = torch.randn(5, 4, 9)
    values = layout.unflatten(positions)
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    assert shapes == {"w": (5, 4, 2, 3), "s": (5, 4), "b": (5, 4, 2)}
    for chain, draw in ((0, 0), (4, 3)):
        alone = layout.unflatten(positions[chain, draw])
        assert all(torch.equal(value[chain, draw], alone[name]) for name, value in values.items())
    values["s"].fill_(7.0)
    assert (positions[..., 6] == 7.0).all()
    # Every third draw of many, as a thinned chain keeps them
    thinned = layout.unflatten(positions[0, 1::2])
    assert torch.equal(thinned["w"], values["w"][0, 1::2])


def test_flat_order_is_the_order_of_sites_and_not_of_names():
    layout = Layout((Site("layer2.w", (1,)), Site("layer10.w", (1,)), Site("layer1.w", (1,))))
    flat = layout.flatten(
        {"layer1.w": torch.ones(1), "layer10.w": torch.zeros(1)}
        | {"layer2.w": torch.full((1,), 7.0)}
    )
    assert flat.tolist() == [7.0, 0.0, 1.0]


def test_coordinates_are_named_by_site_and_index():
    layout = Layout((Site("w", (2, 3)), Site("s", ())))
    names = [layout.coordinate_name(i) for i in range(layout.num_params)]
    assert names == ["w[0, 0]", "w[0, 1]", "w[0, 2]", "w[1, 0]", "w[1, 1]", "w[1, 2]", "s"]
    with pytest.raises(IndexError, match="7 parameters"):
        layout.coordinate_name(7)


def test_mixed_types_keep_each_sites_type_and_survive_the_round_trip():
    layout = Layout((Site("single", (2,), torch.float32), Site("double", (2,), torch.float64)))
    assert layout.dtype == torch.float64
    position = torch.full((4,), 0.1, dtype=torch.float64)
    rounded = layout.rounded(position)
    values = layout.unflatten(rounded)
    assert values["single"].dtype == torch.float32
    assert values["double"].dtype == torch.float64
    assert torch.equal(layout.flatten(values), rounded)
    assert rounded[2] == position[2]
    assert rounded[0] != position[0]

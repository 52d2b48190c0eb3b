import json

import pytest
import torch
from torch.distributions import HalfNormal

from pyro_fnbg.estimators.network import (
    as_words,
    from_words,
    network,
    site_shapes,
    unconstrained,
)


def make(prior_scale=2.0, likelihood="normal", scale=None, dtype=torch.float64):
    widths = (4, 9, 2 if scale == "network" else 1)
    return network(widths, "tanh", prior_scale, likelihood, scale, dtype)


def test_weights_are_scaled_by_the_nodes_below_and_biases_are_not():
    model = make()
    assert model.prior_scales == (2 / 4**0.5, 2 / 9**0.5)
    assert model.bias_prior_scales == (2.0, 2.0)
    assert make((1.0, 3.0)).prior_scales == (1 / 2, 1.0)
    assert make((1.0, 3.0)).bias_prior_scales == (1.0, 3.0)


def test_the_prior_of_an_output_does_not_depend_on_the_width():
    """Two linear layers of weights alone have an output of variance s^4 for a unit input."""
    torch.manual_seed(0)
    for width in (3, 300):
        model = network((1, width, 1), "identity", 2.0, "normal", 1.0, torch.float64)
        first, second = (
            scale * torch.randn(20_000 // width, width, dtype=torch.float64)
            for scale in model.prior_scales
        )
        variances = (first * second).sum(1) ** 2
        error = variances.std() / len(variances) ** 0.5
        assert abs(variances.mean() - 2.0**4) < 4.5 * error


@pytest.mark.parametrize("scale", [None, 0.3, "network"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_words_give_the_network_again(scale, dtype):
    model = make(scale=scale, dtype=dtype)
    again = from_words(json.loads(json.dumps(as_words(model))), dtype)
    assert as_words(again) == as_words(model)
    assert site_shapes(again) == site_shapes(model)
    if scale is None:
        assert again.observation_scale.scale == torch.ones((), dtype=dtype)
        assert again.observation_scale.scale.dtype == dtype
    assert ("obs_scale" in site_shapes(model)) == (scale is None)


def test_only_the_scale_is_bounded():
    values = {"layer1.bias": torch.tensor([-1.0]), "obs_scale": torch.tensor([0.5])}
    found = unconstrained(make(), values)
    assert found["layer1.bias"] is values["layer1.bias"]
    torch.testing.assert_close(found["obs_scale"], torch.log(torch.tensor([0.5])))
    assert isinstance(make().observation_scale, HalfNormal)

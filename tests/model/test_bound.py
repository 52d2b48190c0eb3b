import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.model.bound import BoundModel


def model(x, y, *rest, scale=1.0):
    pyro.sample("y", dist.Normal(x, scale), obs=y)


def test_a_trace_is_of_the_model_with_its_arguments():
    bound = BoundModel(model, (torch.zeros(3), torch.ones(3)), {"scale": torch.tensor(2.0)})
    site = bound.trace().nodes["y"]
    assert torch.equal(site["value"], torch.ones(3))
    assert torch.equal(site["fn"].scale, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((1, 2), {}, {"x": 1, "y": 2}),
        ((1,), {"scale": 3}, {"x": 1, "scale": 3}),
        ((1, 2, 4, 5), {}, {"x": 1, "y": 2, "rest": (4, 5)}),
        ((1,), {"other": 3}, {"number 1": 1, "other": 3}),
    ],
)
def test_arguments_have_the_models_names_or_numbers(args, kwargs, named):
    assert BoundModel(model, args, kwargs).named_arguments() == named


def test_arguments_are_described_by_type_and_shape():
    assert BoundModel(model).described() == "no arguments"
    bound = BoundModel(model, (torch.zeros(3, 2), torch.zeros(1).numpy()), {"scale": "one"})
    expected = "x: tensor of shape (3, 2) and type torch.float32, y: ndarray of shape (1,), "
    assert bound.described() == expected + "scale: str"


def test_the_arguments_of_a_module_have_the_names_of_its_forward():
    class Net(torch.nn.Module):
        def forward(self, x, y=None):
            return x

    assert set(BoundModel(Net(), (torch.ones(2), torch.ones(2))).named_arguments()) == {"x", "y"}

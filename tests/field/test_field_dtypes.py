"""Types and devices: what the model works in is what the draws are in."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, BayesianMLP
from pyro_fnbg.testing import assert_expectation
from support.data import normal
from support.drivers import drive, each_driver, stock
from support.engines import ENGINES


def regression(dtype, device="cpu"):
    """Linear regression with all priors of one type on one device."""

    def model(x, y):
        zeros = torch.zeros(3, dtype=dtype, device=device)
        w = pyro.sample("w", dist.Normal(zeros[None, :2], 1.0).to_event(2))
        b = pyro.sample("b", dist.Normal(zeros[:1], 1.0).to_event(1))
        s = pyro.sample("s", dist.HalfNormal(zeros[0] + 1.0))
        with pyro.plate("data", len(x)):
            mean = torch.nn.functional.linear(x, w, b).squeeze(-1)
            pyro.sample("y", dist.Normal(mean, s), obs=y)

    return model


@each_driver
def test_double_precision_stays_double_under_a_single_default(run):
    x = normal(20, 2).double()
    samples = run(FNBG(regression(torch.float64)), x, x[:, 0], draws=40).get_samples()
    assert {value.dtype for value in samples.values()} == {torch.float64}
    assert all((value != value[0]).any(0).all() for value in samples.values())
    assert torch.get_default_dtype() == torch.float32


@each_driver
@pytest.mark.parametrize("engine", ENGINES)
def test_networks_follow_their_data_into_double_precision(run, engine):
    kernel = FNBG(BayesianMLP([2, 3, 1], likelihood="normal"), engine=engine)
    x = normal(20, 2).double()
    samples = run(kernel, x, x[:, 0], draws=40).get_samples()
    assert {value.dtype for value in samples.values()} == {torch.float64}
    assert all((value != value[0]).any(0).all() for value in samples.values())


def test_steps_too_small_for_single_precision_are_made_in_double():
    """Around 1e8 single precision has steps of 8, and the posterior a spread of 0.01."""
    centre = torch.tensor(1e8, dtype=torch.float64)

    def model(y):
        mean = pyro.sample("mean", dist.Normal(centre, 1.0))
        pyro.sample("y", dist.Normal(mean, 0.01), obs=y)

    mcmc = drive(FNBG(model), centre + 0.5, draws=800, warmup=150)
    assert_expectation(mcmc.get_samples(group_by_chain=True)["mean"] - centre, 0.5 / 1.0001)


def test_sites_of_two_types_keep_their_own():
    def model(y):
        a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
        pyro.sample("y", dist.Normal(a.sum() + b, 1.0), obs=y)

    samples = drive(FNBG(model), torch.tensor(1.0)).get_samples()
    assert (samples["a"].dtype, samples["b"].dtype) == (torch.float32, torch.float64)
    # Pyro's driver joins all sites in one vector, which makes them wider and changes no value
    wider = stock(FNBG(model), torch.tensor(1.0)).get_samples()
    assert all(torch.equal(wider[name].to(value.dtype), value) for name, value in samples.items())


@each_driver
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_by_name(run, dtype):
    x = normal(20, 2).to(dtype)
    with pytest.raises(ValueError, match=rf"site 'w' has values of type {dtype}, must be.*float32"):
        run(FNBG(regression(dtype)), x, x[:, 0])


@each_driver
def test_a_network_in_half_precision_is_refused_by_name(run):
    x = normal(20, 2).bfloat16()
    kernel = FNBG(BayesianMLP([2, 2], likelihood="categorical"))
    with pytest.raises(ValueError, match=r"'layer1\.weight' has values of type torch\.bfloat16"):
        run(kernel, x, torch.arange(20) % 2)


@each_driver
def test_data_in_half_precision_may_meet_priors_in_single(run):
    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    y = normal(20, 2)[:, 0].half()
    assert run(FNBG(model), y).get_samples()["mean"].dtype == torch.float32


@each_driver
def test_a_model_that_changes_the_default_type_gets_what_it_asked_for(run):
    def model(y):
        torch.set_default_dtype(torch.float64)
        pyro.sample("y", dist.Normal(pyro.sample("a", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    assert run(FNBG(model), torch.tensor(1.0)).get_samples()["a"].dtype == torch.float64


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_driver
def test_draws_are_on_the_models_device_and_two_devices_are_named(run):
    x = normal(20, 2).cuda()
    start = {"w": torch.zeros(1, 2), "b": torch.zeros(1), "s": torch.zeros(())}
    kernel = FNBG(regression(torch.float32, "cuda"))
    samples = run(kernel, x, x[:, 0], initial_params=start).get_samples()
    assert all(value.is_cuda and (value != value[0]).any(0).all() for value in samples.values())
    with pytest.raises(RuntimeError, match="(?s)cuda.*cpu|cpu.*cuda"):
        run(kernel, x.cpu(), x[:, 0].cpu())

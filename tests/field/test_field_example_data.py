"""Troubles with example data: no network, no files, images as they come from files."""

import runpy
import socket
import sys
import time
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    fashion_mnist,
    marginal_predictive,
    mnist,
    read_noisy_xor,
)
from support.drivers import DRIVERS, WAYS
from support.images import write_images

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist.py"
N = 30
# Images and labels in the layout and the types of the real files
IMAGES = (97 * torch.arange(N * 28 * 28) % 251).reshape(N, 28, 28).to(torch.uint8)
LABELS = (torch.arange(N) % 10).to(torch.uint8)


@pytest.fixture
def tries(monkeypatch):
    """Let every connection fail at once, and count them."""
    found = []

    def refuse(*address, **_):
        found.append(address)
        raise OSError("this machine has no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return found


def sampled(driver, kernel, x, y):
    pyro.set_rng_seed(5)
    mcmc = driver(kernel, num_samples=4, warmup_steps=2, disable_progbar=True)
    mcmc.run(x, y)
    return mcmc.get_samples()


@pytest.mark.parametrize("read", [mnist, fashion_mnist, read_noisy_xor])
def test_missing_files_are_an_error_at_once_without_a_try_to_connect(read, tmp_path, tries):
    started = time.monotonic()
    with pytest.raises(FileNotFoundError, match=f"was not found: .*{tmp_path}.* lacks .*xpected"):
        read(tmp_path / "none")
    assert time.monotonic() - started < 5
    assert tries == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("read", [mnist, fashion_mnist])
def test_a_download_without_a_network_names_folder_and_cause(read, tmp_path, tries):
    pytest.importorskip("torchvision")
    with pytest.raises(OSError, match=rf"could not be downloaded into {tmp_path}.*no network"):
        read(tmp_path, download=True)
    assert tries


def test_the_example_ends_with_one_line_where_its_data_are_missing(tmp_path, monkeypatch, tries):
    monkeypatch.setattr(sys, "argv", ["mnist.py", "--data", str(tmp_path), "--smoke"])
    with pytest.raises(SystemExit, match=f"MNIST was not found: {tmp_path}.*download=True"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert tries == []


@WAYS
def test_small_files_in_the_layout_of_the_real_ones_stand_in_for_them(driver, engine, tmp_path):
    pytest.importorskip("torchvision")
    write_images(tmp_path, "MNIST")
    data = mnist(tmp_path)
    model = BayesianMLP([784, 2, 10])
    kernel = FNBG(model, blocks="layer", engine=engine)
    samples = sampled(driver, kernel, data.x_train, data.y_train)
    predicted = marginal_predictive(model, samples, data.x_test)
    assert predicted.shape == (len(data.x_test), 10)
    torch.testing.assert_close(predicted.sum(1), torch.ones(len(data.x_test)))


@WAYS
def test_scaled_images_with_byte_labels_are_sampled(driver, engine):
    x = IMAGES.flatten(1) / 255
    kernel = FNBG(BayesianMLP([784, 2, 10]), blocks="layer", engine=engine)
    samples = sampled(driver, kernel, x, LABELS)
    assert samples["layer1.weight"].shape == (4, 2, 784)
    same = sampled(
        driver, FNBG(BayesianMLP([784, 2, 10]), blocks="layer", engine=engine), x, LABELS.long()
    )
    assert torch.equal(samples["layer2.weight"], same["layer2.weight"])


AS_THEY_COME = {
    "bytes": (IMAGES.flatten(1), TypeError, r"torch\.uint8: convert and standardise"),
    "unflattened": (IMAGES / 255, ValueError, r"\(rows, 784\).* got \(30, 28, 28\)"),
    "with channels": (IMAGES[:, None] / 255, ValueError, r"\(rows, 784\).* got \(30, 1, 28, 28\)"),
    "arrays": ((IMAGES.flatten(1) / 255).numpy(), TypeError, "got ndarray: make one of all rows"),
}


@DRIVERS
@pytest.mark.parametrize(("x", "error", "words"), AS_THEY_COME.values(), ids=AS_THEY_COME)
def test_images_that_were_not_made_ready_are_refused_with_what_to_do(driver, x, error, words):
    with pytest.raises(error, match=f"x must be a floating-point torch tensor.*{words}"):
        sampled(driver, FNBG(BayesianMLP([784, 2, 10])), x, LABELS)


@DRIVERS
def test_a_hand_written_model_takes_images_and_labels(driver):
    def model(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(10, 784), 1.0).to_event(2))
        bias = pyro.sample("bias", dist.Normal(torch.zeros(10), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=x @ weight.mT + bias), obs=y)

    samples = sampled(driver, FNBG(model), IMAGES.flatten(1) / 255, LABELS)
    assert samples["weight"].shape == (4, 10, 784)

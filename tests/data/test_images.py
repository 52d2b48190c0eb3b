import gzip
import hashlib
import os
import re
import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch

from pyro_fnbg import fashion_mnist, mnist
from support.images import find_data, write_images

datasets = pytest.importorskip("torchvision.datasets")

READERS = {"MNIST": mnist, "FashionMNIST": fashion_mnist}
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
RAW = Path("MNIST") / "raw"


@pytest.fixture
def no_network(monkeypatch):
    """Let every connection fail, and note it."""
    tries = []

    def refuse(*_, **__):
        tries.append(1)
        raise URLError("this machine has no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    return tries


@pytest.mark.parametrize("name", READERS)
def test_training_pixels_standardise_both_sets(tmp_path, name):
    train, test, y_train, y_test = write_images(tmp_path, name)
    data = READERS[name](tmp_path)
    for x, images in ((data.x_train, train), (data.x_test, test)):
        expected = (images.reshape(len(images), 784) - train.mean()) / train.std()
        assert x.dtype == torch.float32
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5, atol=1e-6)
    # Were the test set standardised by its own pixels, this would be zero
    assert abs(float(data.x_test.mean())) > 0.01
    for y, labels in ((data.y_train, y_train), (data.y_test, y_test)):
        assert y.dtype == torch.int64
        assert y.tolist() == labels.tolist()


@pytest.mark.parametrize("name", READERS)
def test_real_data(name):
    data = READERS[name](find_data(f"{name}/raw"))
    assert data.x_train.shape == (60_000, 784)
    assert data.x_test.shape == (10_000, 784)
    assert data.y_train.bincount(minlength=10).min() > 5_000
    assert data.y_test.bincount(minlength=10).min() > 800
    assert float(data.x_train.mean(dtype=torch.float64)) == pytest.approx(0, abs=1e-6)
    variance = float(data.x_train.square().mean(dtype=torch.float64))
    assert variance == pytest.approx(1, abs=1e-6)
    assert float(data.x_test.mean()) != pytest.approx(0, abs=1e-4)


def test_folder_may_be_read_only_and_a_string(tmp_path):
    write_images(tmp_path, "MNIST")
    folders = [tmp_path, tmp_path / "MNIST", tmp_path / RAW]
    before = sorted(tmp_path.rglob("*"))
    for folder in folders:
        folder.chmod(0o555)
    try:
        data = mnist(str(tmp_path))
        again = mnist(tmp_path, download=True)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert all(map(torch.equal, data, again))
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_files_are_named_with_the_layout(tmp_path, no_network):
    write_images(tmp_path, "MNIST")
    (tmp_path / RAW / FILES[3]).unlink()
    message = f"MNIST was not found: {tmp_path / RAW} lacks {FILES[3]}. Expected is"
    with pytest.raises(FileNotFoundError, match=re.escape(message)) as caught:
        mnist(tmp_path)
    assert f"{tmp_path}/MNIST/raw/ with {', '.join(FILES)}" in str(caught.value)
    with pytest.raises(FileNotFoundError, match="FashionMNIST was not found"):
        fashion_mnist(tmp_path)
    assert no_network == []


def test_missing_torchvision_says_how_to_install_it(tmp_path, monkeypatch):
    write_images(tmp_path, "MNIST")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"pip install torchvision.*extra `images`"):
        mnist(tmp_path)


def test_failed_download_names_cause_and_folder(tmp_path, no_network):
    message = f"MNIST could not be downloaded into {tmp_path / RAW}: .*this machine has no network"
    with pytest.raises(OSError, match=message):
        mnist(tmp_path, download=True)
    assert no_network


def test_download_into_a_folder_that_cannot_be_made(tmp_path, no_network):
    (tmp_path / "MNIST").write_text("a file, not a folder")
    with pytest.raises(OSError, match=re.escape(f"into {tmp_path / RAW}: ")):
        mnist(tmp_path, download=True)


def test_download_unpacks_what_is_there_already(tmp_path, no_network, monkeypatch):
    write_images(tmp_path, "MNIST")
    expected = mnist(tmp_path)
    resources = []
    for file in FILES:
        packed = gzip.compress((tmp_path / RAW / file).read_bytes())
        (tmp_path / RAW / f"{file}.gz").write_bytes(packed)
        (tmp_path / RAW / file).unlink()
        resources.append((f"{file}.gz", hashlib.md5(packed).hexdigest()))
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    assert all(map(torch.equal, mnist(tmp_path, download=True), expected))
    assert no_network == []


def empty(content):
    return b""


def cut_short(content):
    return content[:-1]


def web_page(content):
    return b"<html><body>Sign in to use this network</body></html>"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [empty, cut_short, web_page])
def test_damaged_files_are_named(tmp_path, file, damage, no_network):
    write_images(tmp_path, "MNIST")
    path = tmp_path / RAW / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=re.escape(file)) as caught:
        mnist(tmp_path)
    assert f"in {tmp_path / RAW} is damaged" in str(caught.value)


def test_damage_is_reported_when_the_download_completed_the_files(
    tmp_path, no_network, monkeypatch
):
    write_images(tmp_path, "MNIST")
    (tmp_path / RAW / FILES[0]).write_bytes(b"")
    missing = tmp_path / RAW / FILES[3]
    content = missing.read_bytes()
    missing.unlink()
    monkeypatch.setattr(datasets.MNIST, "download", lambda self: missing.write_bytes(content))
    with pytest.raises(ValueError, match=f"{FILES[0]} or .* is damaged"):
        mnist(tmp_path, download=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": np.zeros((5, 28, 27))}, r"images have shape \(5, 28, 27\)"),
        ({"test": np.zeros((0, 28, 28))}, "t10k-images-idx3-ubyte or t10k-labels.* is damaged"),
        ({"y_train": np.zeros(3)}, r"images have shape \(40, 28, 28\), labels \(3,\)"),
        ({"y_test": np.full(15, 10)}, "there is a label 10"),
    ],
)
def test_contents_that_do_not_fit(tmp_path, changes, message):
    write_images(tmp_path, "MNIST", **changes)
    with pytest.raises(ValueError, match=message):
        mnist(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_no_damage(tmp_path):
    write_images(tmp_path, "MNIST")
    (tmp_path / RAW / FILES[0]).chmod(0)
    with pytest.raises(PermissionError, match=FILES[0]):
        mnist(tmp_path)

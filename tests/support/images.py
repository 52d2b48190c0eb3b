"""Image files as torchvision lays them out, and where real data may lie."""

import os
from pathlib import Path

import numpy as np
import pytest

# Folder with real data sets; else the folder `shared/data` beside the repository is tried.
VARIABLE = "PYRO_FNBG_DATA"


def find_data(inner: str) -> Path:
    """Return the folder of real data sets that holds `inner`, or skip the test."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get(VARIABLE) or beside)
    if not (folder / inner).is_dir():
        pytest.skip(f"no real data: {folder} has no {inner}; set {VARIABLE} to a folder that has")
    return folder


def write_images(
    root: Path,
    name: str,
    train: np.ndarray | None = None,
    test: np.ndarray | None = None,
    y_train: np.ndarray | None = None,
    y_test: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Write a small set of images below `root` and return it; what is not given is made up."""
    generator = np.random.default_rng(0)
    # The test images are brighter, so that their own mean would standardise them differently
    train = generator.integers(0, 200, (40, 28, 28)) if train is None else train
    test = generator.integers(50, 256, (15, 28, 28)) if test is None else test
    y_train = np.arange(len(train)) % 10 if y_train is None else y_train
    y_test = np.arange(len(test)) % 10 if y_test is None else y_test
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for part, images, labels in (("train", train, y_train), ("t10k", test, y_test)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return train, test, y_train, y_test


def idx(values: np.ndarray) -> bytes:
    """Write unsigned bytes in the idx format: type 8, dimensions, sizes, values."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()

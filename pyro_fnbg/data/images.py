"""The image data of the paper's experiments, read through torchvision."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["LabelledImages", "fashion_mnist", "mnist"]

# Torchvision's names, alike for both sets.
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_HEIGHT, _WIDTH, _CLASSES, _GREY_LEVELS = 28, 28, 10, 256


class LabelledImages(NamedTuple):
    """Hold the training and test rows of a set of images.

    Attributes:
        x_train: Training images, float32 of shape (num_train, 784): 28 rows of pixels in a row.
        y_train: Training labels 0 to 9, int64 of shape (num_train,).
        x_test: Test images, float32 of shape (num_test, 784).
        y_test: Test labels 0 to 9, int64 of shape (num_test,).

    Example:
        >>> import torch
        >>> images, labels = torch.zeros(5, 784), torch.arange(5)
        >>> LabelledImages(images, labels, images[:2], labels[:2]).x_test.shape
        torch.Size([2, 784])
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def mnist(root: str | PathLike[str], download: bool = False) -> LabelledImages:
    """Read MNIST, 60,000 training and 10,000 test images of handwritten digits.

    Images are flattened, and standardised with one mean and one standard deviation: those of all
    pixels of the *training* images. Test images get the same two numbers, so that equal images stay
    equal; the paper's code standardised each set by its own pixels instead. (Scaling the pixels to
    0 to 1 first would change nothing.)

    The files are torchvision's, unpacked: `root/MNIST/raw/train-images-idx3-ubyte`,
    `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`. They may lie
    in a folder that cannot be written to, and may hold fewer images than the originals.

    Args:
        root: Folder that holds, or will hold, the folder `MNIST`.
        download: Whether torchvision may fetch, into `root`, files that are missing.

    Returns:
        The two sets, as a named tuple of tensors on the CPU.

    Raises:
        ImportError: Torchvision, the optional extra `images`, is not installed.
        FileNotFoundError: Files are missing and `download` is false.
        OSError: Files could not be downloaded or read.
        ValueError: Files are damaged, or are not what their names say.

    References:
        LeCun, Bottou, Bengio and Haffner (1998), "Gradient-based learning applied to document
        recognition".

    Examples:
        >>> mnist("no/such/folder")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        FileNotFoundError: MNIST was not found
    """
    return _load("MNIST", root, download)


def fashion_mnist(root: str | PathLike[str], download: bool = False) -> LabelledImages:
    """Read FashionMNIST, 60,000 training and 10,000 test images of ten kinds of clothing.

    All is as in `mnist`, errors too, with files in `root/FashionMNIST/raw`.

    Args:
        root: Folder that holds, or will hold, the folder `FashionMNIST`.
        download: As in `mnist`.

    Returns:
        As in `mnist`.

    References:
        Xiao, Rasul and Vollgraf (2017), "Fashion-MNIST: a novel image dataset for benchmarking
        machine learning algorithms".

    Examples:
        >>> fashion_mnist("no/such/folder")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        FileNotFoundError: FashionMNIST was not found
    """
    return _load("FashionMNIST", root, download)


def _load(name: str, root: str | PathLike[str], download: bool) -> LabelledImages:
    root = Path(root).expanduser()
    folder = root / name / "raw"
    missing = _missing(folder)
    if missing and not download:
        raise FileNotFoundError(
            f"{name} was not found: {folder} lacks {', '.join(missing)}. Expected is torchvision's "
            f"layout, {root}/{name}/raw/ with {', '.join(_FILES)}, unpacked; download=True, or "
            "--download in the examples, fetches what is missing"
        )
    dataset_class = _torchvision_class(name)
    if missing:
        _download(dataset_class, root, folder)
    train_images, y_train = _read(dataset_class, root, folder, is_training=True)
    test_images, y_test = _read(dataset_class, root, folder, is_training=False)
    mean, deviation = _pixel_moments(train_images)
    x_train, x_test = (
        images.flatten(1).float().sub_(mean).div_(deviation)
        for images in (train_images, test_images)
    )
    return LabelledImages(x_train, y_train, x_test, y_test)


def _missing(folder: Path) -> list[str]:
    return [file for file in _FILES if not (folder / file).is_file()]


def _torchvision_class(name: str) -> Any:
    try:
        from torchvision import datasets  # type: ignore[import-untyped]
    # A torchvision made for another torch fails with a RuntimeError.
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"{name} is read through torchvision, which could not be imported ({error}); install "
            "it with `pip install torchvision`, or with this package as its extra `images`: "
            "`pip install '.[images]'` in the project's folder"
        ) from error
    return getattr(datasets, name)


def _download(dataset_class: Any, root: Path, folder: Path) -> None:
    try:
        dataset_class(str(root), download=True)
    # What torchvision and the network raise has no common class. If the files have arrived all
    # the same, then reading them failed, and `_read` says so in its own words.
    except Exception as error:
        if _missing(folder):
            cause = " ".join(str(error).split()) or repr(error)
            raise OSError(
                f"{dataset_class.__name__} could not be downloaded into {folder}: {cause}"
            ) from error


def _read(dataset_class: Any, root: Path, folder: Path, is_training: bool) -> tuple[Tensor, Tensor]:
    try:
        dataset = dataset_class(str(root), train=is_training)
        images, labels = dataset.data, dataset.targets
        if images.shape[1:] != (_HEIGHT, _WIDTH) or labels.shape != images.shape[:1]:
            raise ValueError(
                f"images have shape {tuple(images.shape)}, labels {tuple(labels.shape)}"
            )
        if labels.max() >= _CLASSES:  # read from unsigned bytes, so never below zero
            raise ValueError(f"there is a label {labels.max()}")
    except OSError:
        raise
    # Torchvision asserts, indexes and reshapes; which of them fails depends on the damage.
    except Exception as error:
        files = " or ".join(_FILES[:2] if is_training else _FILES[2:])
        raise ValueError(
            f"{files} in {folder} is damaged; delete both and fetch them again: {error!r}"
        ) from error
    return images, labels


def _pixel_moments(images: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of all grey levels, from exact counts of each."""
    counts = torch.bincount(images.flatten(), minlength=_GREY_LEVELS).double()
    levels = torch.arange(_GREY_LEVELS, dtype=torch.float64)
    mean = counts @ levels / counts.sum()
    variance = counts @ (levels - mean).square() / counts.sum()
    return float(mean), float(variance.sqrt())

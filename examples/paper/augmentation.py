"""Train on transformed images and predict untouched ones (Table 4, and Figure 10 of Appendix D).

Rotation within 30 degrees, a 9 x 9 Gaussian blur with sigma 1 to 1.5 at probability 0.9, or
inversion at probability 0.5, one chain each in batches of 3,000. Three schemes:

- "once", the paper's: each image is transformed once, in the original's place;
- "variants": several variants of each image are made beforehand, and batches are drawn from all,
  so that an image comes in another variant every time;
- "one observation": every batch has all variants of as many images as before, and the log
  likelihoods of an image's variants are averaged. (Batches are drawn from all variants at a
  likelihood factor of 1 / variants: the same in expectation, and the same sum over an epoch.)

Test images are standardised by their own pixels, as in the paper's code, and by the training
images'. The column "on MNIST" scores chains of FashionMNIST on the digits, as the paper's code
did.
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torchvision import transforms

from common import (
    SETS,
    TUNING,
    WHICH_SETS,
    WHICH_SETTINGS,
    Chains,
    image_chains,
    image_data,
    image_kernel,
    read_options,
    sample,
    standardised,
    write_figure,
    write_table,
)
from pyro_fnbg import score_classes
from pyro_fnbg.data.images import LabelledImages

TRANSFORMS = {
    "rotation": transforms.RandomRotation(30),
    "blur": transforms.RandomApply([transforms.GaussianBlur(9, (1.0, 1.5))], p=0.9),
    "inversion": transforms.RandomInvert(p=0.5),
}
SCHEMES = ("once", "variants", "one observation")
SHARE = 0.05


def main() -> None:
    """Run the chains, and write the table and the pictures."""
    options = read_options(
        __doc__,
        schemes={"nargs": "+", "default": SCHEMES, "help": f"among {', '.join(SCHEMES)}"},
        **WHICH_SETTINGS,
        **WHICH_SETS,
        variants={"type": int, "default": 4, "help": "of each image, but for the paper's scheme"},
    )
    if options.quick:
        options.settings = options.settings[-1:]
    rows: list[dict[str, Any]] = []
    tests = {name: image_data(options, name) for name in SETS}
    for name in options.sets:
        data = tests[name]
        pixels = as_pixels(data.x_train)
        for settings in options.settings:
            chains = image_chains(name, data, options, SHARE, settings)
            rows.append(row(name, "none", "-", settings, chains, pixels, tests, options))
            for transform in TRANSFORMS:
                for scheme in options.schemes:
                    chains, seen = augmented(
                        name, data, pixels, transform, scheme, settings, options
                    )
                    rows.append(
                        row(name, transform, scheme, settings, chains, seen, tests, options)
                    )
    write_table(options, "augmentation", rows, ("set", "transform", "scheme", "settings", "seed"))
    examples(tests, options)


def as_pixels(x: Tensor) -> Tensor:
    """Return the bytes that standardised images were made from: they have black and white ones."""
    shares = (x - x.min()) / (x.max() - x.min())
    return (255 * shares).round().to(torch.uint8).reshape(-1, 1, 28, 28)


def transformed(pixels: Tensor, transform: str, seed: int) -> Tensor:
    """Transform each image by itself."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.stack([TRANSFORMS[transform](image) for image in pixels])


def augmented(
    name: str,
    data: LabelledImages,
    pixels: Tensor,
    transform: str,
    scheme: str,
    settings: str,
    options: argparse.Namespace,
) -> tuple[Chains, Tensor]:
    """Run a chain on transformed images, and return it with the images."""
    variants = 1 if scheme == "once" else options.variants
    seen = torch.cat(
        [transformed(pixels, transform, 10 * options.seed + v) for v in range(variants)]
    )
    batch = round(SHARE * len(pixels))
    changed: dict[str, Any] = {"batch_size": batch}
    if scheme == "one observation":
        changed = {"batch_size": variants * batch, "likelihood_scale": 1 / variants}
    chains = sample(
        f"{name}-{batch}-{settings}-{transform}-{scheme.replace(' ', '-')}",
        image_kernel(len(seen), SHARE, settings, **changed),
        standardised(seen.flatten(1).float(), seen.float()),
        data.y_train.repeat(variants),
        options,
        burn_in=None if settings == "paper" or options.quick else TUNING,
    )
    return chains, seen


def row(
    name: str,
    transform: str,
    scheme: str,
    settings: str,
    chains: Chains,
    seen: Tensor,
    tests: dict[str, LabelledImages],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Score a chain on untouched test images."""

    def accuracy(of: str, by_itself: bool) -> float:
        test = tests[of].x_test
        pixels = as_pixels(test).flatten(1).float()
        x = standardised(pixels, pixels if by_itself else seen.float())
        return 100 * score_classes(chains.predict(0, x), tests[of].y_test)["accuracy"]

    return {
        "set": name,
        "transform": transform,
        "scheme": scheme,
        "settings": settings,
        "accuracy (%), by own pixels": accuracy(name, True),
        "by the training images'": accuracy(name, False),
        "on MNIST": accuracy("MNIST", True),
        "sweeps": chains.sweeps,
        "seconds": chains.seconds,
        "seed": options.seed,
    }


def examples(tests: dict[str, LabelledImages], options: argparse.Namespace) -> None:
    """Draw the first images of each set, untouched and transformed."""
    count = 6
    figure, panels = plt.subplots(4, 2 * count, figsize=(11, 4), layout="constrained")
    for place, name in enumerate(SETS):
        pixels = as_pixels(tests[name].x_train)[:count]
        kinds = {"none": pixels} | {t: transformed(pixels, t, options.seed) for t in TRANSFORMS}
        for line, (kind, images) in zip(panels, kinds.items(), strict=True):
            for panel, image in zip(line[place * count :], images, strict=False):
                panel.imshow(image[0], cmap="gray", vmin=0, vmax=255)
                panel.set_xticks([], [])
                panel.set_yticks([], [])
            line[0].set_ylabel(kind)
        panels[0, place * count].set_title(name, loc="left")
    write_figure(options, "augmentation", figure)


if __name__ == "__main__":
    main()

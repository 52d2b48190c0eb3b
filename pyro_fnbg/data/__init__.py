"""The data of the paper's experiments."""

from pyro_fnbg.data.images import LabelledImages, fashion_mnist, mnist
from pyro_fnbg.data.xor import NoisyXOR, noisy_xor, read_noisy_xor

__all__ = [
    "LabelledImages",
    "NoisyXOR",
    "fashion_mnist",
    "mnist",
    "noisy_xor",
    "read_noisy_xor",
]

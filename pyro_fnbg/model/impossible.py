"""Errors of a model by which the values of its latent sites have probability zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from pyro_fnbg.core.explaining import explain

__all__ = ["MAX_DRAWS", "drawn_again", "is_impossible"]

# Draws from the prior, at most, until the model can be evaluated at one
MAX_DRAWS = 20
# A matrix that is no covariance or is singular, or a factorisation that does not converge. Pyro's
# HMC and NUTS give probability zero where torch raises so; NumPy's is that of models in NumPy.
_LINEAR_ALGEBRA = (torch.linalg.LinAlgError, np.linalg.LinAlgError)  # type: ignore[attr-defined]

Result = TypeVar("Result")


def is_impossible(error: Exception) -> bool:
    """Whether an error says no more than that a model has no density at some values.

    That is a linear-algebra error, and the one by which PyTorch's validation refuses the parameters
    of a distribution, which models ask for by ``validate_args=True``; Pyro's distributions use the
    same. Anything else is a bug in the model, of whatever type, and must reach its author.

    Example:
        >>> is_impossible(torch.linalg.LinAlgError("the input is not positive-definite"))
        True
        >>> is_impossible(RuntimeError("shapes cannot be multiplied"))
        False
    """
    words = str(error)
    is_refused = words.startswith("Expected parameter ") and "but found invalid values" in words
    return isinstance(error, _LINEAR_ALGEBRA) or (type(error) is ValueError and is_refused)


def drawn_again(run: Callable[[], Result]) -> Result:
    """Run a model that draws its latent sites until it draws possible ones.

    Parameters that are refused twice in the same words, which show their values, do not depend on
    the draws, and are not tried again.

    Raises:
        Exception: The model's own error, if it is none of those, or if no try is possible.
    """
    words = ""
    for number in range(1, MAX_DRAWS + 1):
        try:
            return run()
        except Exception as error:
            is_same = str(error) == words and not isinstance(error, _LINEAR_ALGEBRA)
            if is_same or not is_impossible(error):
                raise
            if number == MAX_DRAWS:
                explain(
                    error,
                    f"so it was at each of {MAX_DRAWS} draws of the latent sites from their prior",
                )
                raise
            words = str(error)
    raise AssertionError("unreachable")

import math
from fractions import Fraction

import numpy as np
import pytest

from pyro_fnbg.core.checks import as_finite


@pytest.mark.parametrize("value", [3, 0.5, Fraction(1, 2), np.float32(0.25), np.int8(7)])
def test_real_numbers_become_floats(value):
    assert as_finite(value) == float(value)


@pytest.mark.parametrize(
    "value", [None, True, "1", math.nan, math.inf, -math.inf, 1j, [1.0], 10**400, -(10**400)]
)
def test_all_else_is_none(value):
    assert as_finite(value) is None

"""Likelihoods of rows, compiled by Numba, for the fused engine.

Written so that scores keep their digits where a label is nearly certain: a log ratio adds up the
errors of equal rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import compiled, exp, log, log1p

__all__ = ["log_likelihood"]

Array = NDArray[Any]


@compiled()
def log_likelihood(
    code: int,
    outputs: Array,
    first: int,
    start: int,
    labels: Array,
    label_start: int,
    scale: float,
    least_scale: float,
    factor: float,
    sums: Array,
    target: Array,
) -> None:
    """Score rows by the likelihood of a code, times a factor.

    Args:
        code: Which likelihood.
        outputs: Holds the outputs in rows from ``first`` on, one a class or label column.
        first: Its first row.
        start: Its first column.
        labels: Labels in their columns from ``label_start`` on; a class is a whole number.
        label_start: Their first column.
        scale: Standard deviation of "normal"; 0 where the outputs give it, after those of means.
        least_scale: The smallest that they can give.
        factor: Power of the likelihood.
        sums: Scratch memory, as long as the target.
        target: Takes the scores.
    """
    real, n = outputs.dtype.type, len(target)
    one, zero, times = real(1.0), real(0.0), real(factor)
    if code == 0:  # bernoulli
        logits, label = outputs[first, start : start + n], labels[0, label_start : label_start + n]
        for r in range(n):
            logit = logits[r]
            size = logit if logit > zero else -logit
            # As a sum of what is not negative, whose first part is 0 on the label's own side
            share = one - label[r] if logit > zero else label[r]
            target[r] = -times * (share * size + log1p(exp(-size)))
    elif code == 1:  # categorical
        # The largest logit, and the sum of exp(logit - largest) over the others: with its own 1
        # that sum would lose what the others add, where one class is nearly certain
        for r in range(n):
            target[r] = outputs[first, start + r]
        sums[:] = zero
        for k in range(1, len(outputs) - first):
            logits = outputs[first + k, start : start + n]
            for r in range(n):
                largest, logit = target[r], logits[r]
                is_larger = logit > largest
                share = exp(largest - logit if is_larger else logit - largest)
                sums[r] = (sums[r] + one) * share if is_larger else sums[r] + share
                target[r] = logit if is_larger else largest
        for r in range(n):
            chosen = np.uintp(first) + np.uintp(labels[0, label_start + r])
            behind = target[r] - outputs[chosen, np.uintp(start + r)]
            target[r] = -times * (behind + log1p(sums[r]))
    elif scale > 0:  # normal
        columns = len(labels)
        inverse, half = real(1.0 / scale), real(0.5)
        constant = real(columns * (math.log(scale) + 0.5 * math.log(2.0 * math.pi)))
        sums[:] = zero
        for k in range(columns):
            means = outputs[first + k, start : start + n]
            values = labels[k, label_start : label_start + n]
            for r in range(n):
                error = (values[r] - means[r]) * inverse
                sums[r] += error * error
        for r in range(n):
            target[r] = times * (-half * sums[r] - constant)
    else:  # normal, with a standard deviation a row
        columns = len(labels)
        half, least = real(0.5), real(least_scale)
        target[:] = real(columns * 0.5 * math.log(2.0 * math.pi))
        for k in range(columns):
            means = outputs[first + k, start : start + n]
            others = outputs[first + columns + k, start : start + n]
            values = labels[k, label_start : label_start + n]
            for r in range(n):
                other = others[r]
                size = other if other > zero else -other
                above = other if other > zero else zero
                spread = least + (above + log1p(exp(-size)))
                error = (values[r] - means[r]) / spread
                target[r] += log(spread) + half * error * error
        for r in range(n):
            target[r] = -times * target[r]

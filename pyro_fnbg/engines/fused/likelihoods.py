"""Likelihoods of rows, compiled by Numba, for the fused engine.

Written so that scores keep their digits where a label is nearly certain: a log ratio adds up the
errors of equal rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import compiled, exp, expm1, log, log1p
from pyro_fnbg.engines.fused.memory import Head

__all__ = ["log_likelihood"]

Array = NDArray[Any]


@compiled()
def log_likelihood(
    head: Head,
    outputs: Array,
    first: int,
    start: int,
    labels: Array,
    label_start: int,
    scale: float,
    factor: float,
    sums: Array,
    target: Array,
) -> None:
    """Score rows by a likelihood, times a factor.

    Args:
        head: Which likelihood, and its constants.
        outputs: Holds the outputs in rows from ``first`` on.
        first: Its first row.
        start: Its first column.
        labels: Labels in their columns from ``label_start`` on; a class is a whole number.
        label_start: Their first column.
        scale: Of "normal" and "student"; 0 where the outputs give it, after those of locations.
        factor: Power of the likelihood.
        sums: Scratch memory, as long as the target.
        target: Takes the scores.
    """
    n = len(target)
    real = outputs.dtype.type
    zero, half, one, times = real(0.0), real(0.5), real(1.0), real(factor)
    if head.code == 0:  # bernoulli
        logits, label = outputs[first, start : start + n], labels[0, label_start : label_start + n]
        for r in range(n):
            logit = logits[r]
            size = logit if logit > zero else -logit
            # As a sum of what is not negative, whose first part is 0 on the label's own side
            share = one - label[r] if logit > zero else label[r]
            target[r] = -times * (share * size + log1p(exp(-size)))
    elif head.code == 1:  # categorical
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
    elif head.code == 2 and scale > 0:  # normal, with one standard deviation
        columns = len(labels)
        inverse = real(1.0 / scale)
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
    elif head.code == 4:  # poisson; see poisson_log_probs
        columns = len(labels) // 2
        for r in range(n):
            target[r] = labels[2 * columns, label_start + r]
        for k in range(columns):
            log_rates = outputs[first + k, start : start + n]
            counts = labels[k, label_start : label_start + n]
            logs = labels[columns + k, label_start : label_start + n]
            for r in range(n):
                count, log_rate = counts[r], log_rates[r]
                away = log_rate - logs[r]
                # A square reaches infinity, where the exponential ends
                root = exp(half * log_rate)
                near = count * expm1(away)
                more = near if (away < one) & (count > zero) else root * root - count
                target[r] += count * away - more
        for r in range(n):
            target[r] = times * target[r]
    else:  # student, and normal with a standard deviation a row
        columns = len(labels)
        least, per_degree = real(head.least_scale), real(1.0 / head.degrees_of_freedom)
        power = real(0.5 * (head.degrees_of_freedom + 1.0))
        inverse, constant = one, columns * head.log_normalizer
        if scale > 0:
            inverse = real(1.0 / scale)
            constant -= columns * math.log(scale)
        target[:], errors = real(-constant), sums
        for k in range(columns):
            locations = outputs[first + k, start : start + n]
            values = labels[k, label_start : label_start + n]
            if scale > 0:
                for r in range(n):
                    errors[r] = (values[r] - locations[r]) * inverse
            else:
                others = outputs[first + columns + k, start : start + n]
                for r in range(n):
                    other = others[r]
                    if head.has_exponential_scale:
                        # A square reaches infinity, where the exponential ends
                        root = exp(half * other)
                        spread = least + root * root
                    else:
                        size = other if other > zero else -other
                        above = other if other > zero else zero
                        spread = least + (above + log1p(exp(-size)))
                    errors[r] = (values[r] - locations[r]) / spread
                    target[r] += log(spread)
            if head.code == 2:
                for r in range(n):
                    target[r] += half * errors[r] * errors[r]
            else:
                for r in range(n):
                    target[r] += power * log1p(errors[r] * errors[r] * per_degree)
        for r in range(n):
            target[r] = -times * target[r]

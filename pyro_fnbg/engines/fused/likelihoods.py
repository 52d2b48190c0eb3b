"""Likelihoods of rows, compiled by Numba, for the fused engine.

Written so that scores keep their digits where a label is nearly certain: a log ratio adds up the
errors of equal rows.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from pyro_fnbg.engines.fused.elementwise import compiled, exp, expm1, log, log1p, whole_lanes
from pyro_fnbg.engines.fused.memory import Head

__all__ = ["log_likelihood"]

Array = NDArray[Any]


@compiled()
def log_likelihood(
    head: Head,
    outputs: Array,
    labels: Array,
    scale: float,
    factor: float,
    scratch: Array,
    target: Array,
) -> None:
    """Score rows by a likelihood, times a factor.

    Args:
        head: Which likelihood, and its constants.
        outputs: Outputs x rows.
        labels: Columns of labels x rows; a class is a whole number.
        scale: Of "normal" and "student"; 0 where the outputs give it, after those of locations.
        factor: Power of the likelihood.
        scratch: Two rows of memory to write to.
        target: Takes the scores, a multiple of LANES; all other rows are no shorter.
    """
    n = whole_lanes(len(target))
    sums = scratch[0, :n]
    real = outputs.dtype.type
    zero, half, one, times = real(0.0), real(0.5), real(1.0), real(factor)
    if head.code == 0:  # bernoulli
        logits, label = outputs[0, :n], labels[0, :n]
        for r in range(n):
            logit = logits[r]
            size = logit if logit > zero else -logit
            # As a sum of what is not negative, whose first part is 0 on the label's own side
            share = one - label[r] if logit > zero else label[r]
            target[r] = -times * (share * size + log1p(exp(-size)))
    elif head.code == 1:  # categorical
        # The largest logit, and the sum of exp(logit - largest) over the others: with its own 1
        # that sum would lose what the others add, where one class is nearly certain
        chosen = scratch[1, :n]
        for r in range(n):
            target[r] = outputs[0, r]
            chosen[r] = target[r]
        sums[:] = zero
        for k in range(1, len(outputs)):
            logits = outputs[k, :n]
            for r in range(n):
                largest, logit = target[r], logits[r]
                is_larger = logit > largest
                share = exp(largest - logit if is_larger else logit - largest)
                sums[r] = (sums[r] + one) * share if is_larger else sums[r] + share
                target[r] = logit if is_larger else largest
            # The label's logit: to look it up would be slower than to go by it
            label, values = real(k), labels[0, :n]
            for r in range(n):
                logit, before = logits[r], chosen[r]
                chosen[r] = logit if values[r] == label else before
        for r in range(n):
            target[r] = -times * ((target[r] - chosen[r]) + log1p(sums[r]))
    elif head.code == 2 and scale > 0:  # normal, with one standard deviation
        columns = len(labels)
        inverse = real(1.0 / scale)
        constant = real(columns * (math.log(scale) + 0.5 * math.log(2.0 * math.pi)))
        sums[:] = zero
        for k in range(columns):
            means = outputs[k, :n]
            values = labels[k, :n]
            for r in range(n):
                error = (values[r] - means[r]) * inverse
                sums[r] += error * error
        for r in range(n):
            target[r] = times * (-half * sums[r] - constant)
    elif head.code == 4:  # poisson; see poisson_log_probs
        columns = len(labels) // 2
        for r in range(n):
            target[r] = labels[2 * columns, r]
        for k in range(columns):
            log_rates = outputs[k, :n]
            counts = labels[k, :n]
            logs = labels[columns + k, :n]
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
            locations = outputs[k, :n]
            values = labels[k, :n]
            if scale > 0:
                for r in range(n):
                    errors[r] = (values[r] - locations[r]) * inverse
            else:
                others = outputs[columns + k, :n]
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

"""What a prediction of rows is: a distribution over classes, or over numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_fnbg.core.checks import as_finite, as_probability, check_count, shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ClassPrediction", "NumberPrediction", "Prediction", "ScoreCourse", "joined"]


@dataclass(frozen=True, eq=False)
class ScoreCourse:
    """Hold scores of predictions from the first draws of chains, by how many draws those are.

    Attributes:
        lengths: Numbers of draws of each chain.
        by_chain: Scores by name, each of shape ``(chains, lengths)``, of every chain alone.
        pooled: Scores by name, of the same shape, of the first chain, of the first two together,
            and so on: the last line is of all chains.

    Example:
        >>> one, both = torch.tensor([[-0.9, -0.7], [-0.8, -0.8]]), torch.tensor([[-0.9, -0.7]] * 2)
        >>> course = ScoreCourse((10, 100), {"lppd": one}, {"lppd": both})
        >>> course.table().shape  # two chains and all pooled
        (3, 2)
    """

    lengths: tuple[int, ...]
    by_chain: Mapping[str, Tensor]
    pooled: Mapping[str, Tensor]

    def table(self) -> pd.DataFrame:
        """Tabulate the scores: a line for each chain and for all of them, a column a length."""
        import pandas as pd

        lines = {}
        for name, pooled in self.pooled.items():
            for chain, scores in enumerate(self.by_chain[name]):
                lines[name, f"chain {chain}"] = scores.numpy(force=True)
            lines[name, "pooled"] = pooled[-1].numpy(force=True)
        table = pd.DataFrame.from_dict(lines, orient="index", columns=list(self.lengths))
        table.index = pd.MultiIndex.from_tuples(lines, names=["score", "draws of"])
        return table.rename_axis(columns="draws")


@dataclass(frozen=True, eq=False, repr=False)
class ClassPrediction:
    """Hold the predictive distribution of each row over classes, averaged over draws.

    The average is exact given the draws. Entropies are in nats.

    Attributes:
        probabilities: Shape ``(rows, classes)``; P(0) and P(1) for a Bernoulli response.
        expected_entropy: Entropy of the probabilities of one draw, averaged over draws: shape
            ``(rows,)``. What is left of the uncertainty if the network were known.
        num_draws: Number of draws averaged over.
        temperature: What the logarithms of the averaged probabilities were divided by: 1 unless
            one was fitted.
        course: Accuracy and mean log predictive probability ("lppd") of fewer draws, if asked for.

    Example:
        >>> p = ClassPrediction(torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]), num_draws=2)
        >>> p.entropy, p.mutual_information  # one draw says class 0 for sure, the other class 1
        (tensor([0.6931]), tensor([0.6931]))
    """

    probabilities: Tensor
    expected_entropy: Tensor
    num_draws: int
    temperature: float = 1.0
    course: ScoreCourse | None = None

    def __repr__(self) -> str:
        rows, classes = self.probabilities.shape
        what = f"{rows} rows, {classes} classes, {self.num_draws} draws"
        tempered = "" if self.temperature == 1.0 else f", temperature {self.temperature:.4g}"
        return f"<ClassPrediction: {what}{tempered}>"

    @property
    def labels(self) -> Tensor:
        """The most probable class of each row, shape ``(rows,)``."""
        return self.probabilities.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the most probable class, shape ``(rows,)``."""
        return self.probabilities.amax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the averaged probabilities: the whole uncertainty, shape ``(rows,)``."""
        entropies: Tensor = torch.special.entr(self.probabilities)
        return entropies.sum(-1)

    @property
    def mutual_information(self) -> Tensor:
        """What a label would tell of the network: entropy less its expectation, ``(rows,)``.

        It is large where draws are sure of different classes (Houlsby and others, 2011, "Bayesian
        active learning for classification and preference learning").
        """
        return (self.entropy - self.expected_entropy).clamp_min(0.0)

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the most probable classes of each row and their probabilities.

        Args:
            count: How many, from 1 to the number of classes.

        Returns:
            Classes and probabilities, both ``(rows, count)``, the most probable class first.
        """
        check_count("count", count, 1, self.probabilities.shape[-1])
        found = self.probabilities.topk(count, dim=-1)
        return found.indices, found.values

    def with_temperature(self, temperature: float) -> ClassPrediction:
        """Return the prediction with probabilities to the power of 1 / temperature.

        They are renormalised. Below 1 predictions become surer, above 1 less sure; the labels stay.
        The temperature is one of the averaged probabilities, and no draw has it: so the expected
        entropy and the mutual information are NaN then. Temperatures multiply: the result's
        ``temperature`` is this one times that of the prediction. Scores of fewer draws are left
        out, since they have no temperature.

        Args:
            temperature: A positive number, as from
                `pyro_fnbg.prediction.temperature.fit_temperature`.

        Raises:
            ValueError: If it is something else.

        Example:
            >>> p = ClassPrediction(torch.tensor([[0.2, 0.8]]), torch.zeros(1), num_draws=2)
            >>> p.with_temperature(0.5).probabilities  # 1 / 17 and 16 / 17
            tensor([[0.0588, 0.9412]])
        """
        number = as_finite(temperature)
        if number is None or number <= 0:
            raise ValueError(f"temperature must be a positive number, got {shown(temperature)}")
        logs = self.probabilities.double().log()
        # The largest becomes 0, so that no temperature makes it infinite
        powers = (logs - logs.amax(-1, keepdim=True)) / number
        return replace(
            self,
            probabilities=torch.softmax(powers, -1).to(self.probabilities),
            expected_entropy=torch.full_like(self.expected_entropy, torch.nan),
            temperature=self.temperature * number,
            course=None,
        )


@dataclass(frozen=True, eq=False, repr=False)
class NumberPrediction:
    """Hold the predictive distribution of each row's numbers or counts: a mixture over draws.

    Means and variances are exact given the draws. So are quantiles of Normal, Student's t and
    Poisson responses; those of others are of one response drawn for each draw, which is said in
    ``has_exact_quantiles``.
    Shapes are ``(rows,)``, or ``(rows, outputs)`` where each row has several numbers.

    Attributes:
        mean: Of the mixture.
        data_variance: Variance of the response under one draw, averaged over draws: noise of the
            data.
        network_variance: Variance over draws of the mean response: what is not known of the
            network.
        quantiles: By their level, each of the mean's shape.
        has_exact_quantiles: Whether they are those of the mixture itself.
        num_draws: Number of draws.
        log_density: Of the observed numbers under the mixture, shape ``(rows,)``, jointly over
            outputs; None if none were given.
        course: Root mean square error ("rmse") and mean log predictive density ("lppd") of fewer
            draws, if asked for.

    Example:
        >>> p = NumberPrediction(torch.zeros(1), torch.ones(1), torch.ones(1) * 3, num_draws=9)
        >>> p.scale
        tensor([2.])
    """

    mean: Tensor
    data_variance: Tensor
    network_variance: Tensor
    num_draws: int
    quantiles: Mapping[float, Tensor] = field(default_factory=dict)
    has_exact_quantiles: bool = True
    log_density: Tensor | None = None
    course: ScoreCourse | None = None

    def __repr__(self) -> str:
        rows, *outputs = self.mean.shape
        several = "".join(f", {count} outputs" for count in outputs)
        return f"<NumberPrediction: {rows} rows{several}, {self.num_draws} draws>"

    @property
    def variance(self) -> Tensor:
        """Of the mixture: that of the data and that of the network together."""
        return self.data_variance + self.network_variance

    @property
    def scale(self) -> Tensor:
        """Standard deviation of the mixture."""
        return self.variance.sqrt()

    def interval(self, probability: float) -> tuple[Tensor, Tensor]:
        """Return the central interval of a probability, between two of the quantiles.

        Raises:
            ValueError: If the prediction was made without them; names the levels that it has.
        """
        probability = as_probability("probability", probability)
        levels = [(1 - probability) / 2, (1 + probability) / 2]
        nearest = [_same_level(self.quantiles, level) for level in levels]
        lower, upper = (None if level is None else self.quantiles[level] for level in nearest)
        if lower is None or upper is None:
            raise ValueError(
                f"an interval of probability {probability} needs the quantiles {levels[0]:.6g} and "
                f"{levels[1]:.6g}; this prediction has {list(self.quantiles)}: pass them as "
                "quantiles= to predict"
            )
        return lower, upper


def _same_level(levels: Iterable[float], wanted: float) -> float | None:
    """Return the level that is the wanted one but for rounding; near 0 and 1 they lie close."""
    allowed = 1e-6 * min(wanted, 1 - wanted) + 4 * sys.float_info.epsilon
    found = min(levels, key=lambda level: abs(level - wanted), default=None)
    return found if found is not None and abs(found - wanted) <= allowed else None


Prediction = ClassPrediction | NumberPrediction


def joined(parts: Sequence[Prediction]) -> Prediction:
    """Join predictions of some rows and of the next, which are of one kind and the same draws."""
    names = [field.name for field in fields(parts[0])]
    values = {name: [getattr(part, name) for part in parts] for name in names}
    found: dict[str, Any] = {
        name: torch.cat(value) for name, value in values.items() if isinstance(value[0], Tensor)
    }
    if isinstance(parts[0], NumberPrediction):
        found["quantiles"] = {
            level: torch.cat([quantiles[level] for quantiles in values["quantiles"]])
            for level in parts[0].quantiles
        }
    return replace(parts[0], **found)

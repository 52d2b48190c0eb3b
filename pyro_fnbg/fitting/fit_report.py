"""What a warm start returns: initial values, and how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pyro_fnbg.fitting.annealing import Annealed
from pyro_fnbg.fitting.descent import Course

__all__ = ["FitReport", "WarmStart"]


@dataclass(frozen=True, eq=False)
class FitReport:
    """Say how the initial values of C chains were found.

    Attributes:
        method: In words.
        seconds: Time that all chains took together.
        num_steps: Number of steps that each made.
        best_steps: Step that each chain's values are from, shape ``(C,)``; 0 is the random start.
        losses: The course of the losses, by chain.
        batch_size: Rows a step, N for all; None for a model without rows.
        num_held_out: Rows that no step saw.
        from_prior: Sites without a gradient, which were drawn from their priors.
        at_median: Sites that act through the priors of others alone, at the medians of their own.
        num_setbacks: How often each chain lost its density, and went on with smaller steps from its
            best place; shape ``(C,)``.
        annealing: The course of annealing after the fit, if there was any.
    """

    method: str
    seconds: float
    num_steps: int
    best_steps: Tensor
    losses: Course
    batch_size: int | None
    num_held_out: int
    from_prior: tuple[str, ...]
    at_median: tuple[str, ...]
    num_setbacks: Tensor
    annealing: Annealed | None

    def lines(self) -> list[str]:
        """Say it in lines of text, one a chain after the first ones."""
        steps = f"{self.num_steps} steps"
        if self.annealing is not None:
            steps += f" and {int(self.annealing.steps[-1])} of annealing"
        lines = [f"{self.method}, {steps} in {self.seconds:.1f} s"]
        rows = "no rows" if self.batch_size is None else f"{self.batch_size} rows a step"
        lines.append(f"{rows}, {self.num_held_out} held out")
        if self.from_prior:
            lines.append(f"drawn from the prior, without a gradient: {list(self.from_prior)}")
        if self.at_median:
            lines.append(f"held at the median of the prior: {list(self.at_median)}")
        course = self.losses
        for chain, best in enumerate(self.best_steps.tolist()):
            at = int((course.steps == best).nonzero()[0])
            words = [f"chain {chain}: step {best}" if best else f"chain {chain}: its random start"]
            words += [f"training loss {float(course.training[chain, at]):.4g}"] if best else []
            if course.held_out is not None:
                first, last = (float(course.held_out[chain, place]) for place in (0, at))
                words.append(f"held-out loss {first:.4g} -> {last:.4g}")
            if int(self.num_setbacks[chain]):
                words.append(f"{int(self.num_setbacks[chain])} setbacks")
            if self.annealing is not None:
                first, last = self.annealing.log_densities[chain, [0, -1]].tolist()
                words.append(f"log density {first:.4g} -> {last:.4g} by annealing")
            lines.append(", ".join(words))
        return lines


class WarmStart(dict[str, Tensor]):
    """Map each latent site to unconstrained initial values, and say how they were found.

    With several chains the values have a dimension for them in front: what ``initial_params`` of
    ``MultiChainMCMC`` and of Pyro's ``MCMC`` take.

    Attributes:
        report: How they were found.
    """

    def __init__(self, values: Mapping[str, Tensor], report: FitReport) -> None:
        super().__init__(values)
        self.report = report

    @property
    def seconds(self) -> float:
        """Time that all chains took together."""
        return self.report.seconds

    @property
    def losses(self) -> Course:
        """The course of the losses, by chain."""
        return self.report.losses

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.items())
        return "\n  ".join([f"WarmStart of {shapes}", *self.report.lines()])

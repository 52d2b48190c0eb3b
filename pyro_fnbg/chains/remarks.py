"""What users are told when a run begins, of what would otherwise go unseen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from pyro_fnbg.config import Config
from pyro_fnbg.core.blocks import first_few
from pyro_fnbg.core.moves.conjugate import Conjugate
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.engines.trace import TraceEngine

__all__ = ["remarks_on", "tell"]

# A vector of more entries than this is a block too wide for a random walk
WIDE = 50
# Above this nominal temperature little is left of what all the data say
HOT = 10.0


def remarks_on(config: Config, problem: Problem, unused: Sequence[str]) -> tuple[str, ...]:
    """Put into words what of a run is slow, or is not what it seems, though it is no error.

    Args:
        config: What was asked for.
        problem: What it came to.
        unused: Latent sites that nothing observed depends on.
    """
    return tuple(_remarks(config, problem, unused))


def _remarks(config: Config, problem: Problem, unused: Sequence[str]) -> Iterator[str]:
    plan, is_default = problem.plan, (config.parts, config.max_block_size) == (None, None)
    if problem.engine.name == TraceEngine.name and config.engine == "auto":
        yield (
            "engine='auto' came to the slowest engine, 'trace', where "
            f"{problem.engine_reason}: take that out of the model, as the page 'Engines' says, or "
            "give engine='trace' if you mean it"
        )
    if unused:
        yield (
            f"nothing observed was found to depend on latent sites {first_few(unused)}, so their "
            "draws are those of the prior: let the model use them, or leave them out"
        )
    wide = [
        block
        for block, move in zip(problem.partition.blocks, problem.moves.of_block, strict=True)
        if block.size > WIDE and block.node is None and move.name != Conjugate.name
    ]
    if wide and is_default and isinstance(config.blocks, str) and config.blocks == "node":
        named = first_few([f"{block.name} ({block.size} entries)" for block in wide])
        yield (
            f"sites {named} are vectors, and so one block each, which is accepted or rejected as a "
            "whole and moves slowly: cut them by max_block_size=10, or sample weights in matrices, "
            "whose rows are blocks"
        )
    if config.likelihood_scale is None and plan.temperature > HOT:
        yield (
            f"the nominal likelihood temperature is {plan.temperature:.4g}: {plan.batch_size} of "
            f"{plan.num_rows} rows count as if they were all, so the chain sees little of what the "
            "data say; take larger batches or likelihood_scale='full', or give "
            "likelihood_scale='batch' if you mean it"
        )


def tell(config: Config, problem: Problem, is_given: bool) -> None:
    """Warn of what is to be said of a run, once, when it begins.

    Args:
        config: What was asked for.
        problem: What it came to.
        is_given: Whether its chains start, untuned, at given values.
    """
    remarks = list(problem.remarks)
    if is_given and problem.tuned_sweeps == 0 and config.proposal_scale is None:
        remarks.append(
            "the run starts at initial_params, and nothing tunes its proposal scales, which are as "
            "wide as the prior: next to nothing may be accepted; use warmup_steps, or take along "
            "the scales of the run before, by "
            "proposal_scale=kernel.diagnostics()['proposal scale by block']"
        )
    for words in remarks:
        warnings.warn(words, UserWarning, stacklevel=3)

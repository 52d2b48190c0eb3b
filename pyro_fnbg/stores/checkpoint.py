"""Checkpoints: the states of chains in a file of plain arrays, which is replaced as a whole.

Nothing in it is pickled. NumPy's archives have a checksum for every array, so a file that was cut
short or edited does not pass for a checkpoint.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.core.moves.base import MoveState
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState, Tally

__all__ = ["DamagedStore", "Saved", "read_checkpoint", "restored", "write_checkpoint"]

FORMAT = 2
# What is saved of a chain under names of its own
NAMED = ("tail", "learnt", "noise")

Arrays = Mapping[str, NDArray[Any]]


class DamagedStore(ValueError):
    """Say what is wrong with a store."""


class Saved(NamedTuple):
    """Hold what a checkpoint has of one chain.

    Attributes:
        state: Where it is; its tensors are on the CPU, and what moves learnt is in plain tuples.
        log_density: Of its position on its last sweep's batch, by the model; NaN before the first.
        tail: Its draws and their statistics that do not fill a chunk of the store, by variable.
        learnt: What its moves tell of their states, by name, each of shape ``(num_blocks,)``.
        noise: How noisy its decisions were found to be, likewise; empty until its run has ended.
    """

    state: ChainState
    log_density: float
    tail: Arrays
    learnt: Arrays
    noise: Arrays


def write_checkpoint(path: Path, run: str, chains: Mapping[int, Saved]) -> None:
    """Write the states of some chains of a run; until all is on disk, an older file stays."""
    arrays, entries = dict[str, NDArray[Any]](), []
    for number, saved in chains.items():
        state, named = saved.state, {name: getattr(saved, name) for name in NAMED}
        entries.append(
            {
                "chain": number,
                "seed": state.key.seed,
                "stream": state.key.chain,
                "sweeps": state.sweeps,
                "log_density": saved.log_density,
                "moves": [len(learnt) for learnt in state.adaptation],
                "warmup_sweeps": state.warmup_tally.sweeps,
                "draw_sweeps": state.draw_tally.sweeps,
                **{group: list(values) for group, values in named.items()},
            }
        )
        tensors = {
            "position": state.position,
            "warmup_accepted": state.warmup_tally.accepted,
            "warmup_non_finite": state.warmup_tally.non_finite,
            "draw_accepted": state.draw_tally.accepted,
            "draw_non_finite": state.draw_tally.non_finite,
        }
        for move, learnt in enumerate(state.adaptation):
            tensors |= {f"move {move} {place}": value for place, value in enumerate(learnt)}
        arrays |= {f"{number} {name}": value.cpu().numpy() for name, value in tensors.items()}
        for group, values in named.items():
            arrays |= {f"{number} {group} {place}": v for place, v in enumerate(values.values())}
    header = json.dumps({"format": FORMAT, "run": run, "chains": entries}).encode()
    whole = path.with_suffix(".part")
    with whole.open("wb") as file:
        # NumPy's types leave keyword arguments of any name out
        np.savez(file, header=np.frombuffer(header, np.uint8), **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    whole.replace(path)


def read_checkpoint(path: Path) -> tuple[str, dict[int, Saved]]:
    """Read the name of a run, and the states of its chains.

    Raises:
        DamagedStore: If the file is cut short, was edited, or is of another version.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
            if header["format"] != FORMAT:
                raise DamagedStore(
                    f"{path.name} must be a checkpoint of format {FORMAT}, which this version "
                    f"reads, got format {header['format']!r}"
                )
            chains = {entry["chain"]: _read_chain(entry, file) for entry in header["chains"]}
            return str(header["run"]), chains
    except DamagedStore:
        raise
    except (EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise DamagedStore(
            f"{path.name} must be a whole checkpoint, and cannot be read ({error}): it was cut "
            "short or changed"
        ) from error


def _read_chain(entry: Mapping[str, Any], file: Any) -> Saved:
    number = entry["chain"]

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(file[f"{number} {name}"])

    def tally(phase: str) -> Tally:
        accepted, non_finite = tensor(f"{phase}_accepted"), tensor(f"{phase}_non_finite")
        return Tally(accepted, non_finite, entry[f"{phase}_sweeps"])

    state = ChainState(
        key=ChainKey(entry["seed"], entry["stream"]),
        sweeps=entry["sweeps"],
        position=tensor("position"),
        adaptation=tuple(
            tuple(tensor(f"move {move} {place}") for place in range(count))
            for move, count in enumerate(entry["moves"])
        ),
        warmup_tally=tally("warmup"),
        draw_tally=tally("draw"),
    )
    tail, learnt, noise = (
        {name: file[f"{number} {group} {place}"] for place, name in enumerate(entry[group])}
        for group in NAMED
    )
    return Saved(state, entry["log_density"], tail, learnt, noise)


def restored(
    adaptation: Sequence[MoveState], like: Sequence[MoveState]
) -> tuple[MoveState, ...] | None:
    """Give what moves had learnt the form that they work with; None if it is not theirs."""
    shapes = [[(value.shape, value.dtype) for value in learnt] for learnt in adaptation]
    if shapes != [[(value.shape, value.dtype) for value in learnt] for learnt in like]:
        return None
    return tuple(type(own)(*learnt) for own, learnt in zip(like, adaptation, strict=True))

"""What is told of a store in a few words and numbers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_fnbg.chains.report import ChainReport, warn_of_blocks
from pyro_fnbg.core.batches import EXACT_TARGET
from pyro_fnbg.results.attributes import BATCH_NOISE
from pyro_fnbg.results.function_space import PredictionDiagnostics, diagnostics_of_predictions
from pyro_fnbg.stores.contents import Contents
from pyro_fnbg.stores.hierarchy import POSTERIOR

__all__ = ["LayerRow", "Summary", "number_of"]

# Predictions are diagnosed of so many rows that they are no more numbers than these: a matter of
# seconds, as ArviZ takes some for a million
MAX_NUMBERS = 2**21
# Vehtari and others (2021) advise to use draws only where R-hat is below
MAX_R_HAT = 1.01


@dataclass(frozen=True)
class LayerRow:
    """Hold what is known of the decisions in one layer, over the chains.

    Attributes:
        layer: Its name.
        rate: Share of accepted candidates, the mean of the chains.
        least: That of the chain with the least.
        largest: That of the chain with the largest.
        reversed_share: Share of decisions that another batch would reverse; None if not measured.
    """

    layer: str
    rate: float
    least: float
    largest: float
    reversed_share: float | None


class Summary:
    """Say in words what a store holds.

    Args:
        contents: The store.
    """

    def __init__(self, contents: Contents) -> None:
        self.contents, self.attributes = contents, contents.attributes

    @cached_property
    def reports(self) -> Sequence[ChainReport]:
        """What is told of each chain."""
        return self.contents.reports

    @property
    def asked(self) -> int:
        """Draws of each chain that the run was asked for."""
        return int(self.attributes["num_samples"])

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end."""
        return min(self.contents.counts) >= self.asked

    @property
    def target(self) -> str:
        """What the chains target."""
        return str(self.attributes["target"])

    @property
    def progress(self) -> str:
        """How far the chains are."""
        contents = self.contents
        if contents.num_draws == 0:
            sweeps = [one.state.sweeps for one in contents.saved.values()]
            return (
                f"no draws yet: the chains have made {_range(sweeps)} of "
                f"{number_of(self.attributes['warmup_steps'], 'sweep')} of warmup"
            )
        of_each = f"{contents.num_draws:,} of {number_of(self.asked, 'draw')} of each chain"
        if len(contents.chains) == len(contents.counts):
            return of_each
        return f"{of_each} that is shown; {_range(contents.counts)} of all"

    @property
    def facts(self) -> dict[str, str]:
        """What the run is, in a few lines."""
        attributes, contents = self.attributes, self.contents
        num_chains = contents.archive.num_chains
        shown = f"{len(contents.chains)} of {num_chains}"
        files, num_bytes = _on_disk(contents.archive.path)
        rows = number_of(attributes["num_rows"], "row")
        found = {
            "chains": str(num_chains) if len(contents.chains) == num_chains else shown,
            "draws": self.progress,
            "state": "complete"
            if self.is_complete
            else "not complete: the run is under way, was stopped or was killed",
            "warmup": number_of(attributes["warmup_steps"], "sweep"),
            "thin": f"{number_of(attributes['thin'], 'sweep')} a draw",
            "batches": f"{attributes['batch_size']:,} of {rows}",
            "blocks": f"{len(contents.archive.constants['report']['blocks']):,}",
            "moves": str(contents.archive.constants["identity"]["moves"]),
            "engine": str(contents.archive.constants["identity"]["engine"]),
            "data": ", ".join(
                f"{name} {tuple(values.shape)} {values.dtype}"
                for name, values in contents.observed_data.items()
            ),
            "on disk": f"{_size(num_bytes)} in {number_of(files, 'file')}",
        }
        return {name: words for name, words in found.items() if words}

    @property
    def origin(self) -> dict[str, str]:
        """With what the draws were made, and from which seeds."""
        attributes = self.attributes
        return {
            "made": f"{attributes['created_at']}, at the start or when it last went on",
            "versions": (
                f"{attributes['creation_library']} {attributes['creation_library_version']}, "
                f"Pyro {attributes['pyro_version']}, torch {attributes['torch_version']}"
            ),
            "seed": str(attributes["seed"]),
            "random streams": str(attributes["random_streams"]),
        }

    @property
    def sites(self) -> dict[str, str]:
        """Shape and type of one draw of each site."""
        return {
            one.name: f"{one.shape} {one.dtype}"
            for one in self.contents.archive.variables.values()
            if one.group == POSTERIOR
        }

    @property
    def layers(self) -> list[LayerRow]:
        """The decisions by layer; none before the first draw."""
        if not self.reports:
            return []
        rates = [report.by_layer(report.acceptance_rates) for report in self.reports]
        noise = [
            report.by_layer(values)
            for report in self.reports
            for words, values in report.batch_noise.items()
            if BATCH_NOISE[words] == "share_reversed_by_another_batch"
        ]
        return [
            LayerRow(
                layer,
                float(np.mean([own[layer] for own in rates])),
                min(own[layer] for own in rates),
                max(own[layer] for own in rates),
                float(np.nanmean([own[layer] for own in noise])) if noise else None,
            )
            for layer in rates[0]
        ]

    @property
    def rows_diagnosed(self) -> NDArray[np.intp]:
        """Rows of the stored predictions that are diagnosed, all where memory allows it."""
        (values,) = self.contents.predictions.values()
        num_rows = values.sizes["row"]
        kept = max(1, min(num_rows, MAX_NUMBERS * num_rows // values.size))
        return np.unique(np.linspace(0, num_rows - 1, kept).round().astype(np.intp))

    @cached_property
    def diagnosed(self) -> tuple[PredictionDiagnostics, str] | None:
        """Diagnostics of the stored predictions, and of which these are; None if there are none."""
        predictions = self.contents.predictions
        if not predictions:
            return None
        (values,), rows = predictions.values(), self.rows_diagnosed
        read = torch.from_numpy(values[:, :, rows].values)
        num_rows = values.sizes["row"]
        which = f"{len(rows):,} of " if len(rows) < num_rows else ""
        which += (
            f"{number_of(num_rows, 'row')}, under {number_of(values.sizes['draw'], 'draw')} of each"
        )
        which += f" of {number_of(len(read), 'chain')}"
        return diagnostics_of_predictions(read), which

    @property
    def diagnosed_lines(self) -> list[str]:
        """The worst of the diagnostics; of one chain, what does not compare chains."""
        if self.diagnosed is None:
            return []
        diagnostics, _ = self.diagnosed
        lines = str(diagnostics).splitlines()[1:]
        of_one = tuple(
            f"{word} " for word in ("least ess_bulk:", "least ess_tail:", "largest mcse:")
        )
        return [one for one in lines if diagnostics.num_chains > 1 or one.startswith(of_one)]

    @property
    def cautions(self) -> list[str]:
        """What readers are to be warned of."""
        contents, found = self.contents, list[str]()
        if not self.is_complete:
            found.append(f"the run is not complete: {self.progress}")
        left_out = [k for k in range(contents.archive.num_chains) if k not in contents.chains]
        if left_out:
            found.append(
                f"chains {left_out} have so few draws that they are left out: all others have more"
            )
        if self.target != EXACT_TARGET:
            temperature = self.attributes["nominal_likelihood_temperature"]
            found.append(
                "the chains target something else than the model's posterior: the nominal "
                f"likelihood temperature is {temperature:.4g}"
            )
        if self.reports:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                warn_of_blocks(self.reports)
            found += [str(one.message) for one in told]
        if contents.num_draws and len(contents.chains) == 1:
            found.append("there is one chain: whether others would agree with it is not known")
        return found + self._cautions_of_predictions()

    def _cautions_of_predictions(self) -> list[str]:
        if self.diagnosed is None:
            return []
        found, r_hat = [], self.diagnosed[0].summary["r_hat"]
        if not self.contents.predictions.attrs["is_current"]:
            found.append(
                "the stored predictions are older than the draws: store_predictions makes new ones"
            )
        if r_hat > MAX_R_HAT:
            found.append(
                f"R-hat of predictions is up to {r_hat:.3g}, above {MAX_R_HAT}: the chains have "
                "not come to agree on what they predict"
            )
        return found


def _on_disk(path: Path) -> tuple[int, int]:
    """Count files and their bytes; those that a run under way puts away meanwhile are left out."""
    sizes = []
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:
                continue
    return len(sizes), sum(sizes)


def _size(num_bytes: int) -> str:
    """Write a number of bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} bytes"


def number_of(count: int, word: str) -> str:
    """Write a number of things."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _range(counts: Sequence[int]) -> str:
    """Write the least and the largest of some counts."""
    least, largest = min(counts), max(counts)
    return f"{least:,}" if least == largest else f"{least:,} to {largest:,}"

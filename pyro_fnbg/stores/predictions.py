"""Predictions of some rows under the draws of a store, kept beside them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from pyro_fnbg.core.bars import progress_bar
from pyro_fnbg.core.checks import check_flag
from pyro_fnbg.prediction.predictive import predictive_probabilities
from pyro_fnbg.prediction.responses import ClassResponse
from pyro_fnbg.prediction.sources import find_source
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.hierarchy import CHUNK_BYTES, PREDICTIONS
from pyro_fnbg.stores.samples import open_samples

__all__ = ["store_predictions"]

# Draws and their predictions are in memory up to so many bytes at a time
PIECE_BYTES = 32_000_000


def store_predictions(
    store: str | os.PathLike[str],
    model: Callable[..., Any],
    x: Tensor,
    *,
    progress: bool = True,
) -> None:
    """Compute what each draw of a store predicts for some rows, and keep it in the store.

    Exact, as ``predictive_probabilities``, some draws at a time. ``open_store`` then has a group
    ``predictions`` with ``probability``, ``(chain, draw, row, class)``, for a response that is a
    class, and ``mean``, ``(chain, draw, row)`` or ``(chain, draw, row, output)``, elsewhere.
    ``pyro-fnbg info`` and ``report`` diagnose chains by it, as ``diagnose_predictions`` does.

    A run may be under way, and may go on later; predictions stay those of the draws that were there
    now. The attribute ``is_current`` of the group says whether they are still of all that
    ``open_store`` shows. Calling this again replaces them.

    Args:
        store: The store.
        model: The model, which is not in a store, as in ``predictive_probabilities``.
        x: Inputs of some rows, rows first. Choose rows that matter, and not all alike; draws x rows
            x classes numbers go to disk.
        progress: Whether to show a bar on long work.

    Raises:
        FileNotFoundError: If there is no store.
        TypeError: As in ``predictive_probabilities``.
        ValueError: As there; or if the store has no draws yet, was changed, or is of another
            format.

    Example:
        >>> import tempfile
        >>> from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, open_store
        >>> model = BayesianMLP([2, 3, 1], likelihood="bernoulli")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/run.zarr"
        ...     mcmc = MultiChainMCMC(FNBG(model), 8, store=path, disable_progbar=True)
        ...     mcmc.run(torch.randn(20, 2), torch.arange(20) % 2)
        ...     store_predictions(path, model, torch.randn(5, 2))
        ...     dict(open_store(path)["predictions"].sizes)
        {'chain': 1, 'draw': 8, 'row': 5, 'class': 2}
    """
    check_flag("progress", progress)
    samples = open_samples(store)
    one = samples.read(slice(0, 1))
    first = find_source(model, one, x).first
    is_of_classes, shape = isinstance(first, ClassResponse), first.means.shape[1:]
    name, last = ("probability", "class") if is_of_classes else ("mean", "output")
    sizes = (samples.num_chains, samples.num_draws // samples.num_chains, *shape)
    num_bytes = first.means[0].nbytes + sum(values.nbytes for values in one.values())
    with (
        _beside(samples.path) as part,
        progress_bar(sizes[0] * sizes[1], progress, desc="predict", unit=" draws", delay=2) as bar,
    ):
        array = _made(part, name, ("chain", "draw", "row", last)[: len(sizes)], sizes, first.means)
        array.attrs["chains"] = list(samples.chains)
        chunk = array.chunks[1]
        # Whole chunks, so that none is written twice
        at_a_time = chunk * max(1, PIECE_BYTES // (num_bytes * chunk))
        for place in range(sizes[0]):
            for start in range(0, sizes[1], at_a_time):
                stop = min(start + at_a_time, sizes[1])
                draws = samples.read(slice(place * sizes[1] + start, place * sizes[1] + stop))
                found = predictive_probabilities(model, draws, x, progress=False)
                array[place, start:stop] = found.cpu().numpy()
                bar.update(stop - start)
        Archive(samples.path, is_read_only=True).put(part, PREDICTIONS)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Have a place beside the store, where a run that begins does not clear up."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _made(
    path: Path, name: str, dims: tuple[str, ...], sizes: tuple[int, ...], like: Tensor
) -> Any:
    """Make an array for predictions in a group of its own."""
    import zarr
    from zarr.codecs import ZstdCodec

    a_draw = max(1, like[0].nbytes)
    return zarr.create_group(path).create_array(
        name,
        shape=sizes,
        chunks=(1, min(sizes[1], max(1, CHUNK_BYTES // a_draw)), *sizes[2:]),
        dtype=str(like.dtype).removeprefix("torch."),
        fill_value=torch.nan,
        compressors=[ZstdCodec(level=1, checksum=True)],
        dimension_names=list(dims),
    )

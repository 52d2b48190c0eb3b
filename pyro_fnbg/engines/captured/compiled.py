"""The captured engine by torch's compiler, which makes few large operations of many small ones."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fnbg.core.bars import past_the_lock_of_bars
from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.compiling import while_compiling
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.moves.joint import JointMoves
from pyro_fnbg.engines.captured.engine import CapturedEngine
from pyro_fnbg.engines.captured.parts import Function
from pyro_fnbg.graphs.capture import Captured

__all__ = ["CompiledEngine", "Compiler"]

# Threads that compile would be missing in a process that is forked later, which waits for them; and
# numbers are rounded where the model rounds them
OPTIONS: dict[str, Any] = {"compile_threads": 1, "emulate_precision_casts": True}
# Torch's compiler fails where two threads compile at once
_ONE_AT_A_TIME = threading.RLock()


class Compiler:
    """Compile functions of tensors, each when it is first called.

    A function is for tensors of the shapes, the dtypes and the device of its first call.

    Attributes:
        count: Functions compiled so far.
        seconds: How long that took.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def __call__(self, function: Function) -> Function:
        """Return what compiles a function at its first call, and calls what came out."""
        compiled: Function | None = None

        def call(*values: Tensor) -> tuple[Tensor, ...]:
            nonlocal compiled
            # It is compiled for the strides that it is given, which differ by what values came from
            own = [value.contiguous() for value in values]
            if compiled is None:
                compiled = self._compiled(function, own)
            return tuple(compiled(*own))

        return call

    def _message(self) -> AbstractContextManager[None]:
        """Tell of compiling, once, if that takes long."""
        words = "operations of the model (some seconds for each of its sites)"
        return nullcontext() if self.count else while_compiling(words)

    def _compiled(self, function: Function, values: Sequence[Tensor]) -> Function:
        """Compile for tensors like these.

        Raises:
            RuntimeError: If torch's compiler cannot; says what it says.
        """
        started = time.perf_counter()
        with _ONE_AT_A_TIME, torch.no_grad(), _in_peace(), self._message():
            # Most of what it is given is what another gave, and needs no copy then
            graph = make_fx(lambda *given: [one.contiguous() for one in function(*given)])(*values)
            try:
                # Only here: it loads much, and makes a folder, of what most runs do not need
                from torch import _inductor

                # Not torch.compile, whose checks of what it is given take longer than most blocks
                found: Function = cast("Any", _inductor.compile(graph, list(values), OPTIONS))
            except Exception as error:
                reason = str(error).strip().splitlines() or [type(error).__name__]
                raise RuntimeError(f"torch's compiler fails: {reason[0]}") from error
        self.count += 1
        self.seconds += time.perf_counter() - started
        return found


@contextmanager
def _in_peace() -> Iterator[None]:
    """Keep to itself what torch says of its own, and wait for nobody's progress bar."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    kept = logger.level
    # There may be no GPU: nothing is compiled for one
    logger.setLevel(logging.ERROR)
    try:
        with past_the_lock_of_bars(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(kept)


class CompiledEngine(CapturedEngine):
    """Sweep as the captured engine does, by compiled operations.

    Takes the same decisions, up to rounding. Each part is compiled when it is first run: those of a
    chain alone at set-up, those of several chains together in their first sweep.

    Args:
        captured: The model's computation.
        layout: Its latent sites.
        partition: The blocks in sweep order.
        moves: The move of each block.

    Attributes:
        compiler: What compiles, and for how long it has.
    """

    name = "compiled"

    def __init__(
        self, captured: Captured, layout: Layout, partition: Partition, moves: JointMoves
    ) -> None:
        self.compiler = Compiler()
        super().__init__(captured, layout, partition, moves)

    def _prepare(self, function: Function) -> Function:
        return self.compiler(function)

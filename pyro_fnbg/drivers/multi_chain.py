"""``MultiChainMCMC``: many chains of ``FNBG``, in one process, in several, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_fnbg.chains.keeping import DrawKeeper
from pyro_fnbg.chains.remarks import tell
from pyro_fnbg.chains.report import ChainReport
from pyro_fnbg.chains.running import Piece, run_chains, start_chains
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.config import check_driver_options, checked_seconds, checked_sizes, with_thin
from pyro_fnbg.core.calls import call_of
from pyro_fnbg.core.checks import check_choice, check_count
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.drivers.cluster import SharedRun, Stretch, check_driver_client, run_on_cluster
from pyro_fnbg.drivers.collect import Collector
from pyro_fnbg.drivers.drawn import Drawn
from pyro_fnbg.drivers.draws import Draws
from pyro_fnbg.drivers.interrupts import Stop
from pyro_fnbg.drivers.progress import Progress
from pyro_fnbg.drivers.workers import START_METHODS, Task, run_in_processes
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.starts import params_by_chain
from pyro_fnbg.stock.given import check_save_params
from pyro_fnbg.stock.seeds import next_key
from pyro_fnbg.stores.archive import Archive
from pyro_fnbg.stores.hierarchy import as_store, check_free
from pyro_fnbg.stores.runs import StoredRun

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["MultiChainMCMC"]

CHAIN_METHODS = ("vectorized", "sequential", "processes")


class MultiChainMCMC(Drawn):
    r"""Run many chains of ``FNBG`` at once; used like ``pyro.infer.MCMC``.

    What the chains target is the kernel's matter: see ``FNBG``. Chain c makes the same draws
    whatever runs beside it, and the same as in Pyro's ``MCMC``: bit for bit with the "fused" and
    "trace" engines; on the others the same decisions in double precision.

    Args:
        kernel: The sampler.
        num_samples: Draws of each chain.
        warmup_steps: Sweeps of each chain that tune the proposal scales and are dropped; as many as
            draws if left out.
        initial_params: Unconstrained start values by site, with a dimension for chains in front if
            there are several.
        num_chains: Number of chains.
        hook_fn: Called as ``hook_fn(kernel, params, stage, i)`` after every step of the warmup and
            every draw, with unconstrained values; piece by piece, so chains alternate.
        mp_context: How "processes" start: "fork", "spawn" or "forkserver".
        disable_progbar: Whether to show no progress bar.
        save_params: Sites whose draws are kept; all if left out.
        chain_method: "vectorized" runs all chains at once in this process: in one batch on the
            feedforward engine, and on captured and compiled ones where they are small; on up to
            ``torch.get_num_threads()`` threads on the fused one, where threads also share the rows
            of chains if these are fewer; by turns on trace. "sequential" runs one chain after the
            other. "processes" gives each chain a process, as many at a time as there are cores: for
            models that run on trace.
        thin: Sweeps a draw; the kernel's own number if left out.
        client: A ``distributed.Client``: the chains run on the workers of its Dask cluster, and
            hooks here. A worker that dies costs some sweeps' time and no draws. The client is no
            part of a pickle or a copy.
        store: A path where draws and the chains' states go as they come, every ten seconds at the
            latest, in place of memory: a folder that xarray opens at any time with
            ``xarray.open_datatree(store, engine="zarr")``, and from which ``resume`` goes on.
        max_seconds: Seconds of sweeps after which the run ends as after Ctrl-C.

    Attributes:
        kernel: The sampler; after a run in this process it shows the last chain.
        is_complete: Whether the run whose draws are kept came to its end; False without draws.

    Raises:
        TypeError: If the kernel is no ``FNBG``, or the client none of Dask.
        ValueError: Naming the argument, its value and what is allowed.
        OSError: If there is something at the store's path, or no folder to put it into.

    Example:
        >>> import torch
        >>> from pyro_fnbg.networks.mlp import BayesianMLP
        >>> model = BayesianMLP([2, 3, 1], likelihood="bernoulli")
        >>> mcmc = MultiChainMCMC(FNBG(model), num_samples=20, num_chains=4, disable_progbar=True)
        >>> mcmc.run(torch.randn(30, 2), torch.arange(30) % 2)
        >>> mcmc.get_samples(group_by_chain=True)["layer1.weight"].shape
        torch.Size([4, 20, 3, 2])
    """

    def __init__(
        self,
        kernel: FNBG,
        num_samples: int,
        warmup_steps: int | None = None,
        initial_params: Mapping[str, Tensor] | None = None,
        num_chains: int = 1,
        hook_fn: Callable[[FNBG, dict[str, Tensor], str, int], Any] | None = None,
        mp_context: str | None = None,
        disable_progbar: bool = False,
        save_params: Sequence[str] | None = None,
        chain_method: str = "vectorized",
        thin: int | None = None,
        client: Client | None = None,
        store: str | Path | None = None,
        max_seconds: float | None = None,
    ) -> None:
        if not isinstance(kernel, FNBG):
            raise TypeError(
                f"kernel must be an FNBG, got {type(kernel).__name__}: pyro.infer.MCMC runs others"
            )
        sizes = checked_sizes(num_samples, warmup_steps, num_chains)
        num_samples, warmup_steps, num_chains = sizes
        check_choice("chain_method", chain_method, CHAIN_METHODS)
        check_choice("mp_context", mp_context, (None, *START_METHODS))
        check_driver_options(hook_fn, disable_progbar, save_params)
        check_driver_client(client, chain_method)
        self._store = None if store is None else as_store(store)
        if self._store is not None:
            check_free(self._store)
        self._max_seconds = checked_seconds(max_seconds)
        self.kernel = kernel
        self._config = with_thin(kernel.config, thin)
        super().__init__(num_chains, num_samples, self._config.thin)
        self._is_resumed = False
        # Where the chains of a run start, or were
        self._starts: Sequence[Mapping[str, Tensor] | None] = []
        self.warmup_steps = warmup_steps
        self._num_sweeps = warmup_steps + num_samples * self._config.thin
        self._initial_params = params_by_chain(initial_params, num_chains)
        self._hook_fn, self._save_params = hook_fn, save_params
        self._chain_method, self._mp_context = chain_method, mp_context
        self._client = client
        self._disable_progbar = disable_progbar
        # What run was called with last
        self._running = BoundModel(kernel.model)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_client": None}

    def __repr__(self) -> str:
        chains, draws = self._asked
        names = ("save_params", "chain_method", "mp_context", "store", "max_seconds")
        given = {name: getattr(self, f"_{name}") for name in names}
        given |= {"kernel": self.kernel, "num_samples": draws, "num_chains": chains}
        given |= {"warmup_steps": None if self.warmup_steps == draws else self.warmup_steps}
        given |= {"thin": None if self._thin == self.kernel.config.thin else self._thin}
        return call_of(self, MultiChainMCMC, given)

    @classmethod
    def resume(
        cls,
        store: str | Path,
        kernel: FNBG,
        more_samples: int = 0,
        *,
        hook_fn: Callable[[FNBG, dict[str, Tensor], str, int], Any] | None = None,
        mp_context: str | None = None,
        disable_progbar: bool = False,
        chain_method: str = "vectorized",
        client: Client | None = None,
        max_seconds: float | None = None,
    ) -> MultiChainMCMC:
        """Return a driver whose ``run`` goes on with the run in a store, from its last commit.

        Stopped and gone on with equals never stopped, bit for bit: draws, statistics and all that
        moves have learnt, in the warmup and after it. Sizes, thinning and start values are those of
        the store; what is not in it, the model and its data, is given again, and compared.

        Args:
            store: The store.
            kernel: The sampler, with the same model and arguments.
            more_samples: Draws of each chain to make besides those that the run was asked for.
            hook_fn: See the class, as for all that follow.
            mp_context: How "processes" start.
            disable_progbar: Whether to show no progress bar.
            chain_method: Who runs the chains; it need not be who did so before.
            client: A ``distributed.Client``.
            max_seconds: Seconds of sweeps after which the run ends.

        Raises:
            FileNotFoundError: If there is no store.
            ValueError: If it was changed, or is of another format.
        """
        path = as_store(store)
        check_count("more_samples", more_samples, 0)
        stored = StoredRun.open(path)
        if kernel.config.thin not in (1, stored.thin):
            raise ValueError(
                f"the kernel has thin={kernel.config.thin}, but the run in the store has "
                f"thin={stored.thin}"
            )
        mcmc = cls(
            kernel,
            num_samples=stored.num_samples + int(more_samples),
            warmup_steps=stored.warmup_steps,
            num_chains=stored.archive.num_chains,
            hook_fn=hook_fn,
            mp_context=mp_context,
            disable_progbar=disable_progbar,
            save_params=stored.names,
            chain_method=chain_method,
            thin=stored.thin,
            client=client,
            max_seconds=max_seconds,
        )
        mcmc._store, mcmc._is_resumed = path, True
        return mcmc

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Sample.

        Ctrl-C, SIGTERM and ``max_seconds`` end the run at the next sweep with the draws so far, if
        there are any: ``is_complete`` is False then, and a warning says how many they are. After
        any other error the draws so far are there too. Until a run has draws of its own, those of
        the run before stay.

        Args:
            *args: The model's arguments.
            **kwargs: The model's keyword arguments.

        Raises:
            ValueError: If the model, its data, the initial values or ``save_params`` do not fit.
            RuntimeError: If a worker process dies; on a cluster, if several die of the same sweeps.
        """
        args = tuple(arg.detach() if isinstance(arg, Tensor) else arg for arg in args)
        self._running = BoundModel(self.kernel.model, args, kwargs)
        stop = Stop(self._max_seconds)
        # As in Pyro's driver: no outer handlers, and no checks of values that are out of range
        with poutine.block(), pyro.validation_enabled(False), ExitStack() as stack:
            problem, chains, stored = self._start(stack)
            if self._chain_method == "processes":
                self._run_in_processes(problem, chains, stored, stop)
            else:
                self._run_here(problem, chains, stored, stop)

    def _start(self, stack: ExitStack) -> tuple[Problem, list[ChainState], StoredRun | None]:
        """Place the chains where they start, or where they were.

        Also those of processes, which do so for themselves: what does not fit is found here, before
        any worker starts.
        """
        starts: Sequence[Mapping[str, Tensor] | None] = self._initial_params
        stored: StoredRun | None = None
        if self._store is not None and self._is_resumed:
            archive = Archive(self._store)
            stack.enter_context(archive.claimed())
            stored = StoredRun(archive, archive.saved())
            keys, starts = stored.keys, stored.positions(self._running)
        else:
            seed = next_key(None, None).key.seed
            keys = [ChainKey(seed, chain) for chain in range(self._asked[0])]
        self._starts = starts
        problem, chains = start_chains(self._config, self.warmup_steps, self._running, starts, keys)
        if stored is not None:
            chains = stored.chains(problem, chains)
        check_save_params(self._save_params, problem.sites.layout, False)
        if self._store is not None and stored is None:
            numbered = dict(enumerate(chains))
            apart = self._chain_method == "processes"
            writers = [{c: chain} for c, chain in numbered.items()] if apart else [numbered]
            stored = StoredRun.begin(
                self._store,
                problem,
                self._save_params,
                writers,
                self._asked[1],
                self._asked[0],
                uuid4().hex,
            )
            stack.enter_context(stored.archive.claimed())
        self.kernel.show(Run(problem, chains[0]), DrawStatistics(problem.partition))
        tell(self._config, problem, starts[0] is not None and not self._is_resumed)
        return problem, chains, stored

    def _progress(self, problem: Problem, chains: Sequence[ChainState]) -> Progress:
        size = [chain.sweeps for chain in chains], self.warmup_steps, self._num_sweeps
        return Progress(*size, DrawStatistics(problem.partition), self._disable_progbar)

    def _keeper(
        self, problem: Problem, chains: Mapping[int, ChainState], stored: StoredRun | None
    ) -> DrawKeeper:
        """Return what keeps the draws that chains make in this process, and answers for all."""
        if stored is None:
            return Draws(problem.sites, self._save_params, *self._asked)
        are_together = self._chain_method == "vectorized" and self._client is None
        are_together = are_together and problem.engine.joins_chains
        return stored.draws(problem, chains, self._asked[1], are_together)

    def _run_here(
        self,
        problem: Problem,
        chains: Sequence[ChainState],
        stored: StoredRun | None,
        stop: Stop,
    ) -> None:
        draws = self._keeper(problem, dict(enumerate(chains)), stored)
        suffixes = [f" [{number}]" if len(chains) > 1 else "" for number in range(len(chains))]
        collector = Collector(self.kernel, problem, chains, draws, self._hook_fn, suffixes)
        with (
            self._keeping(draws, self._running, stop, collector.chains, collector.report),
            stop,
            self._progress(problem, chains) as progress,
            closing(self._pieces(problem, chains, stop)) as pieces,
        ):
            for piece in pieces:
                collector.take(piece)
                rates = problem.phase(piece.after).rates.tolist()
                progress.show(piece.number, piece.after.sweeps, rates)
        self.kernel.show(Run(problem, collector.chains[-1]), collector.statistics[-1])

    def _pieces(
        self, problem: Problem, chains: Sequence[ChainState], stop: Stop
    ) -> Generator[Piece] | Generator[Stretch]:
        if self._client is not None:
            return self._stretches(chains, stop)
        if self._chain_method == "vectorized":
            return run_chains(problem, chains, self._num_sweeps, stop)
        return (
            piece._replace(number=number)
            for number, chain in enumerate(chains)
            for piece in run_chains(problem, [chain], self._num_sweeps, stop)
        )

    def _stretches(self, chains: Sequence[ChainState], stop: Stop) -> Generator[Stretch]:
        run = SharedRun(
            config=self._config,
            warmup_steps=self.warmup_steps,
            num_sweeps=self._num_sweeps,
            bound=self._running,
            initial_params=self._starts[0],
            key=chains[0].key,
            has_hook=self._hook_fn is not None,
            dtype=torch.get_default_dtype(),
            device=torch.get_default_device(),
            params=pyro.get_param_store().get_state(),
        )
        return run_on_cluster(self._client, run, chains, stop)

    def _run_in_processes(
        self,
        problem: Problem,
        chains: Sequence[ChainState],
        stored: StoredRun | None,
        stop: Stop,
    ) -> None:
        draws = self._keeper(problem, {}, stored)
        reports: dict[int, ChainReport] = {}
        errors: list[BaseException] = []
        task = Task(
            self.kernel,
            self._config,
            self.warmup_steps,
            self._asked[1],
            self._save_params,
            self._hook_fn,
            self._running,
            self._store,
        )
        with (
            self._keeping(draws, self._running, stop, [], reports.__getitem__),
            stop,
            self._progress(problem, chains) as progress,
            closing(
                run_in_processes(
                    task,
                    [chain.key for chain in chains],
                    self._starts,
                    problem.partition.num_blocks,
                    self._mp_context,
                    stop,
                    progress.show,
                )
            ) as all_done,
        ):
            for done in all_done:
                draws.put(done.chain, done.values, done.num_draws)
                reports |= {} if done.report is None else {done.chain: done.report}
                errors += [] if done.error is None else [done.error]
            if errors:
                raise errors[0]

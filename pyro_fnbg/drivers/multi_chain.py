"""``MultiChainMCMC``: many chains of ``FNBG``, in one process, in several, or on a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_fnbg.chains.report import ChainReport, Diagnostics, warn_of_blocks
from pyro_fnbg.chains.running import Piece, run_chains, start_chains
from pyro_fnbg.chains.setup import Run
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.config import check_driver_options, checked_sizes, with_thin
from pyro_fnbg.core.checks import as_probability, check_choice
from pyro_fnbg.core.noise import ChainKey
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.core.tasks import check_client
from pyro_fnbg.drivers.cluster import SharedRun, Stretch, run_on_cluster
from pyro_fnbg.drivers.collect import Collector
from pyro_fnbg.drivers.draws import Draws, kept_chains, pick_draws
from pyro_fnbg.drivers.interrupts import undisturbed
from pyro_fnbg.drivers.progress import Progress
from pyro_fnbg.drivers.workers import START_METHODS, Task, run_in_processes
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.starts import params_by_chain
from pyro_fnbg.results.estimates import site_estimates, summary_table
from pyro_fnbg.stock.given import check_save_params
from pyro_fnbg.stock.seeds import next_key

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["MultiChainMCMC"]

CHAIN_METHODS = ("vectorized", "sequential", "processes")


class MultiChainMCMC:
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

    Attributes:
        kernel: The sampler; after a run in this process it shows the last chain.
        is_complete: Whether the run whose draws are kept came to its end; False without draws.

    Raises:
        TypeError: If the kernel is no ``FNBG``, or the client none of Dask.
        ValueError: Naming the argument, its value and what is allowed.

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
        if client is not None:
            check_client(client)
            if chain_method != "vectorized":
                raise ValueError(
                    f"chain_method must be left out where a client is given: the chains run on its "
                    f"workers; got {chain_method!r}"
                )
        self.kernel = kernel
        self.is_complete = False
        self._config = with_thin(kernel.config, thin)
        self._asked = num_chains, num_samples
        self.warmup_steps = warmup_steps
        self._num_sweeps = warmup_steps + num_samples * self._config.thin
        self._initial_params = params_by_chain(initial_params, num_chains)
        self._hook_fn, self._save_params = hook_fn, save_params
        self._chain_method, self._mp_context = chain_method, mp_context
        self._client = client
        self._disable_progbar = disable_progbar
        # What run was called with last, and what the draws that are kept come from
        self._running = BoundModel(kernel.model)
        self._args, self._kwargs = self._running.args, self._running.kwargs
        self._samples: dict[str, Tensor] | None = None
        self._kept: tuple[int, int] | None = None
        self._diagnostics: list[Diagnostics] = []

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_client": None}

    @property
    def num_chains(self) -> int:
        """Number of chains: of those kept after a run, of those asked for before."""
        return (self._kept or self._asked)[0]

    @property
    def num_samples(self) -> int:
        """Number of draws of each chain: of those kept after a run, of those asked for before."""
        return (self._kept or self._asked)[1]

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Sample.

        Ctrl-C ends the run with the draws so far, if there are any: ``is_complete`` is False then,
        and a warning says how many they are. After any other error the draws so far are there too.
        Until a run has draws of its own, those of the run before stay.

        Args:
            *args: The model's arguments.
            **kwargs: The model's keyword arguments.

        Raises:
            ValueError: If the model, its data, the initial values or ``save_params`` do not fit.
            RuntimeError: If a worker process dies; on a cluster, if several die of the same sweeps.
        """
        args = tuple(arg.detach() if isinstance(arg, Tensor) else arg for arg in args)
        seed = next_key(None, None).key.seed
        keys = [ChainKey(seed, chain) for chain in range(self._asked[0])]
        self._running = BoundModel(self.kernel.model, args, kwargs)
        # As in Pyro's driver: no outer handlers, and no checks of values that are out of range
        with poutine.block(), pyro.validation_enabled(False):
            if self._chain_method == "processes":
                # What does not fit is found here, before any worker is started
                problem, chains = self._start(keys[:1])
                self._run_in_processes(problem, keys)
            else:
                problem, chains = self._start(keys)
                self._run_here(problem, chains)

    def _start(self, keys: Sequence[ChainKey]) -> tuple[Problem, list[ChainState]]:
        starts = self._initial_params[: len(keys)]
        problem, chains = start_chains(self._config, self.warmup_steps, self._running, starts, keys)
        check_save_params(self._save_params, problem.sites.layout, False)
        self.kernel.show(Run(problem, chains[0]), DrawStatistics(problem.partition))
        return problem, chains

    def _progress(self, problem: Problem) -> Progress:
        size = self._asked[0], self.warmup_steps, self._num_sweeps
        return Progress(*size, DrawStatistics(problem.partition), self._disable_progbar)

    def _run_here(self, problem: Problem, chains: Sequence[ChainState]) -> None:
        draws = Draws(problem.sites, self._save_params, *self._asked)
        suffixes = [f" [{number}]" if len(chains) > 1 else "" for number in range(len(chains))]
        collector = Collector(self.kernel, problem, chains, draws, self._hook_fn, suffixes)
        with (
            self._keeping(draws, collector.report),
            self._progress(problem) as progress,
            closing(self._pieces(problem, chains)) as pieces,
        ):
            for piece in pieces:
                collector.take(piece)
                rates = problem.phase(piece.after).rates.tolist()
                progress.show(piece.number, piece.after.sweeps, rates)
        self.kernel.show(Run(problem, collector.chains[-1]), collector.statistics[-1])

    def _pieces(
        self, problem: Problem, chains: Sequence[ChainState]
    ) -> Generator[Piece] | Generator[Stretch]:
        if self._client is not None:
            return self._stretches(chains)
        if self._chain_method == "vectorized":
            return run_chains(problem, chains, self._num_sweeps)
        return (
            piece._replace(number=number)
            for number, chain in enumerate(chains)
            for piece in run_chains(problem, [chain], self._num_sweeps)
        )

    def _stretches(self, chains: Sequence[ChainState]) -> Generator[Stretch]:
        run = SharedRun(
            config=self._config,
            warmup_steps=self.warmup_steps,
            num_sweeps=self._num_sweeps,
            bound=self._running,
            initial_params=self._initial_params[0],
            key=chains[0].key,
            has_hook=self._hook_fn is not None,
            dtype=torch.get_default_dtype(),
            device=torch.get_default_device(),
            params=pyro.get_param_store().get_state(),
        )
        return run_on_cluster(self._client, run, chains)

    def _run_in_processes(self, problem: Problem, keys: Sequence[ChainKey]) -> None:
        draws = Draws(problem.sites, self._save_params, *self._asked)
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
        )
        with (
            self._keeping(draws, reports.__getitem__),
            self._progress(problem) as progress,
            closing(
                run_in_processes(
                    task,
                    keys,
                    self._initial_params,
                    problem.partition.num_blocks,
                    self._mp_context,
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

    @contextmanager
    def _keeping(self, draws: Draws, report: Callable[[int], ChainReport]) -> Generator[None]:
        """Keep the draws, also of a run that is stopped; Ctrl-C ends here if there are any."""
        stopped = None
        try:
            yield
        except KeyboardInterrupt:
            if not any(draws.counts):
                raise
            stopped = "by Ctrl-C"
        except BaseException:
            self._keep(draws, report, "by an error")
            raise
        self._keep(draws, report, stopped)

    def _keep(
        self, draws: Draws, report: Callable[[int], ChainReport], stopped: str | None
    ) -> None:
        chains, num_draws = kept_chains(draws.counts)
        if num_draws == 0:
            return
        with undisturbed():
            reports = [report(chain) for chain in chains]
            self._diagnostics = [Diagnostics(one.first_draws(num_draws)) for one in reports]
            self._samples = draws.hand_over(chains, num_draws)
            self._kept, self.is_complete = (len(chains), num_draws), stopped is None
            self._args, self._kwargs = self._running.args, self._running.kwargs
        warn_of_blocks(reports)
        if stopped is not None:
            warnings.warn(
                f"the run was stopped {stopped}: kept are {num_draws} of {self._asked[1]} draws of "
                f"{len(chains)} of {self._asked[0]} chains ({chains})",
                UserWarning,
                stacklevel=6,
            )

    def get_samples(
        self, num_samples: int | None = None, group_by_chain: bool = False
    ) -> dict[str, Tensor]:
        """Return the constrained draws, ``(chains x draws, *site shape)`` by site.

        Args:
            num_samples: Number of draws to pick at random, with replacement; all if left out.
            group_by_chain: Whether to keep a dimension for chains, ``(chains, draws, ...)``.
        """
        return pick_draws(self._drawn(), num_samples, group_by_chain)

    def diagnostics(self) -> dict[str, Any]:
        """Report ``n_eff`` and ``r_hat`` of every site, by ArviZ, and each chain's own report.

        The estimators see some parameters at a time, so memory does not grow with their number.
        What ``FNBG.diagnostics`` reports is there by chain: ``"chain 0"`` and so on.
        """
        found: dict[str, Any] = {n: site_estimates(v) for n, v in self._drawn().items()}
        for entry in self._diagnostics[0]:
            # A site may have the name of an entry
            found[entry] = found.get(entry, {}) | {
                f"chain {number}": report[entry] for number, report in enumerate(self._diagnostics)
            }
        return found

    def summary(self, prob: float = 0.9) -> None:
        """Print what the chains target, and ArviZ's summary of every parameter.

        Args:
            prob: Probability of the intervals.
        """
        prob = as_probability("prob", prob)
        samples = self._drawn()
        chains, num_draws = self._kept or self._asked
        print(f"target: {self._diagnostics[0]['target']}")
        print(f"{chains} chains of {num_draws} draws, sweeps a draw: {self._config.thin}", end="")
        print("" if self.is_complete else f"; incomplete: {self._asked[1]} were asked for")
        print(summary_table(samples, prob).to_string())

    def _drawn(self) -> dict[str, Tensor]:
        if self._samples is None:
            raise RuntimeError("there are no draws yet: call run(...) first")
        return self._samples

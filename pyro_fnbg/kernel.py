"""``FNBG``, the kernel for ``pyro.infer.MCMC``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pyro
import torch
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_fnbg.chains.pace import Pace
from pyro_fnbg.chains.remarks import tell
from pyro_fnbg.chains.report import ChainReport, Diagnostics, report, warn_of_blocks
from pyro_fnbg.chains.setup import Run, start_run
from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.config import Config, Scale, check_arguments
from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.calls import call_of
from pyro_fnbg.core.layout import Layout
from pyro_fnbg.core.pickling import check_picklable
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.engines.base import Problem
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.supports import KnownSupport
from pyro_fnbg.stock.ahead import Ahead, look_ahead, new_pace
from pyro_fnbg.stock.finished import Loaded
from pyro_fnbg.stock.given import GivenParams, check_save_params, sorted_names
from pyro_fnbg.stock.seeds import RunMark, fingerprint, forks, next_key, worker_chain
from pyro_fnbg.stock.supports import check_supports_unchanged
from pyro_fnbg.stock.workers import is_being_spawned, raising_picklable_errors

__all__ = ["FNBG"]


class FNBG(MCMCKernel):
    r"""Sample by minibatch Metropolis-within-blocked-Gibbs over nodes or parts of nodes.

    One draw is one *sweep*, or ``thin`` of them: every block of parameters is proposed once, by a
    Gaussian random walk or another move, and accepted or rejected on the sweep's batch of data. No
    gradients are taken.

    **What the chain targets.** With the full data (the default for a plain model) the chain is
    exact MCMC for the model's posterior. With batches it approximates
    prior x likelihood\ :sup:`factor n/N`, is in general hotter than that, and the bias does not
    vanish with the length of the chain; ``target`` says which, and ``diagnostics()`` measures how
    noisy the decisions are.

    **Tuning.** During warmup each block's proposal scale follows its acceptance probability
    (Andrieu and Thoms, 2008, Algorithm 4); afterwards the scales are frozen.

    Args:
        model: Any Pyro model whose latent sites are continuous.
        blocks: "node" (a row of weights with its bias, the default), "layer", "site", a
            ``Partition``, or a callable from the model's ``Layout`` to one.
        parts: Split each node into this many parts: a number, or a mapping from layers (counted
            from 1) to numbers.
        max_block_size: Split each node into as few parts as keep blocks within this size; not
            together with ``parts``.
        batch_size: Rows a sweep sees, 1..N, of the plate around the observed site; None for all
            rows, or for the model's own ``subsample_size``.
        batch_order: "shuffled" (epochs without replacement), "stratified" (the same, by the
            observed integer labels) or "full".
        batch_plate: Name of the plate whose rows are the data, where there are several.
        likelihood_scale: Power of the batch's likelihood: "batch" (1: the batch stands in for the
            data, as in the paper), "full" (N/n) or a positive number. Left out, ``batch_size``
            means "batch" and a model's own ``subsample_size`` means "full".
        proposal_scale: Standard deviation of the proposals, one number, one per layer, or a mapping
            from names of blocks or layers; where tuning starts. Blocks that are left out get 2.4 /
            sqrt(d) times their spread over 100 prior draws, and tuning starts at a hundredth of
            that.
        adapt: Whether to tune the scales during warmup.
        target_accept_prob: Acceptance probability to tune for; left out, by block size: 0.44 for
            one coordinate, 0.35 for two, 0.32 for three, falling to 0.30 from ten on.
        engine: What runs the sweeps: "auto" (the fastest that applies), "fused" and "feedforward"
            (models that are feedforward networks, which is found out or stated by ``Feedforward``),
            "captured" (models whose run can be written down as operations on tensors), "compiled"
            (the same by torch's compiler, for long runs) or "trace" (any model). All take the same
            decisions, up to rounding.
        thin: Sweeps a draw; a step of the warmup is one sweep. Statistics are over all sweeps.
        init_strategy: Where chains start without ``initial_params``: a strategy of
            ``pyro.infer.autoguide.initialization``; a draw from the prior by default.
        moves: How blocks move that do not say so themselves: "walk", by a Gaussian random walk;
            "pcn", by preconditioned Crank-Nicolson steps, which keep the prior; "gibbs", by exact
            draws of output weights of Normal responses, where others walk; a mapping from names of
            blocks or layers to these; or "auto", by what was measured to do best. Variances of
            priors are drawn from their conditionals where known; see ``ScalePrior``.
        rescale: Whether every sweep ends with rescalings of hidden relu nodes, which change no
            function; left out, where ``moves="auto"`` takes them.

    Attributes:
        config: The arguments.

    Raises:
        ValueError: At once or in ``setup``, when an argument or the model does not fit; the message
            names the value and what is allowed.

    References:
        Papamarkou (2023), "Approximate blocked Gibbs sampling for Bayesian neural networks".
        Andrieu and Thoms (2008), "A tutorial on adaptive MCMC".

    Example:
        >>> import pyro, pyro.distributions as dist
        >>> from pyro.infer import MCMC
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> pyro.set_rng_seed(1)
        >>> kernel = FNBG(model)
        >>> mcmc = MCMC(kernel, num_samples=500, warmup_steps=200, disable_progbar=True)
        >>> mcmc.run(torch.full((50,), 3.0))
        >>> kernel.target
        'exact: the posterior of the model'
        >>> abs(float(mcmc.get_samples()["mean"].mean()) - 3.0) < 0.1
        True
    """

    def __init__(
        self,
        model: Callable[..., Any],
        blocks: str | Partition | Callable[[Layout], Partition] = "node",
        parts: int | Mapping[int, int] | None = None,
        max_block_size: int | None = None,
        batch_size: int | None = None,
        batch_order: str = "shuffled",
        batch_plate: str | None = None,
        likelihood_scale: str | float | None = None,
        proposal_scale: Scale | None = None,
        adapt: bool = True,
        target_accept_prob: float | None = None,
        engine: str = "auto",
        thin: int = 1,
        init_strategy: Callable[..., Any] = init_to_sample,
        moves: str | Mapping[str, str] = "walk",
        rescale: bool | None = None,
    ) -> None:
        self.config = Config(
            model=model,
            blocks=blocks,
            parts=parts,
            max_block_size=max_block_size,
            batch_size=batch_size,
            batch_order=batch_order,
            batch_plate=batch_plate,
            likelihood_scale=likelihood_scale,
            proposal_scale=proposal_scale,
            adapt=adapt,
            target_accept_prob=target_accept_prob,
            engine=engine,
            thin=thin,
            init_strategy=init_strategy,
            moves=moves,
            rescale=rescale,
        )
        check_arguments(self.config)
        self._given = GivenParams()
        # Workers spawned so far, and workers of any kind when the run state was set
        self._spawned = 0
        self._workers_at_setup = 0
        self._run: Run | None = None
        self._statistics: DrawStatistics
        self._ahead: Ahead | None = None
        self._at_end: list[Callable[[], None]] = []
        self._pace: Pace
        self._mark: RunMark | None = None
        self._save_params: list[str] | None = None
        self._is_run_over = self._is_run_over_in_workers = False
        self._spawned_from: int | None = None
        # One for all runs: Pyro's MCMC keeps the dict that it was given after its first
        self._transforms: dict[str, Any] = {}
        # Those of a run in workers, by which Pyro's MCMC maps the draws of the next, too
        self._supports: dict[str, KnownSupport] = {}
        self._loaded: Loaded | None = None
        self._told: ChainReport | None = None

    def __repr__(self) -> str:
        return call_of(self, FNBG, vars(self.config))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the arguments and what is told of the last run; a run itself is not pickled.

        The model is not run for it: the noise of batches is there if ``diagnostics`` measured it.

        Raises:
            RuntimeError: If a spawned worker would not find the model or another argument.
        """
        run = {"_run", "_statistics", "_ahead", "_pace", "_mark", "_told"}
        state = {name: value for name, value in vars(self).items() if name not in run}
        state |= {"_run": None, "_ahead": None, "_mark": None, "_told": None, "_at_end": []}
        if is_being_spawned():
            check_picklable(vars(self.config))
            state["_spawned_from"] = fingerprint()
            # A spawned worker's own count of forks starts at zero
            state["_spawned"] = self._workers()
            self._spawned += 1
        elif self._run is not None:
            told, chain = self._told, self.state
            if told is None or told.num_draws != self.problem.num_draws(chain):
                told = report(self.problem, chain, self._statistics, measure_noise=False)
            state["_loaded"] = Loaded(self.partition, told)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        if self._spawned_from is None:  # forks of another process do not count here
            self._workers_at_setup = self._workers()

    def __copy__(self) -> FNBG:
        copied = type(self).__new__(type(self))
        # Pyro's MCMC shares the dict with its kernel, which a pickle keeps; a copy has its own
        copied.__setstate__(self.__getstate__() | {"_transforms": dict(self._transforms)})
        return copied

    def _workers(self) -> int:
        """Count the workers that may have been started from this kernel."""
        return forks() + self._spawned

    @property
    def model(self) -> Callable[..., Any]:
        """The model, as given."""
        return self.config.model

    @property
    def transforms(self) -> dict[str, Any] | None:
        """Maps from constrained to unconstrained values, by site; None before ``setup``."""
        # Read by Pyro after a run; where it is None, as after one in workers, Pyro calls setup
        if self._workers() > self._workers_at_setup:
            self._is_run_over_in_workers = True
            return None
        self._is_run_over = True
        return self._transforms or None

    @property
    def save_params(self) -> list[str]:
        """Sites whose draws Pyro's ``MCMC`` keeps, where it was given any."""
        if self._save_params is None:
            raise AttributeError("save_params was not given to MCMC")
        return self._save_params

    @save_params.setter
    def save_params(self, names: Sequence[str]) -> None:
        # Pyro takes the draws apart in sorted order whatever order they were put together in
        self._save_params, self._is_run_over = sorted_names(names), False

    @property
    def problem(self) -> Problem:
        """What all chains of the last ``setup`` share; frozen."""
        return self._running().problem

    @property
    def state(self) -> ChainState:
        """The state of the chain after the draws that were handed out; frozen."""
        return self._running().chain

    @property
    def target(self) -> str:
        """What the chain of the last ``setup`` targets, in one line."""
        return (self._loaded.report if self._loaded else self.problem).plan.target

    @property
    def engine(self) -> str:
        """Name of the engine that runs the sweeps since the last ``setup``."""
        return self._loaded.report.engine if self._loaded else self.problem.engine.name

    @property
    def partition(self) -> Partition:
        """The blocks of the last ``setup``."""
        return (self._loaded or self.problem).partition

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """Unconstrained values where the chain is, by site."""
        return self.problem.sites.layout.unflatten(self.state.position.clone())

    @initial_params.setter
    def initial_params(self, params: Mapping[str, Tensor]) -> None:
        self._given = self._given.add(params, self._workers())

    @raising_picklable_errors
    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start a run: inspect and check the model, cut the blocks, place the chain.

        Replaces all state of an earlier run. The seed comes from torch's random stream, so
        ``pyro.set_rng_seed`` governs it; chains get the same streams in turn and in workers.

        Raises:
            ValueError: If the model, its data or the initial values do not fit; names the site.
        """
        if (chain := worker_chain()) is not None:
            torch.set_num_threads(1)  # torch's threads do not survive a fork
        # After a run in workers, for the transforms alone: it must not fail and cost the run
        is_afterwards = self._is_run_over_in_workers and warmup_steps == 0
        initial_params = self._given.for_chain(chain, self._workers(), is_afterwards)
        self._given, self._is_run_over_in_workers = GivenParams(), False
        self._mark = next_key(self._mark, self._spawned_from)
        # Once a run: chains follow each other here, or each is in a worker
        is_first = self._mark.key.chain == 0 or (chain is None and self._is_run_over)
        with pyro.validation_enabled(False) if is_afterwards else nullcontext():
            bound = BoundModel(self.model, args, kwargs)
            run = start_run(self.config, warmup_steps, bound, initial_params, self._mark.key)
        check_save_params(self._save_params, run.problem.sites.layout, self._is_run_over)
        if chain is not None:
            check_supports_unchanged(self._supports, run.problem.sites)
        self.show(run, DrawStatistics(run.problem.partition))
        if is_afterwards:
            sites = run.problem.sites
            self._supports = {name: sites.supports[name] for name in sites.constrain}
        elif is_first:
            tell(self.config, run.problem, initial_params is not None)

    def show(self, run: Run, statistics: DrawStatistics) -> None:
        """Take over the state of a chain, which ``diagnostics`` and the properties then show."""
        self._run, self._statistics, self._loaded, self._told = run, statistics, None, None
        self._ahead, self._pace = None, new_pace()
        self._workers_at_setup, self._is_run_over = self._workers(), False
        sites = run.problem.sites
        self._transforms.clear()
        self._transforms |= {name: t.inv for name, t in sites.constrain.items()}
        self._supports = {}

    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Make one draw from unconstrained values, and return the next ones in new tensors.

        A compiled engine is asked for several draws at once, which are handed out one by one as
        long as each call gives back what the last one returned.
        """
        ahead = self._ahead
        goes_on = ahead is not None and ahead.led_to(params)
        if ahead is None or not goes_on or ahead.is_used_up:
            problem, chain = self._running()
            if not goes_on:
                self._statistics.keep_first(problem.num_draws(chain))
                self._pace = new_pace()
            chain = replace(chain, position=problem.sites.layout.flatten(params))
            self._ahead = ahead = look_ahead(problem, chain, self._statistics, self._pace)
        return ahead.next_draw()

    @property
    def ahead(self) -> Ahead | None:
        """The draws made at once of which the last one was handed out; None before the first."""
        return self._ahead

    def at_end(self, call: Callable[[], None]) -> None:
        """Have something called when Pyro's ``MCMC`` is done with the chain."""
        self._at_end.append(call)

    def cleanup(self) -> None:
        """End a chain: called by Pyro's ``MCMC`` after the last draw."""
        while self._at_end:
            self._at_end.pop()()

    def logging(self) -> OrderedDict[str, str]:
        """Return the acceptance rates of the current phase for the progress bar, in per cent."""
        # Pyro asks after every draw, also where it shows no bar
        if self._ahead is not None:
            shown = self._ahead.shown[self._ahead.used - 1]
        else:
            problem, chain = self._running()
            (shown,) = self._statistics.shown(problem.phase(chain).rates)
        return OrderedDict([("acc. rate by layer (%)", shown)])

    def diagnostics(self) -> dict[str, Any]:
        """Report what the chain targets, and acceptance and scales, over the draws (no warmup).

        Acceptance rates are shares of accepted candidates, by block, node and layer;
        ``sample_stats`` has a few numbers of every draw, for ``to_arviz``. With batches,
        the nominal likelihood temperature comes with two measured companions: the standard
        deviation of the log ratio across batches, and the share of decisions that another batch
        would reverse, both judged from the last position.

        Warns of blocks that hardly moved, of those that nothing bounds, and of those whose
        acceptance left what tuning aimed at.
        """
        found = self._report()
        warn_of_blocks([found])
        return Diagnostics(found)

    def _report(self) -> ChainReport:
        if self._loaded is not None:
            return self._loaded.report
        problem, chain = self._running()
        self._told = report(problem, chain, self._statistics)
        return self._told

    def _running(self) -> Run:
        """Return the problem, and the chain's state after the draws that were handed out."""
        if self._run is None:
            raise RuntimeError(
                "the kernel has no run yet, or was loaded with no more of it than its diagnostics: "
                "call MCMC(kernel, ...).run() or setup()"
            )
        if self._ahead is not None:
            return Run(self._run.problem, self._ahead.state)
        return self._run

"""The draws that a run leaves, and what is asked of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from pyro_fnbg.chains.keeping import DrawKeeper, kept_chains
from pyro_fnbg.chains.report import ChainReport, Diagnostics, warn_of_blocks
from pyro_fnbg.core.checks import as_probability, check_choice, check_names
from pyro_fnbg.core.state import ChainState
from pyro_fnbg.drivers.draws import pick_draws
from pyro_fnbg.drivers.interrupts import Stop, undisturbed
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.results.estimates import KINDS, Columns, site_estimates, summary_table
from pyro_fnbg.stores.samples import StoredSamples

__all__ = ["Drawn"]

# Parameters that a summary shows where no sites are named
SHOWN_ROWS = 60
# Calls from where draws are kept to the line of the user that runs the chains
USERS_LEVEL = 6


class Drawn:
    """Keep the draws of a run, and answer for them.

    Args:
        num_chains: Chains that were asked for.
        num_samples: Draws of each that were asked for.
        thin: Sweeps a draw.

    Attributes:
        is_complete: Whether the run whose draws are kept came to its end; False without draws.
    """

    _store: Path | None = None

    def __init__(self, num_chains: int, num_samples: int, thin: int) -> None:
        self.is_complete = False
        self._asked, self._thin = (num_chains, num_samples), thin
        self._samples: Mapping[str, Tensor] | None = None
        self._kept: tuple[int, int] | None = None
        self._diagnostics: Sequence[Diagnostics] = []
        self._args: tuple[Any, ...] = ()
        self._kwargs: Mapping[str, Any] = {}

    @property
    def num_chains(self) -> int:
        """Number of chains: of those kept after a run, of those asked for before."""
        return (self._kept or self._asked)[0]

    @property
    def num_samples(self) -> int:
        """Number of draws of each chain: of those kept after a run, of those asked for before."""
        return (self._kept or self._asked)[1]

    def get_samples(
        self, num_samples: int | None = None, group_by_chain: bool = False
    ) -> dict[str, Tensor]:
        """Return the constrained draws, ``(chains x draws, *site shape)`` by site.

        Args:
            num_samples: Number of draws to pick at random, with replacement; all if left out.
            group_by_chain: Whether to keep a dimension for chains, ``(chains, draws, ...)``.
        """
        return pick_draws(self._drawn(), num_samples, group_by_chain)

    @property
    def reports(self) -> tuple[Diagnostics, ...]:
        """What each chain reports of itself, chain 0 first: see ``FNBG.diagnostics``.

        Unlike ``diagnostics()`` it estimates nothing, so it takes no time.
        """
        self._drawn()
        return tuple(self._diagnostics)

    def diagnostics(self) -> dict[str, Any]:
        """Report ``n_eff`` and ``r_hat`` of every site, by ArviZ, and each chain's own report.

        The estimators see some parameters at a time, so memory does not grow with their number.
        What ``FNBG.diagnostics`` reports is there by chain: ``"chain 0"`` and so on.
        """
        found: dict[str, Any] = {n: site_estimates(v) for n, v in self._sites().items()}
        for entry in self._diagnostics[0]:
            # A site may have the name of an entry
            found[entry] = found.get(entry, {}) | {
                f"chain {number}": report[entry] for number, report in enumerate(self._diagnostics)
            }
        return found

    def summary(
        self, prob: float = 0.9, var_names: Sequence[str] | None = None, kind: str = "all"
    ) -> None:
        """Print what the chains target, and ArviZ's summary of parameters.

        Args:
            prob: Probability of the intervals.
            var_names: Sites whose parameters are shown, all of them; left out, those of all sites,
                and of more than 60 the first 30 and the last 30.
            kind: "all", "stats" (moments and intervals) or "diagnostics" (effective sample sizes,
                R-hat and Monte Carlo errors), as for ArviZ.

        Raises:
            ValueError: If a site is none that was kept, or an argument is not allowed.
        """
        prob = as_probability("prob", prob)
        check_choice("kind", kind, KINDS)
        samples = self._sites()
        if var_names is not None:
            check_names("var_names", var_names, "sites that were kept")
            unknown = sorted(set(var_names) - set(samples))
            if unknown:
                raise ValueError(
                    f"var_names must be among the sites that were kept, {list(samples)}; "
                    f"got {unknown}"
                )
        named = samples if var_names is None else {name: samples[name] for name in var_names}
        chains, num_draws = self._kept or self._asked
        print(f"target: {self._diagnostics[0]['target']}")
        print(f"{chains} chains of {num_draws} draws, sweeps a draw: {self._thin}", end="")
        print("" if self.is_complete else f"; incomplete: {self._asked[1]} were asked for")
        table = summary_table(named, prob, kind, None if var_names else SHOWN_ROWS // 2)
        print(table.to_string())
        left_out = sum(draws.shape[2:].numel() for draws in named.values()) - len(table)
        if left_out:
            print(f"{left_out} parameters in between are left out: var_names= shows those of sites")

    def _sites(self) -> Mapping[str, Tensor | Columns]:
        """Return the draws by site, of which some numbers can be read."""
        samples = self._drawn()
        if isinstance(samples, StoredSamples):
            return {name: samples.site(name) for name in samples}
        return samples

    def _drawn(self) -> Mapping[str, Tensor]:
        if self._samples is None:
            raise RuntimeError(
                "there are no draws yet: call run(...) first"
                + (
                    ""
                    if self._store is None
                    else ", go on with the store by resume, or read it by open_samples"
                )
            )
        return self._samples

    @contextmanager
    def _keeping(
        self,
        draws: DrawKeeper,
        bound: BoundModel,
        stop: Stop,
        chains: Sequence[ChainState],
        report: Callable[[int], ChainReport],
    ) -> Generator[None]:
        """Keep the draws of a run, also of one that is stopped; Ctrl-C ends here if there are any.

        Args:
            draws: What keeps them.
            bound: The model and what it is called with.
            stop: What may end the run.
            chains: Where the chains are of which draws are made here, as the run goes on.
            report: From a chain's number to what is told of it.
        """
        keep = partial(self._keep, draws, bound, stop, chains, report)
        interrupt: BaseException | None = None
        try:
            yield
        except KeyboardInterrupt as pressed:
            interrupt = pressed
        except BaseException as error:
            try:
                keep("by an error")
            except Exception as another:
                error.add_note(f"The draws before it could not be kept: {another}")
            raise
        if not keep("by Ctrl-C" if interrupt else None):
            raised = interrupt or stop.error()
            if interrupt is not None and not interrupt.args:
                interrupt.args = ("the run was stopped by Ctrl-C in its warmup: no draws yet",)
            if raised is not None:
                raise raised
            warnings.warn(
                f"the run was stopped {stop.reason}: there are no draws yet",
                UserWarning,
                stacklevel=5,
            )

    def _keep(
        self,
        draws: DrawKeeper,
        bound: BoundModel,
        stop: Stop,
        chains: Sequence[ChainState],
        report: Callable[[int], ChainReport],
        stopped: str | None,
    ) -> bool:
        """Keep the draws if there are any, and return whether there are."""
        with undisturbed():
            draws.close(chains)
            counts = draws.counts
            numbers, num_draws = kept_chains(counts)
            if counts != [self._asked[1]] * self._asked[0]:
                stopped = stopped or stop.reason
            reports = [report(number) for number in numbers]
            draws.finish(reports)
            if num_draws == 0:
                return False
            self._diagnostics = [Diagnostics(one.first_draws(num_draws)) for one in reports]
            self._samples = draws.hand_over(numbers, num_draws)
            self._kept, self.is_complete = (len(numbers), num_draws), stopped is None
            self._args, self._kwargs = bound.args, bound.kwargs
        warn_of_blocks(reports, USERS_LEVEL)
        if stopped is not None:
            warnings.warn(
                f"the run was stopped {stopped}: kept are {num_draws} of {self._asked[1]} draws of "
                f"{len(numbers)} of {self._asked[0]} chains ({numbers})",
                UserWarning,
                stacklevel=USERS_LEVEL,
            )
        return True

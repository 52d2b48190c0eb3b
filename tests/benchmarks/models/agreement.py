"""Whether NUTS finds the same: means of what data and model identify, in Monte Carlo errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.infer.reparam import LocScaleReparam
from torch import Tensor

from benchmarks.models.case import Case
from benchmarks.models.cases import CASES
from pyro_fnbg import FNBG, MultiChainMCMC

__all__ = ["MOST_R_HAT", "Effort", "compare", "quantities", "run_agreement"]

Draws = Mapping[str, Tensor]
Values = dict[str, NDArray[np.float64]]

# Of the responses, the expectation of so many rows is compared
ROWS = 5
# Chains whose largest R-hat is above this have not converged, and are not compared
MOST_R_HAT = 1.05


class Effort(NamedTuple):
    """Say how much is run for the comparison.

    Attributes:
        chains: Chains of each sampler, from draws of the prior.
        seconds: About how long all chains of each sampler may take, of the processor.
        draws: Draws of each FNBG chain that are kept.
        nuts_warmup: Steps of NUTS before its draws.
        least_nuts_draws: With fewer draws of each NUTS chain in its time, nothing is compared.
        most_nuts_draws: With so many, a NUTS chain ends before its time.
    """

    chains: int = 4
    seconds: float = 60.0
    draws: int = 500
    nuts_warmup: int = 150
    least_nuts_draws: int = 50
    most_nuts_draws: int = 5_000


def run_agreement(name: str, effort: Effort) -> dict[str, Any]:
    """Sample a model by FNBG and by NUTS on some of its rows, and compare.

    What is compared are the expected responses of a few rows, the log likelihood of all, and the
    latent sites that the case calls identified. Never single weights: the posterior has every
    network as often as its hidden nodes can be exchanged, and chains see few of these.
    """
    torch.set_num_threads(1)
    pyro.set_rng_seed(1)
    case = CASES[name]()
    args = case.first_rows(case.rows_to_agree)
    started = time.process_time()
    draws, about = _by_fnbg(case, args, effort)
    fnbg = quantities(case, args, draws)
    about["seconds"] = time.process_time() - started
    started = time.process_time()
    found = _by_nuts(case, args, effort)
    nuts = quantities(case, args, found) if found is not None else {}
    seconds = time.process_time() - started
    record: dict[str, Any] = {
        "name": name,
        "rows": len(args[0]),
        "effort": effort._asdict(),
        "fnbg": about | {"r_hat": _r_hat(fnbg)},
        "nuts": {"seconds": seconds, "draws": 0, "r_hat": None},
    }
    if not nuts:
        return record
    record["nuts"] |= {"draws": next(iter(nuts.values())).shape[1], "r_hat": _r_hat(nuts)}
    return record | {"quantities": compare(fnbg, nuts)}


def quantities(case: Case, args: tuple[Tensor, ...], draws: Draws) -> Values:
    """Return what is compared, each of shape (chain, draw).

    Args:
        case: The model.
        args: What it is called with.
        draws: Its latent sites, with dimensions for chain and draw in front.
    """
    chains, number = next(iter(draws.values())).shape[:2]
    rows = [
        _of_draw(case, args, {site: values[chain, draw] for site, values in draws.items()})
        for chain in range(chains)
        for draw in range(number)
    ]
    return {
        name: np.array([row[name] for row in rows], np.float64).reshape(chains, number)
        for name in rows[0]
    }


def _of_draw(case: Case, args: tuple[Tensor, ...], draw: Draws) -> dict[str, float]:
    with torch.no_grad(), pyro.validation_enabled(False):
        trace = poutine.trace(poutine.condition(case.model, draw)).get_trace(*args)
    found = {}
    for site in case.identified:
        for number, value in enumerate(draw[site].flatten().tolist()):
            found[f"{site}[{number}]" if draw[site].numel() > 1 else site] = value
    total = 0.0
    # Latent sites count as observed as well, once they are conditioned on
    for name in [name for name in trace.observation_nodes if name not in draw]:
        node = trace.nodes[name]
        # Classes have no mean; the probability of the first will do
        of_rows = node["fn"].probs[..., 0] if _is_of_classes(node["fn"]) else node["fn"].mean
        of_rows = of_rows.expand(len(args[0]))[:ROWS]
        found |= {f"{name} of row {row}": float(value) for row, value in enumerate(of_rows)}
        total += float(node["fn"].log_prob(node["value"]).double().sum())
    return found | {"log likelihood": total}


def _is_of_classes(fn: Any) -> bool:
    return isinstance(fn, torch.distributions.Categorical)


def _by_fnbg(
    case: Case, args: tuple[Tensor, ...], effort: Effort
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Run chains of about as many sweeps as fit into the time, a third of them warmup."""
    kernel = FNBG(case.model)
    pilot = MCMC(kernel, num_samples=50, warmup_steps=50, disable_progbar=True)
    pilot.run(*args)
    chain, count = kernel.state, 50
    started = time.process_time()
    kernel.problem.engine.sweeps(kernel.problem, [chain], count)
    sweeps = effort.seconds * count / (time.process_time() - started) / effort.chains
    thin = max(1, round(sweeps * 2 / 3 / effort.draws))
    warmup = thin * effort.draws // 2
    kernel = FNBG(case.model, thin=thin)
    pyro.set_rng_seed(2)
    mcmc = MultiChainMCMC(
        kernel,
        num_samples=effort.draws,
        warmup_steps=warmup,
        num_chains=effort.chains,
        disable_progbar=True,
    )
    mcmc.run(*args)
    about = {"engine": kernel.engine, "sweeps": warmup + thin * effort.draws, "thin": thin}
    return mcmc.get_samples(group_by_chain=True), about


class _OutOfTime(Exception):
    """A chain of NUTS has had its share of the time."""


def _by_nuts(case: Case, args: tuple[Tensor, ...], effort: Effort) -> dict[str, Tensor] | None:
    """Run chains of NUTS, each for its share of the time; None if one has hardly any draws."""
    chains = [_nuts_chain(case, args, effort, number) for number in range(effort.chains)]
    draws = min(len(chain) for chain in chains)
    if draws < effort.least_nuts_draws:
        return None
    moved = {f"{site}_decentered" for site in case.narrow}
    return {
        site: torch.stack([torch.stack([draw[site] for draw in chain[:draws]]) for chain in chains])
        for site in chains[0][0].keys() - moved
    }


def _nuts_chain(
    case: Case, args: tuple[Tensor, ...], effort: Effort, number: int
) -> list[dict[str, Tensor]]:
    limit = time.process_time() + effort.seconds / effort.chains
    model = poutine.reparam(case.model, {site: LocScaleReparam(0.0) for site in case.narrow})
    draws: list[dict[str, Tensor]] = []

    def take(kernel: NUTS, values: Mapping[str, Tensor], stage: str, _: int) -> None:
        if not stage.startswith("Warmup"):
            found = {
                site: kernel.transforms[site].inv(value) if site in kernel.transforms else value
                for site, value in values.items()
            }
            if case.narrow:
                nodes = poutine.trace(poutine.condition(model, found)).get_trace(*args).nodes
                found |= {site: nodes[site]["value"] for site in case.narrow}
            draws.append({site: value.detach().clone() for site, value in found.items()})
        if time.process_time() > limit:
            raise _OutOfTime

    pyro.set_rng_seed(100 + number)
    # Traced once, it runs several times as fast; and trajectories of 63 steps will do. Small steps,
    # since scales of priors make the posterior narrow where they are small
    kernel = NUTS(
        model,
        jit_compile=True,
        ignore_jit_warnings=True,
        max_tree_depth=6,
        target_accept_prob=0.9,
    )
    mcmc = MCMC(
        kernel,
        num_samples=effort.most_nuts_draws,
        warmup_steps=effort.nuts_warmup,
        hook_fn=take,
        disable_progbar=True,
    )
    # MCMC calls no hook between set-up and warmup, so its time counts as the chain's
    with contextlib.suppress(_OutOfTime):
        mcmc.run(*args)
    return draws


def compare(one: Values, other: Values) -> dict[str, dict[str, float]]:
    """Compare means; errors are standard deviations over the root of the effective sample size."""
    found = {}
    for name, values in one.items():
        means = values.mean(), other[name].mean()
        errors = _error(values), _error(other[name])
        found[name] = {
            "fnbg": float(means[0]),
            "nuts": float(means[1]),
            "fnbg_error": errors[0],
            "nuts_error": errors[1],
            "z": float((means[0] - means[1]) / np.hypot(*errors)),
        }
    return found


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(float(az.ess(values, method="mean"))))


def _r_hat(values: Values) -> float:
    return max(float(az.rhat(each)) for each in values.values())

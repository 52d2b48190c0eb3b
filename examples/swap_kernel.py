"""Swap NUTS for FNBG on a Pyro model whose predictor goes through a step.

A hierarchical regression: groups have intercepts of their own, partially pooled, and a row's
response jumps when a weighted sum of its two exposures passes a threshold. The step has no useful
gradient. The script gives both kernels the same model, the same starts, the same ``MCMC`` call and
the same number of model evaluations (or more for NUTS: ``--nuts-budget``), and tabulates what came
out::

    python examples/swap_kernel.py
    python examples/swap_kernel.py --smoke    # seconds; far too short to show anything
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor
from torch.distributions import biject_to

from pyro_fnbg import FNBG

# Values that generate the data; the groups' intercepts are drawn around `location`
GENERATING = {
    "location": 0.5,
    "spread": 0.7,
    "noise": 0.5,
    "ratio": -0.8,
    "threshold": 0.5,
    "jump": 2.0,
}
BEHIND_THE_STEP = ("ratio", "threshold")
NUM_GROUPS, NUM_ROWS = 8, 200
# How far a parameter is moved to see what the likelihood makes of it
SHIFT = 0.1
# The usual limit; see Vehtari and others (2021), "Rank-normalization, folding, and localization"
MAX_R_HAT = 1.01


class Data(NamedTuple):
    """Hold simulated rows, and the groups' intercepts that made them."""

    x: Tensor
    group: Tensor
    y: Tensor
    intercept: Tensor


def model(x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
    """Regress y on a step of the exposures x, with intercepts by group."""
    location = pyro.sample("location", dist.Normal(0.0, 1.0))
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    ratio = pyro.sample("ratio", dist.Normal(0.0, 1.0))
    threshold = pyro.sample("threshold", dist.Normal(0.0, 1.0))
    jump = pyro.sample("jump", dist.HalfNormal(2.0))
    intercepts = dist.Normal(location, spread).expand([NUM_GROUPS]).to_event(1)
    intercept = pyro.sample("intercept", intercepts)
    with pyro.plate("data", len(x)):
        passed = (x[:, 0] + ratio * x[:, 1] > threshold).to(x.dtype)
        pyro.sample("y", dist.Normal(intercept[group] + jump * passed, noise), obs=y)


class Counted:
    """Count the evaluations of the model, the same way for both kernels."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
        """Evaluate the model."""
        self.calls += 1
        model(x, group, y)


class BudgetSpent(Exception):
    """End a run that has used its model evaluations."""


@dataclass(frozen=True)
class Chain:
    """Hold one chain.

    Attributes:
        draws: Draws of every site; for a chain that was stopped before it had any, the second half
            of the positions it had visited.
        transitions: Number of transitions, warmup included.
        warmup_done: Whether the warmup was completed.
        evaluations: Number of times that the model was evaluated.
        late_evaluations: Median number of evaluations per transition in the chain's second half.
        step_size: Step size at the end, for NUTS.
        log_density: Log joint density of the last position, data included.
        seconds: Duration.
    """

    draws: dict[str, Tensor]
    transitions: int
    warmup_done: bool
    evaluations: int
    late_evaluations: float
    step_size: float | None
    log_density: float
    seconds: float


def main() -> None:
    """Run both kernels and compare them."""
    options = parse_options()
    # The model is tiny: a second thread costs more than it gives
    torch.set_num_threads(1)
    pyro.set_rng_seed(options.seed)
    data = simulate()
    starts = [prior_draw(data) for _ in range(options.chains)]
    print_gradients(data)

    fnbg, nuts = [], []
    for number, start in enumerate(starts):
        pyro.set_rng_seed(options.seed + 1 + number)
        fnbg.append(run_chain(FNBG, data, start, options, budget=None))
        print(f"FNBG chain {number}: {fnbg[-1].seconds:.0f} s", flush=True)
        allowed = round(options.nuts_budget * fnbg[-1].evaluations)
        pyro.set_rng_seed(options.seed + 1 + number)
        nuts.append(run_chain(NUTS, data, start, options, budget=allowed))
        print(f"NUTS chain {number}: {nuts[-1].seconds:.0f} s", flush=True)
    print_chains({"FNBG": fnbg, "NUTS": nuts})
    print_estimates(fnbg, nuts)
    print_conclusions(fnbg, nuts, options)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chains", type=at_least(2), help="chains per kernel (default 3)")
    parser.add_argument("--draws", type=at_least(4), help="draws per chain (default 1000)")
    parser.add_argument("--warmup", type=at_least(4), help="warmup per chain (default 1000)")
    parser.add_argument(
        "--nuts-budget",
        type=float,
        default=1.0,
        help="model evaluations of NUTS, as a multiple of those of FNBG (default 1)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of data and chains (default 1)")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds; shows nothing")
    options = parser.parse_args()
    defaults = (2, 10, 10) if options.smoke else (3, 1000, 1000)
    for name, default in zip(("chains", "draws", "warmup"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, default)
    return options


def at_least(least: int) -> Any:
    """Return a reader of whole numbers from `least` on."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {value}")
        return value

    return number


def simulate() -> Data:
    """Draw exposures, groups and responses from the model at the generating values."""
    x, group = torch.randn(NUM_ROWS, 2), torch.arange(NUM_ROWS) % NUM_GROUPS
    fixed = {name: torch.tensor(value) for name, value in GENERATING.items()}
    nodes: Any = poutine.trace(poutine.condition(model, fixed)).get_trace(x, group).nodes
    return Data(x, group, nodes["y"]["value"], nodes["intercept"]["value"])


def prior_draw(data: Data) -> dict[str, Tensor]:
    """Draw a start from the prior, unconstrained as ``MCMC`` wants it."""
    nodes: Any = poutine.trace(model).get_trace(data.x, data.group, data.y).nodes
    return {
        name: biject_to(nodes[name]["fn"].support).inv(nodes[name]["value"])
        for name in (*GENERATING, "intercept")
    }


def log_densities(values: Mapping[str, Tensor], data: Data) -> tuple[Tensor, Tensor]:
    """Return the log likelihood and the log joint density at constrained values."""
    conditioned = poutine.condition(model, dict(values))
    trace = poutine.trace(conditioned).get_trace(data.x, data.group, data.y)
    log_joint = torch.as_tensor(trace.log_prob_sum())
    nodes: Any = trace.nodes
    return nodes["y"]["log_prob_sum"], log_joint


def run_chain(
    kernel_class: type[FNBG] | type[NUTS],
    data: Data,
    start: Mapping[str, Tensor],
    options: argparse.Namespace,
    budget: int | None,
) -> Chain:
    """Run one chain, and stop it after the transition in which its budget is used up."""
    counted = Counted()
    kernel = kernel_class(counted)
    positions: list[dict[str, Tensor]] = []
    used: list[int] = []

    def record(_: Any, params: Mapping[str, Tensor], stage: str, number: int) -> None:
        positions.append({name: value.detach().clone() for name, value in params.items()})
        used.append(counted.calls)
        if budget is not None and counted.calls >= budget:
            raise BudgetSpent

    # All that differs between the two is the kernel
    mcmc = MCMC(
        kernel,
        num_samples=options.draws,
        warmup_steps=options.warmup,
        initial_params=dict(start),
        hook_fn=record,
        disable_progbar=True,
    )
    started = time.perf_counter()
    with suppress(BudgetSpent):
        mcmc.run(data.x, data.group, data.y)
    seconds = time.perf_counter() - started
    # A chain that is stopped within a few draws of its warmup would give no standard deviation
    warmup_done = len(positions) >= options.warmup + 4
    kept = positions[options.warmup if warmup_done else len(positions) // 2 :]
    transforms: Mapping[str, Any] = kernel.transforms or {}
    draws = {
        name: torch.stack([position[name] for position in kept])
        if name not in transforms
        else transforms[name].inv(torch.stack([position[name] for position in kept]))
        for name in positions[0]
    }
    last = {name: values[-1] for name, values in draws.items()}
    late = np.diff(used)[len(used) // 2 :]
    return Chain(
        draws=draws,
        transitions=len(positions),
        warmup_done=warmup_done,
        evaluations=counted.calls,
        late_evaluations=float(np.median(late)) if len(late) > 0 else float("nan"),
        step_size=float(kernel.step_size) if isinstance(kernel, NUTS) else None,
        log_density=float(log_densities(last, data)[1]),
        seconds=seconds,
    )


# --- What is printed ---------------------------------------------------------------------------


def heading(text: str) -> None:
    """Print the title of a section."""
    print(f"\n{text}\n{'-' * len(text)}")


def paragraph(text: str) -> None:
    """Print text in lines of readable length."""
    print(textwrap.fill(text, width=96))


def print_gradients(data: Data) -> None:
    """Compare what a gradient says about the likelihood with what the likelihood does."""
    heading("The likelihood at the generating values, and what its gradient says")
    values = {name: torch.tensor(value) for name, value in GENERATING.items()}
    values["intercept"] = data.intercept.clone()
    for value in values.values():
        value.requires_grad_()
    log_likelihood = log_densities(values, data)[0]
    print(f"parameter    gradient by autograd   change of the log likelihood at +{SHIFT:g}")
    # The others reach the likelihood through the groups' intercepts
    for name in ("noise", "jump", *BEHIND_THE_STEP):
        (gradient,) = torch.autograd.grad(
            log_likelihood, values[name], retain_graph=True, allow_unused=True
        )
        with torch.no_grad():
            moved = log_densities(values | {name: values[name] + SHIFT}, data)[0] - log_likelihood
        shown = "no path" if gradient is None else f"{float(gradient):.1f}"
        print(f"{name:<12} {shown:>20} {float(moved):>40.1f}")
    print("(No path: autograd finds no way from the likelihood to the parameter.)\n")


def print_chains(chains: Mapping[str, list[Chain]]) -> None:
    """Tabulate what the chains did with their evaluations."""
    heading("What the chains did")
    print(
        "kernel  chain  model        transitions  evaluations per     NUTS's    last log  seconds"
    )
    print("               evaluations               late transition  step size     density")
    for kernel, members in chains.items():
        for number, chain in enumerate(members):
            step = "" if chain.step_size is None else f"{chain.step_size:.2g}"
            print(
                f"{kernel:<7} {number:5}  {chain.evaluations:<11,}  {chain.transitions:11,}  "
                f"{chain.late_evaluations:15.0f}  {step:>9}  {chain.log_density:10.1f}"
                f"  {chain.seconds:7.0f}"
            )


def pooled(chains: list[Chain], name: str) -> Tensor:
    """Return the last draws of a site from all chains, as many of each, (chains, draws)."""
    shortest = min(len(chain.draws[name]) for chain in chains)
    return torch.stack([chain.draws[name][-shortest:] for chain in chains]).double()


def r_hat(draws: Tensor) -> float:
    """Return split R-hat; NaN where there are too few draws for it."""
    return float(split_gelman_rubin(draws, 0, 1)) if draws.shape[1] >= 4 else float("nan")


def print_estimates(fnbg: list[Chain], nuts: list[Chain]) -> None:
    """Tabulate what the chains say about the parameters."""
    heading("What came out")
    print("                        FNBG                        NUTS")
    print("parameter   generating    mean      sd   R-hat        mean      sd   R-hat")
    for name, value in GENERATING.items():
        cells = []
        for chains in (fnbg, nuts):
            draws = pooled(chains, name)
            cells.append(f"{draws.mean():8.2f}{draws.std():8.2f}{r_hat(draws):8.2f}")
        print(f"{name:<12}{value:10.2f}{cells[0]}    {cells[1]}")
    if not all(chain.warmup_done for chain in nuts):
        paragraph(
            "(NUTS did not finish its warmup in every chain; from such a chain the second half of "
            "the positions it had visited is shown.)"
        )


def print_conclusions(fnbg: list[Chain], nuts: list[Chain], options: argparse.Namespace) -> None:
    """Say in plain words what this run shows and what it cannot show."""
    heading("What this run can and cannot show")
    worst = max(r_hat(pooled(fnbg, name)) for name in GENERATING)
    covered = []
    for name, value in GENERATING.items():
        low, high = torch.quantile(
            pooled(fnbg, name).flatten(), torch.tensor([0.025, 0.975]).double()
        )
        covered += [name] if low <= value <= high else []
    agreement = (
        f"within {MAX_R_HAT}"
        if worst <= MAX_R_HAT
        else f"above {MAX_R_HAT}: the chains are too short or disagree, so read them one by one"
    )
    missed = ", ".join(name for name in GENERATING if name not in covered)
    outside = f" (not that of {missed})" if missed else ""
    text = [
        "FNBG, all rows in every sweep, so exact MCMC for the posterior: the central 95 % "
        f"intervals of the pooled draws hold {len(covered)} of the {len(GENERATING)} generating "
        f"values{outside}; the largest split R-hat is {worst:.2f}, {agreement}.",
    ]
    transitions = ", ".join(f"{chain.transitions:,}" for chain in nuts)
    finished = sum(chain.warmup_done for chain in nuts)
    text.append(
        f"NUTS, with Pyro's defaults and {options.nuts_budget:g} times as many model evaluations "
        f"(each of which costs it a backward pass as well), made {transitions} transitions, where "
        f"FNBG made {options.warmup + options.draws:,} sweeps; {finished} of {len(nuts)} chains "
        f"got through the warmup of {options.warmup:,}."
    )
    if finished < len(nuts):
        text.append(
            "Where it did not, the step size above is that of a tuner still at work; --nuts-budget "
            "gives it more evaluations."
        )
    best = max(chain.log_density for chain in fnbg)
    gaps = ", ".join(f"{chain.log_density - best:+.0f}" for chain in nuts)
    text.append(
        "The log density of its last positions, less that of the best last position of FNBG, is "
        f"{gaps}."
    )
    text.append(
        f"The reason is in the first table: {' and '.join(BEHIND_THE_STEP)} get no force from the "
        "data, only from their priors, and whenever a trajectory moves a row across the step, the "
        "density jumps with no warning in the gradient. The error in the energy makes the tuner "
        "shorten the steps, and trajectories then need more of them (second table). The chain is "
        "not invalid: the accept step uses the true density, and with many more evaluations it may "
        "get there."
    )
    text.append(
        "A smooth stand-in for the step, such as a steep sigmoid, would give NUTS a gradient, and "
        "would be another model. Nor is this a comparison where NUTS is at home: with useful "
        "gradients it is the better choice."
    )
    paragraph(" ".join(text))


if __name__ == "__main__":
    main()

"""The tables of the report: what each compares, and what it shows and does not show."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HEADLINES", "MAX_R_HAT", "TABLES", "Headline", "Table"]

# The largest split R-hat with which chains count as converged
MAX_R_HAT = 1.05


@dataclass(frozen=True)
class Table:
    """Describe a table.

    Attributes:
        title: Its heading.
        base: Who the others are compared with; nobody if empty.
        unit: What is timed; nothing if empty.
        text: What it shows and what it does not.
        compared: Name of the figure that is compared, if it is not the time.
        is_speed: Whether times are compared as speeds: twice as fast, not half as long.
    """

    title: str
    base: str
    unit: str
    text: str
    compared: str = ""
    is_speed: bool = True


@dataclass(frozen=True)
class Headline:
    """Say which ratio of two rows of a table comes first on the page.

    Attributes:
        text: What is compared with what.
        table: Key of the table.
        case: What was done.
        who: Who did it, as many times as fast ...
        base: ... as this one.
        value: Name of the figure that is compared; the time if empty.
    """

    text: str
    table: str
    case: str
    who: str
    base: str
    value: str = ""


_XOR = "MLP(2,2,2,2,2,2,2,1), batch 100"
_MNIST = "MLP(784,10,10,10,10), 810 blocks, batch 3000"
_WIDE = "MLP(784,100,10), 7,810 blocks, batch 3000"
_TUNED = "fused engine, tuned scales"
HEADLINES = [
    Headline("noisy XOR, 13 blocks: the engine, against eeyore", "eeyore", _XOR, _TUNED, "eeyore"),
    Headline("the same through `FNBG.sample`", "eeyore", _XOR, "FNBG.sample", "eeyore"),
    Headline("MNIST in 810 blocks: the engine, against eeyore", "eeyore", _MNIST, _TUNED, "eeyore"),
    Headline("the same through `FNBG.sample`", "eeyore", _MNIST, "FNBG.sample", "eeyore"),
    Headline("MLP(784,100,10): the engine, against eeyore", "rows", _WIDE, "one thread", "eeyore"),
    Headline(
        "MNIST: a chain on two threads, against one", "rows", _MNIST, "two threads", "one thread"
    ),
    Headline(
        "the same in batches of 10,000",
        "rows",
        "MLP(784,10,10,10,10), 810 blocks, batch 10000",
        "two threads",
        "one thread",
    ),
    Headline(
        "noisy XOR: `MultiChainMCMC`, against Pyro's `MCMC` with the same kernel",
        "chains",
        _XOR,
        "MultiChainMCMC",
        "pyro.infer.MCMC",
    ),
    Headline(
        "noisy XOR: ten chains on two threads, against one",
        "threads",
        f"{_XOR}, fused",
        "chains: 10, threads: 2",
        "chains: 10, threads: 1",
        "sweep_seconds",
    ),
]

EEYORE = """
eeyore 0.0.20 is the code the paper ran on. All sample the same network on the same data in the same
blocks, from a draw of the prior, with the paper's proposal scales unless the row says otherwise.
eeyore and `FNBG.sample`, which is what Pyro's `MCMC` calls, draw their own noise and batches. The
engines are given both, so neither is in their time. Tuned scales are those of a chain after its
warmup. eeyore's sweep is not the paper's Algorithm 1, for a rejected candidate stays in the
position that the next block starts from: this compares speed, not draws.
"""

SWEEPS = """
Inside the engine, on one thread: 50 random inputs, two hidden sigmoid layers (the depth) of 10
nodes (the width), 5 classes, batches of 500 of 10,000 rows, one part to a node, one chain, tuned
scales, and one of these changed at a time; parts are those of the first layer's nodes, and chains
are run in one call. Noise and batches are given. The engines take the same decisions, except where
float32 rounds. The fused engine follows a candidate only on the rows where it changes anything, so
its time depends on where the chain is and on the scales.
"""

ROWS = """
Inside the fused engine, one chain with tuned scales; noise and batches are given. Threads share
batches of 1,024 rows or more. Of eeyore a single sweep, after none, with scales like the paper's.
"""

CHAINS = """
The time is that of one whole run without warmup on one thread, set-up included, over its sweeps;
with `thin=10` ten sweeps make one draw. The columns after it leave set-up out and count from the
first sweep to the end of the run: the time inside the fused engine, and the rest, which is noise,
batches, bookkeeping, storing draws and the diagnostics at the end. All have the paper's proposal
scales. eeyore runs its own loop over an epoch, and its set-up is not in its time.
"""

THREADS = """
Whole runs of `MultiChainMCMC`, with as many sweeps of warmup as draws. The first time has set-up in
it. The second counts from the first sweep to the end of the run, and is what is compared. Where
chains share no work, C chains on T threads can take no less than C / T times as long as one chain.
A machine with fewer free cores than threads shows less gain.
"""

MEMORY = """
Growth of the peak of resident memory in a fresh process over what was resident just before `run`,
when `run` has ended and when `get_samples(group_by_chain=True)` has too. A run of two draws comes
first, so that code which is loaded at first use is not counted. All chains run in one process.
"""

ESS = f"""
Small problems, where gradients and random walks work as well. All rows are used in every step, so
all samplers target the posterior exactly. Chains start from the same draws of the prior, run on one
thread, and have Pyro's default settings and this package's. A third of the steps are warmup, and
there are as many as take about the same time. The effective sample size is ArviZ's bulk ESS of the
predicted probability at each of 20 points, over the time of everything, set-up and warmup included.
Where the largest split R-hat over these points is above {MAX_R_HAT}, chains have not converged in
that turn; their figures say nothing of efficiency and are not compared. Nothing here carries over
to larger models.
"""

TABLES = {
    "eeyore": Table("A sweep, against eeyore", "eeyore", "a sweep", EEYORE),
    "sweeps": Table(
        "A sweep, against width, depth, batch, parts and chains",
        "fused",
        "a sweep of all chains",
        SWEEPS,
        is_speed=False,
    ),
    "rows": Table("A chain on two threads, and wide networks", "one thread", "a sweep", ROWS),
    "chains": Table(
        "A whole chain, and what is spent outside the engine",
        "pyro.infer.MCMC",
        "a sweep",
        CHAINS,
    ),
    "threads": Table(
        "Many chains, against chains and threads",
        "chains: 1, threads: 1",
        "a sweep of all chains",
        THREADS,
        compared="sweep_seconds",
    ),
    "memory": Table("Peak memory", "", "", MEMORY),
    "ess": Table(
        "Effective sample size of predictions a second",
        "FNBG",
        "all chains",
        ESS,
        compared="median_ess",
    ),
}

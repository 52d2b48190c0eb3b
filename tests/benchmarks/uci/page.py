"""The page of the benchmark: what was run, its tables, who is better in what, and what failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from benchmarks.report import SMOKE_WARNING, line, number, unique
from benchmarks.uci.sets import SETS

__all__ = ["page"]

Record = Mapping[str, Any]

NAMES = {
    "warm": "FNBG, from fits",
    "cold": "FNBG, from the prior",
    "bde": "sklearn-contrib-bde",
    "nuts": "NUTS",
    "ensemble": "deep ensemble",
    "boosting": "boosted trees",
    "linear": "linear model",
}
# Their means over seeds, in the results that its authors publish for the split of seed 0
PUBLISHED = {
    "airfoil": {"rmse": 0.1216, "gaussian_nll": -0.913},
    "bikesharing": {"rmse": 0.2261, "gaussian_nll": -0.732},
}
PAIRS = (("warm", "bde"), ("warm", "ensemble"), ("warm", "nuts"), ("warm", "cold"))

INTRODUCTION = """# Sets in common use
{warning}
How good are the answers of our chains, beside those of other methods that have the same time? All
on this page comes from one command, which keeps a record of each row in
`tests/benchmarks/results/uci` and writes this page from them:

```sh
make bench-uci DATA=FOLDER
```

Machine
: {machines}. Every row ran in a process of its own, which had one core and one thread

Versions
: {versions}

Sets
: A fifth of the rows is held out (`train_test_split(test_size=0.2, random_state=seed)`). Inputs,
  and responses that are numbers, are standardised by the other rows, so errors and densities are
  in units of the response's standard deviation. Bikesharing has the season where the file has the
  row's number, as in the benchmark of sklearn-contrib-bde's authors

Network
: {hidden} rectified nodes and N(0, 1) priors of all weights and biases; outputs are a mean and a
  scale (softplus of the second output, plus 1e-6), or the logits of classes. The same for our
  chains, sklearn-contrib-bde, NUTS and the deep ensemble

Time
: Seconds are those of the processor. Our chains and the deep ensemble may take as many as
  sklearn-contrib-bde took for the same set and seed, unless another budget is among their settings.
  What is compiled is counted: by JAX in every row, by our engine once in an environment, in its
  first row. Beside other work the same takes up to twice the seconds, by any method: compare
  them within a seed

## Methods
"""

METHODS = {
    "warm": "Our chains, from `warm_start`: fits of the network to the model's own density from "
    "different random starts, one for each chain. Their time is in that of the row.",
    "cold": "Our chains, each from a draw of the prior.",
    "bde": "An ensemble of networks fitted by Adam, each then the start of a chain of Langevin "
    "dynamics without a Metropolis step, as its authors' own benchmark has it. Draws are taken as "
    "the package gives them.",
    "nuts": "NumPyro, each chain from a draw of the prior, one after the other; no further chain "
    "is begun after the seconds named.",
    "ensemble": "Fits by `warm_start`, longer ones than those that start our chains, as many as "
    "the time allows; a prediction is the mixture over them.",
    "boosting": "scikit-learn's histogram-based boosting at a step size of 0.05; 100 or 1,000 "
    "trees, and at least 5 or 20 rows in a leaf, by 5-fold cross-validation on the rows to learn "
    "from. The standard deviation of numbers is one for all rows: the root of the mean square of "
    "errors of that cross-validation.",
    "linear": "Least squares, with the standard deviation found as for boosted trees; or logistic "
    "regression.",
}

SCORES_TEXT = """The log predictive density is that of the mixture over all draws, a mean over rows,
in nats. The Gaussian NLL is minus that of one Normal distribution with the mixture's mean and
standard deviation, which is what the authors of sklearn-contrib-bde publish. Coverages are those of
central intervals. R-hat and effective sample size (ESS) are of predictions, of means or of
probabilities, over up to 200 test rows: the largest and the median R-hat, the median ESS. Figures
are means over seeds, and in brackets the least and the largest."""

COURSE_TEXT = """Scores of the first chains pooled, and of the first draws of all chains: means over
seeds. Where the last line still differs from the one above it, more chains or longer ones would
predict otherwise."""


LONGER_TEXT = """Rows with a budget of their own (`--budget-seconds`, with a results folder named
`longer` below that of the others), each below the row that has the time of sklearn-contrib-bde."""


class Column(NamedTuple):
    """Say how a figure is found in a record, and how it is shown.

    Attributes:
        heading: Heading of its column.
        part: Part of the record that it is in.
        key: Its name there.
        show: From the number to text.
        sign: 1 where more is better, -1 where less is, 0 where neither is.
    """

    heading: str
    part: str
    key: str
    show: Callable[[float], str]
    sign: int = 0


def _short(value: float) -> str:
    return f"{value:.3f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f}"


def _r_hat(value: float) -> str:
    return f"{value:.2f}" if value < 100 else "over 100"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


LPPD = Column("log predictive density", "scores", "lppd", _short, 1)
OF_NUMBERS = (
    Column("RMSE", "scores", "rmse", _short, -1),
    LPPD,
    Column("Gaussian NLL", "scores", "gaussian_nll", _short, -1),
    *(Column(f"inside {one} %", "scores", f"coverage_{one}", _share) for one in (50, 80, 90, 95)),
)
OF_CLASSES = (
    Column("accuracy, %", "scores", "accuracy", lambda value: f"{100 * value:.1f}", 1),
    LPPD,
    Column("calibration error", "scores", "calibration_error", _short, -1),
)
OF_CHAINS = (
    Column("largest R-hat", "diagnostics", "r_hat_max", _r_hat),
    Column("median R-hat", "diagnostics", "r_hat_median", _r_hat),
    Column("median ESS", "diagnostics", "ess_median", _whole),
    Column("seconds", "about", "core_seconds", lambda value: number(value)),
)


def page(records: Sequence[Record], longer: Sequence[Record] = ()) -> str:
    """Write the page from the records of all rows, and of those that had another budget."""
    records = sorted(records, key=order)
    done = [record for record in records if record["status"] == "done"]
    failed = [record for record in records if record["status"] == "failed"]
    sections = [introduction(records, done), *method_texts(records), "## Scores", SCORES_TEXT]
    names = unique(record["set"] for record in done)
    for name in names:
        of_set = [record for record in done if record["set"] == name]
        sections += [f"### {name}", set_text(of_set), "\n".join(score_lines(of_set))]
        if found := [words for pair in PAIRS if (words := verdict(of_set, *pair))]:
            sections.append("\n".join(found))
    sections += ["## How many chains and draws it takes", COURSE_TEXT]
    for name in names:
        of_set = [record for record in done if record["set"] == name]
        for by, unit in (("chains", "chains or members"), ("draws", "draws of each")):
            if lines := list(course_lines(of_set, by, unit)):
                sections += [f"{name}:", "\n".join(lines)]
    if lines := list(longer_lines(done, sorted(longer, key=order))):
        sections += ["## With more time", LONGER_TEXT, "\n".join(lines)]
    if lines := list(acceptance_lines(done)):
        sections += [
            "## Acceptance",
            "Acceptance rates of our chains after warmup by layer: the median over chains and "
            "seeds, and the least and the largest chain's.",
            "\n".join(lines),
        ]
    if failed:
        sections += ["## Rows that failed", "\n".join(map(failure, failed))]
    return "\n\n".join(sections) + "\n"


def longer_lines(done: Sequence[Record], longer: Sequence[Record]) -> Iterable[str]:
    """Write each row that had a budget of its own below the one that had that of all."""
    columns = [*OF_NUMBERS[:3], *OF_CHAINS[1:2], OF_CHAINS[-1]]
    if longer:
        yield line(["set, seed", "by", "chains", *(column.heading for column in columns)])
        yield line(["---", "---", *["---:"] * (len(columns) + 1)])
    for record in longer:
        same = [one for one in done if key_of(one) == key_of(record)]
        for one in [*same, record]:
            cells = [column.show(one[column.part][column.key]) for column in columns]
            place = f"{one['set']}, {one['seed']}"
            yield line([place, NAMES[one["method"]], str(one["shape"][0]), *cells])


def key_of(record: Record) -> tuple[str, int, str]:
    """Return what a row is of."""
    return record["set"], record["seed"], record["method"]


def order(record: Record) -> tuple[int, int, int]:
    """Return by what rows are sorted: set, method, seed."""
    return SETS.index(record["set"]), list(NAMES).index(record["method"]), record["seed"]


def introduction(records: Sequence[Record], done: Sequence[Record]) -> str:
    """Say what was run, and where."""
    versions: dict[str, list[str]] = {}
    for record in done:
        for package, found in (record["versions"] | record["about"].get("versions", {})).items():
            versions.setdefault(package, [])
            if found not in versions[package]:
                versions[package].append(found)
    machines = unique(
        f"{record['machine']['processor']}, {record['machine']['system']}" for record in done
    )
    hidden = records[0]["settings"]["hidden"]
    return INTRODUCTION.format(
        warning=SMOKE_WARNING if any(record["plan"] != "full" for record in records) else "",
        machines="; ".join(machines),
        versions=", ".join(f"{name} {' and '.join(found)}" for name, found in versions.items()),
        hidden="-".join(map(str, hidden)),
    )


def method_texts(records: Sequence[Record]) -> Iterable[str]:
    """Say of every method what it is, and with which arguments it ran."""
    for method, text in METHODS.items():
        of_method = [record for record in records if record["method"] == method]
        if of_method:
            settings = unique(words_of(record["settings"]) for record in of_method)
            words = "; or ".join(filter(None, settings))
            yield f"{NAMES[method]}\n: {text}" + (f" Settings: {words}." if words else "")


def words_of(settings: Mapping[str, Any]) -> str:
    """Show settings, those inside others among them; the network's are said elsewhere."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in flat.items()
        if name != "hidden"
    )


def set_text(records: Sequence[Record]) -> str:
    """Say how large a set is, and what is published of it."""
    first = records[0]
    rows, classes = first["rows"], first["num_classes"]
    kind = f", {classes} classes" if classes else ""
    seeds = ", ".join(str(seed) for seed in sorted({record["seed"] for record in records}))
    words = (
        f"{rows['train']:,} rows to learn from and {rows['test']:,} to test, {first['inputs']} "
        f"inputs{kind}; seeds {seeds}."
    )
    if found := PUBLISHED.get(first["set"]):
        words += (
            " Published for sklearn-contrib-bde, by its authors, for the split of seed 0: RMSE "
            f"{found['rmse']}, Gaussian NLL {found['gaussian_nll']}."
        )
    return words


def score_lines(records: Sequence[Record]) -> Iterable[str]:
    """Tabulate the scores of everybody on one set."""
    columns = (*(OF_CLASSES if records[0]["num_classes"] else OF_NUMBERS), *OF_CHAINS)
    yield line(["", *(column.heading for column in columns), "chains × draws"])
    yield line(["---", *["---:"] * (len(columns) + 1)])
    for method, name in NAMES.items():
        mine = [record for record in records if record["method"] == method]
        if mine:
            cells = [spread(values_of(mine, column), column.show) for column in columns]
            shapes = unique(f"{chains} × {draws}" for chains, draws in (r["shape"] for r in mine))
            yield line([name, *cells, ", ".join(shapes)])


def values_of(records: Sequence[Record], column: Column) -> list[float]:
    """Find a figure in the records that have it."""
    return [record[column.part][column.key] for record in records if has(record, column)]


def has(record: Record, column: Column) -> bool:
    """Whether a record has a figure."""
    return column.key in record[column.part]


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Show the mean and the range."""
    if not values:
        return ""
    middle, low, high = show(mean(values)), show(min(values)), show(max(values))
    return middle if low == high else f"{middle} ({low} to {high})"


def verdict(records: Sequence[Record], ours: str, theirs: str) -> str:
    """Say in words who has the better scores, over the seeds that both have."""
    by_seed = {
        method: {record["seed"]: record for record in records if record["method"] == method}
        for method in (ours, theirs)
    }
    seeds = sorted(by_seed[ours].keys() & by_seed[theirs].keys())
    if not seeds:
        return ""
    pairs = [(by_seed[ours][seed], by_seed[theirs][seed]) for seed in seeds]
    verbs = "better in", "worse in", "equal in", "seeds disagree on"
    found: dict[str, list[str]] = {verb: [] for verb in verbs}
    for column in OF_CLASSES if records[0]["num_classes"] else OF_NUMBERS:
        if column.sign:
            gains = [
                column.sign * (values_of([one], column)[0] - values_of([two], column)[0])
                for one, two in pairs
            ]
            found[verbs[place_of(gains)]].append(column.heading)
    words = "; ".join(f"{verb} {', '.join(names)}" for verb, names in found.items() if names)
    seconds = [mean(pair[i]["about"]["core_seconds"] for pair in pairs) for i in (0, 1)]
    return (
        f"- {NAMES[ours]} ({seconds[0]:,.0f} s) against {NAMES[theirs]} ({seconds[1]:,.0f} s), "
        f"seeds {', '.join(map(str, seeds))}: {words}"
    )


def place_of(gains: Sequence[float]) -> int:
    """Return 0 if all are gains, 1 if all are losses, 2 if there are neither, and 3 otherwise."""
    is_all = (min(gains) > 0, max(gains) < 0, not any(gains))
    return is_all.index(True) if any(is_all) else 3


def course_lines(records: Sequence[Record], by: str, unit: str) -> Iterable[str]:
    """Tabulate scores of fewer chains or draws."""
    columns = (OF_CLASSES if records[0]["num_classes"] else OF_NUMBERS)[:3]
    several = {
        method: mine
        for method in NAMES
        if (mine := [record for record in records if record["method"] == method])
        and all(len(record["course"][by]) > 1 for record in mine)
    }
    if not several:
        return
    shown = [column for column in columns if column.key in first_course(several, by)]
    headings = [
        f"{NAMES[method]}: {', '.join(column.heading for column in shown)}" for method in several
    ]
    yield line([unit, *headings])
    yield line(["---:"] * (1 + len(several)))
    # Seeds may have had time for different numbers: a mean over some of them compares with no other
    of_all = [
        set.intersection(*(set(record["course"][by]) for record in mine))
        for mine in several.values()
    ]
    counts = sorted(set.union(*of_all))
    for count in counts:
        cells = []
        for mine, known in zip(several.values(), of_all, strict=True):
            of_count = [record["course"] for record in mine] if count in known else []
            cells.append(
                ", ".join(
                    column.show(
                        mean(one[f"by_{by}"][column.key][one[by].index(count)] for one in of_count)
                    )
                    for column in shown
                )
                if of_count
                else ""
            )
        yield line([f"{count:,}", *cells])


def first_course(several: Mapping[str, Sequence[Record]], by: str) -> Mapping[str, Any]:
    """Return the course of one record: all have the same scores."""
    found: Mapping[str, Any] = next(iter(several.values()))[0]["course"][f"by_{by}"]
    return found


def acceptance_lines(records: Sequence[Record]) -> Iterable[str]:
    """Tabulate acceptance rates of our chains by layer."""
    rates: dict[tuple[str, str], list[list[float]]] = {}
    for record in records:
        if found := record["about"].get("acceptance_by_layer"):
            rates.setdefault((record["set"], record["method"]), []).extend(found)
    if not rates:
        return
    num_layers = max(len(chain) for chains in rates.values() for chain in chains)
    yield line(["", "", *(f"layer {layer + 1}" for layer in range(num_layers))])
    yield line(["---", "---", *["---:"] * num_layers])
    for (name, method), chains in rates.items():
        layers = zip(*chains, strict=True)
        cells = [
            f"{_share(median(one))} % ({_share(min(one))} to {_share(max(one))})" for one in layers
        ]
        yield line([name, NAMES[method], *cells])


def failure(record: Record) -> str:
    """Say which row failed, and how."""
    return f"- {record['set']}, seed {record['seed']}, {NAMES[record['method']]}: {record['error']}"

"""What is in a store and how its chains went, as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np
import torch

from pyro_fnbg.command_line.figures import (
    MAX_TRACED,
    acceptance_figure,
    ranks_figure,
    traces_figure,
)
from pyro_fnbg.command_line.quantities import (
    Quantity,
    coordinates,
    log_density,
    worst_prediction,
)
from pyro_fnbg.command_line.summary import Summary, number_of
from pyro_fnbg.results.estimates import site_estimates

__all__ = ["page_of"]

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: #1b1b1b; background: #fff;
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; padding-top: 0.75rem; border-top: 1px solid #ccc; }
p, ul { margin: 0.5rem 0; max-width: 46rem; }
ul { padding-left: 1.25rem; }
.path { color: #555; font-family: ui-monospace, monospace; font-size: 0.875rem; }
.state { display: inline-block; padding: 0.1rem 0.6rem; border-radius: 1rem; font-size: 0.875rem;
  background: #dcefe5; }
.state.open { background: #fbe7c6; }
.warnings { background: #fff6e5; border-left: 0.25rem solid #d98a00; padding: 0.5rem 1rem; }
.note { color: #555; font-size: 0.875rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: left; padding: 0.25rem 1.25rem 0.25rem 0; vertical-align: top;
  border-bottom: 1px solid #e4e4e4; }
th { font-weight: 600; }
td.number, th.number { text-align: right; }
dl { display: grid; grid-template-columns: 9rem 1fr; margin: 0.5rem 0; }
dt { color: #555; }
dd { margin: 0 0 0.25rem; }
figure { margin: 1rem 0; }
figcaption { font-size: 0.875rem; max-width: 46rem; }
img { display: block; max-width: 100%; height: auto; }
@media (max-width: 40rem) {
  dl { display: block; }
  dd { margin-bottom: 0.5rem; }
  table { font-size: 0.875rem; }
  th, td { padding-right: 0.75rem; }
  img.wide { max-width: none; width: 42rem; }
  .scroll:has(img.wide) + figcaption::before { content: "Wider than the screen: swipe. "; }
}
"""

SYMMETRIES = (
    "Weights of networks have symmetries: nodes can trade places and signs without any change in "
    "what the network computes. So chains that agree in all they predict can differ here, and the "
    "numbers above may be bad for that reason alone. pyro_fnbg.store_predictions(store, model, x) "
    "keeps what every draw predicts for some rows; this page then diagnoses those."
)
ON_BATCHES = (
    "Each draw is scored on the batch of its sweep. On different batches it differs for one and "
    "the same position, so this says little of convergence."
)


def page_of(summary: Summary) -> str:
    """Return a page of HTML on a store, pictures included."""
    name = escape(summary.contents.archive.path.name)
    sections = "\n".join(_sections(summary))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}: {escape(summary.progress)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Run {name}</h1>
<p class="path">{escape(str(summary.contents.archive.path))}</p>
<p><span class="state{"" if summary.is_complete else " open"}">{
        "complete" if summary.is_complete else "not complete"
    }</span> {escape(summary.progress)}</p>
{sections}
</body>
</html>
"""


def _sections(summary: Summary) -> Iterator[str]:
    if summary.cautions:
        items = "".join(f"<li>{escape(line)}</li>" for line in summary.cautions)
        yield f'<section class="warnings"><strong>Warnings</strong><ul>{items}</ul></section>'
    yield "<h2>What the chains target</h2>"
    yield f"<p>{escape(_sentence(summary.target))}</p>"
    yield "<h2>Summary</h2>"
    yield _facts(summary.facts)
    if summary.contents.num_draws == 0:
        yield (
            "<p>There are no draws yet, so there is nothing to draw or to diagnose: make this "
            "page again when the warmup is over.</p>"
        )
    else:
        yield from _acceptance(summary)
        yield from _course(summary)
        yield from _convergence(summary)
    yield "<h2>Sites</h2>"
    rows = [words.rsplit(" ", 1) for words in summary.sites.values()]
    yield _table(
        ("site", "shape of a draw", "type"),
        [(name, *row) for name, row in zip(summary.sites, rows, strict=True)],
    )
    yield "<h2>Versions and seeds</h2>"
    yield _facts(summary.origin)


def _acceptance(summary: Summary) -> Iterator[str]:
    yield "<h2>Acceptance by layer</h2>"
    yield _figure(
        acceptance_figure(summary.reports),
        "Share of accepted candidates by layer, over all draws. A dot is a chain; a box spans the "
        "quartiles.",
        "acceptance by layer",
    )
    layers, are_several = summary.layers, len(summary.reports) > 1
    columns = {"layer": [row.layer for row in layers]}
    columns["mean" if are_several else "rate"] = [f"{row.rate:.1%}" for row in layers]
    words = "Mean of the chains, and the chains with the least and the largest. " * are_several
    if are_several:
        columns["least"] = [f"{row.least:.1%}" for row in layers]
        columns["largest"] = [f"{row.largest:.1%}" for row in layers]
    if shares := [row.reversed_share for row in layers if row.reversed_share is not None]:
        columns["reversed"] = [f"{share:.1%}" for share in shares]
        words += "Reversed: decisions that another batch would reverse, as measured at the end."
    yield _table(list(columns), list(zip(*columns.values(), strict=True)), numbers_from=1)
    yield f'<p class="note">{words}</p>' if words else ""


def _course(summary: Summary) -> Iterator[str]:
    yield "<h2>Log density</h2>"
    if "lp" not in summary.contents.sample_stats:
        yield f"<p>{ON_BATCHES}</p>"
    yield _traces(summary, log_density(summary))


def _convergence(summary: Summary) -> Iterator[str]:
    yield "<h2>Convergence</h2>"
    looked_at = list(coordinates(summary))
    worst = worst_prediction(summary)
    if summary.diagnosed is None:
        yield "<p>No predictions are stored, so a few coordinates of sites stand for the draws.</p>"
        yield _estimates(looked_at)
        yield f'<p class="note">Of {_read(looked_at[0])}.</p>' if looked_at else ""
        yield f"<p>{SYMMETRIES}</p>"
    else:
        lines, which = summary.diagnosed_lines, summary.diagnosed[1]
        yield f"<p>Of the stored predictions of {escape(which)}:</p>"
        yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
        yield (
            '<p class="note">R-hat (rank-normalised and split) compares chains, 1 where they '
            "agree; ess are effective sample sizes of the bulk and of the tails; mcse is the Monte "
            "Carlo standard error of a mean.</p>"
        )
    for quantity in ([] if worst is None else [worst]) + looked_at:
        yield f"<h3>{escape(quantity.label)}</h3>"
        yield _traces(summary, quantity)
        if len(quantity.values) > 1 and np.isfinite(quantity.values).all():
            yield _figure(
                ranks_figure(quantity, summary.contents.chains),
                f"How draws rank among all, of {_read(quantity)}: level, near 1, where chains draw "
                "from one distribution.",
                f"ranks of {quantity.label}",
            )


def _estimates(quantities: Sequence[Quantity]) -> str:
    """Tabulate R-hat and effective sample size of some quantities."""
    rows = []
    for quantity in quantities:
        found = site_estimates(torch.from_numpy(quantity.values).unsqueeze(-1))
        estimates = (found["r_hat"].item(), found["n_eff"].item())
        words = ("unknown" if np.isnan(one) else f"{one:.4g}" for one in estimates)
        rows.append((quantity.label, *words))
    return _table(("coordinate", "R-hat", "effective draws"), rows, numbers_from=1)


def _read(quantity: Quantity) -> str:
    """Say of which draws a quantity is."""
    num_chains, num_draws = quantity.values.shape
    few = f", one in {quantity.every:,}" if quantity.every > 1 else ""
    return f"{num_draws:,} draws of each of {number_of(num_chains, 'chain')}{few}"


def _traces(summary: Summary, quantity: Quantity) -> str:
    chains = summary.contents.chains
    few = f" of the first {MAX_TRACED} chains" if len(chains) > MAX_TRACED else ""
    words = (
        f"Course{few}, draw by draw. Dark: running mean. Right: the end from near, on a scale of "
        "its own."
    )
    return _figure(traces_figure(quantity, chains), words, quantity.label, is_wide=True)


def _figure(source: str, words: str, what: str, is_wide: bool = False) -> str:
    kind = ' class="wide"' if is_wide else ""
    return (
        f'<figure><div class="scroll"><img{kind} src="{source}" alt="{escape(what)}"></div>'
        f"<figcaption>{escape(words)}</figcaption></figure>"
    )


def _facts(words: Mapping[str, str]) -> str:
    items = "".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>" for n, v in words.items())
    return f"<dl>{items}</dl>"


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None
) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        first = len(row) if numbers_from is None else numbers_from
        return "".join(
            f"<{tag}{' class=number' if place >= first else ''}>{escape(one)}</{tag}>"
            for place, one in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells("th", columns)}</tr>{body}</table></div>'


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."

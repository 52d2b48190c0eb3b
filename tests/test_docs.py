"""What the documentation shows runs as it is written, and it leaves no public name out."""

import os
import re
import runpy
from pathlib import Path
from pkgutil import resolve_name

import matplotlib.pyplot as plt
import pyro
import pyro.infer.mcmc.api as api
import pytest
from docutils.utils.math.latex2mathml import tex2mathml
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pyro.infer import MCMC

import pyro_fnbg
from pyro_fnbg import FNBG, BayesianMLP, noisy_xor, plots, testing
from support.slow import slowly

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {path.stem: path for path in sorted(DOCS.glob("*.md"))}
# Cells are run by Sphinx, too, which shows what they draw
CODE_BLOCK = re.compile(
    r"^```(?:python|\{code-cell\} python)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL
)
MAX_WIDTH = 90  # characters that the theme shows without scrolling
API = PAGES["api"].read_text("utf-8")


def program(text):
    """Join the blocks of a page, each on its lines there, so that tracebacks are right."""
    lines = [""] * text.count("\n")
    for block in CODE_BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        code = block.group(1).splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", [n for n, path in PAGES.items() if "$" in path.read_text("utf-8")])
def test_equations_of_a_page_become_mathml(name):
    """As Sphinx writes them, which ends where one cannot be written."""
    tokens = MarkdownIt().use(dollarmath_plugin).parse(PAGES[name].read_text("utf-8"))
    inline = [child for token in tokens for child in token.children or ()]
    for token in [*tokens, *inline]:
        if token.type.startswith("math_"):
            assert tex2mathml(token.content, as_block="block" in token.type)


# Pages that take more than three seconds
LONG = ("chains", "correctness", "estimators", "gallery", "stores", "swap-in", "warm-starts")


@pytest.mark.filterwarnings("error::UserWarning", "ignore:num_chains=:UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        slowly(name) if name in LONG else name
        for name, path in PAGES.items()
        if CODE_BLOCK.search(path.read_text("utf-8"))
    ],
)
def test_code_of_a_page_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    # Chains in turn, whatever the machine: a page in workers would need a file of its own
    monkeypatch.setattr(api.mp, "cpu_count", lambda: 1)
    monkeypatch.chdir(tmp_path)
    code = compile(program(PAGES[name].read_text("utf-8")), str(PAGES[name]), "exec")
    exec(code, {"__name__": "__main__"})
    plt.close("all")


def test_code_keeps_its_lines():
    text = "# Title\n\n```python\na = 1\n```\n\n```sh\nb\n```\n\n```python\nc = a\n```\n"
    assert program(text).splitlines() == ["", "", "", "a = 1", *[""] * 7, "c = a", ""]


@pytest.mark.parametrize("name", PAGES)
def test_no_line_of_code_is_too_wide_for_the_page(name):
    text = PAGES[name].read_text("utf-8")
    blocks = re.findall(r"^```(?:\w+|\{code-cell\} \w+)\n(.*?)^```$", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert not [line for line in lines if len(line) > MAX_WIDTH]


def test_every_public_name_is_in_the_reference():
    listed = set(re.findall(r"^\.\. \w[\w:]*:: pyro_fnbg\.(\S+)$", API, flags=re.MULTILINE))
    assert set(pyro_fnbg.__all__) <= listed
    assert {f"plots.{name}" for name in plots.__all__} <= listed
    assert {f"testing.{name}" for name in testing.__all__} <= listed


def test_every_entry_of_the_reference_has_an_example():
    entries = re.findall(r"^\.\. auto\w+:: (\S+)$", API, flags=re.MULTILINE)
    assert len(entries) > 80
    lacking = [name for name in entries if ">>> " not in (resolve_name(name).__doc__ or "")]
    assert not lacking


def test_every_plot_is_in_the_gallery_once():
    page = PAGES["gallery"].read_text("utf-8")
    shown = re.findall(r"^### (\w+)$", page, flags=re.MULTILINE)
    assert sorted(shown) == sorted(plots.__all__)
    for name in plots.__all__:
        assert page.count(f"{{py:func}}`~pyro_fnbg.plots.{name}`") == 1
        assert re.search(rf"^plots\.{name}\(", page, flags=re.MULTILINE)


def test_every_entry_of_the_diagnostics_is_explained():
    page = PAGES["diagnostics"].read_text("utf-8")
    data = noisy_xor(num_train=40, num_test=4)
    kernel = FNBG(BayesianMLP([2, 2, 1], likelihood="bernoulli"), batch_size=10)
    pyro.set_rng_seed(0)
    MCMC(kernel, num_samples=4, warmup_steps=4, disable_progbar=True).run(
        data.x_train, data.y_train
    )
    report = kernel.diagnostics()
    assert not [name for name in report if f'`"{name}"`' not in page]
    assert not [name for name in report["sample_stats"] if f"`{name}`" not in page]


def test_every_page_is_in_a_table_of_contents():
    tables = re.findall(
        r"^```{toctree}\n(.*?)^```$", PAGES["index"].read_text("utf-8"), re.M | re.S
    )
    listed = [
        line for table in tables for line in table.splitlines() if re.fullmatch(r"[\w/-]+", line)
    ]
    notebooks = [
        f"notebooks/{path.stem}" for path in DOCS.parent.glob("examples/notebooks/*.ipynb")
    ]
    assert len(notebooks) >= 4
    assert sorted([*listed, "index"]) == sorted([*PAGES, *notebooks])


def test_notebooks_are_built_with_pictures_and_without_bars(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("TQDM_DISABLE", "")
    runpy.run_path(str(DOCS / "conf.py"))
    assert "MPLBACKEND" not in os.environ
    assert os.environ["TQDM_DISABLE"] == "1"

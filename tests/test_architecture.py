"""Imports inside the package point one way, and modules stay small."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "pyro_fnbg"

# A module may import from strictly earlier layers only. `engines.*` stands for every module of
# that folder that has no place of its own; the folder's `__init__` may import all of them.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("typing", "checks"),
    ("layout", "supports", "buffers", "datasets"),
    ("arguments", "blocks", "observations", "structure"),
    ("nodes", "noise", "shuffling", "mlp_arguments"),
    ("step", "batches", "adaptation", "models", "sites", "data", "images", "seeds"),
    ("spawning", "interrupts", "errors", "transforms"),
    ("density", "planning", "rows", "unused"),
    ("engines.base", "initial", "randomness"),
    ("engines.network",),
    ("engines.places", "engines.elementwise"),
    ("engines.memory",),
    ("engines.layers",),
    ("engines.proposals",),
    ("engines.compiled",),
    ("engines.*",),
    ("diagnostics", "engines.choice"),
    ("config",),
    ("run",),
    ("ahead", "chains", "reports"),
    ("kernel",),
    ("draws", "progress", "estimates"),
    ("collect",),
    ("workers",),
    ("driver",),
    ("predictive", "interop", "figures"),
    ("plots",),
)
WITHOUT_PYRO = (
    "typing",
    "checks",
    "layout",
    "blocks",
    "nodes",
    "step",
    "noise",
    "shuffling",
    "batches",
    "adaptation",
)
MAX_LINES = 300


def module_name(path: Path) -> str:
    """Return the module's name inside the package; "" is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer(module: str) -> int | None:
    """Return the number of the module's layer, or None if it has no place."""
    for name in (module, f"{module.partition('.')[0]}.*"):
        for number, members in enumerate(LAYERS):
            if name in members:
                return number
    return None


def imported(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Yield the full dotted name of everything that the source imports, wherever it does."""
    inside = ["pyro_fnbg", *filter(None, module.split("."))]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            keep = len(inside) - node.level + is_package
            start = inside[:keep] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def violations(
    source: str, module: str, is_package: bool = False, modules: frozenset[str] | None = None
) -> list[str]:
    """Return what is wrong with the imports of a module, in words."""
    modules = frozenset(FILES) if modules is None else modules
    wrong = []
    for name in imported(source, module, is_package):
        root, _, inner = name.partition(".")
        if root == "pyro" and module in WITHOUT_PYRO:
            wrong.append(f"{module} imports {name}, but may not know Pyro")
        if root != "pyro_fnbg":
            continue
        target = inner if inner in modules else inner.rpartition(".")[0]
        if not target:
            wrong.append(f"{module} imports {name} from the package, not from its module")
            continue
        own, other = layer(module), layer(target)
        gathers = is_package and target.startswith(f"{module}.")
        if target != module and not gathers and (own is None or other is None or other >= own):
            wrong.append(f"{module} (layer {own}) imports {target} (layer {other})")
    return wrong


@pytest.mark.parametrize("module", sorted(FILES.keys() - {""}))
def test_module_has_a_place_and_imports_only_earlier_layers(module):
    assert layer(module) is not None, f"give {module} a place in LAYERS"
    path = FILES[module]
    wrong = violations(path.read_text("utf-8"), module, path.name == "__init__.py")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", sorted(FILES))
def test_module_is_not_too_long(module):
    count = len(FILES[module].read_text("utf-8").splitlines())
    assert count <= MAX_LINES, f"{FILES[module].name} has {count} lines; at most {MAX_LINES}"


# --- The check itself --------------------------------------------------------------------------

MODULES = frozenset(
    ("", "typing", "blocks", "step", "batches", "density", "kernel", "interop", "extra")
    + ("engines", "engines.base", "engines.trace", "engines.feedforward")
)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("blocks", "from pyro_fnbg.step import sweep"),
        ("blocks", "from pyro_fnbg import step"),
        ("blocks", "import pyro_fnbg.step as s"),
        ("blocks", "from .step import sweep"),
        ("blocks", "from . import step"),
        ("step", "from pyro_fnbg.batches import Batches"),
        ("step", "def f():\n    from pyro_fnbg.kernel import FNBG"),
        ("step", "if TYPE_CHECKING:\n    from pyro_fnbg.kernel import FNBG"),
        ("step", "import pyro.distributions as dist"),
        ("step", "from pyro import poutine"),
        ("density", "from pyro_fnbg.engines import make"),
        ("engines.trace", "from ..kernel import FNBG"),
        ("engines.trace", "from .feedforward import Engine"),
        ("engines.trace", "from . import feedforward"),
        ("engines.base", "from .trace import Engine"),
        ("kernel", "from pyro_fnbg import FNBG"),
        ("kernel", "import pyro_fnbg"),
        ("kernel", "from pyro_fnbg.extra import x"),
        ("extra", "from pyro_fnbg.typing import x"),
    ],
)
def test_wrong_import_is_found(module, source):
    assert len(violations(source, module, modules=MODULES)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("typing", "import torch, typing"),
        ("step", "from pyro_fnbg.blocks import Block\nfrom .typing import Batch"),
        ("density", "import pyro\nfrom pyro_fnbg import step, blocks"),
        ("engines.trace", "from pyro_fnbg.density import f\nfrom ..step import sweep"),
        ("engines.trace", "from .base import Engine\nfrom pyro_fnbg.engines.base import Draws"),
        ("kernel", "from pyro_fnbg.engines.trace import Engine"),
        ("kernel", "from .engines import make"),
        ("interop", "from .kernel import FNBG\nimport arviz"),
        ("step", "from pyroscope import x"),
    ],
)
def test_right_import_is_not(module, source):
    assert violations(source, module, modules=MODULES) == []


def test_engines_package_may_gather_its_modules():
    source = "from .trace import Trace\nfrom pyro_fnbg.engines.feedforward import Feedforward"
    assert violations(source, "engines", is_package=True, modules=MODULES) == []
    assert violations("from ..kernel import FNBG", "engines", is_package=True, modules=MODULES)


def test_each_module_has_one_layer():
    members = [name for names in LAYERS for name in names]
    assert len(members) == len(set(members))
    assert set(WITHOUT_PYRO) <= set(members)

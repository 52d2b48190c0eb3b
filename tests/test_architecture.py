"""Imports between the rooms of the package point one way, and modules stay readable."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "pyro_fnbg"

# A room may import from the rooms before it, and from itself
ROOMS = (
    "core",
    "networks",
    "data",
    "model",
    "graphs",
    "prediction",
    "plots",
    "engines",
    "config",
    "chains",
    "stock",
    "fitting",
    "kernel",
    "results",
    "stores",
    "drivers",
    "estimators",
    "testing",
    "versions",
    "command_line",
    "__main__",
)
WITHOUT_PYRO = ("core", "data", "plots")
MAX_LINES = 400


def module_name(path: Path) -> str:
    """Return the module's name inside the package; "" is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


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


def targets(
    source: str, module: str, is_package: bool = False, modules: frozenset[str] | None = None
) -> Iterator[str]:
    """Yield the modules of the package that the source imports; "" is the package itself."""
    modules = frozenset(FILES) if modules is None else modules
    for name in imported(source, module, is_package):
        root, _, inner = name.partition(".")
        if root == "pyro_fnbg":
            yield inner if inner in modules else inner.rpartition(".")[0]


def violations(
    source: str, module: str, is_package: bool = False, modules: frozenset[str] | None = None
) -> list[str]:
    """Return what is wrong with the imports of a module, in words."""
    room = module.partition(".")[0]
    wrong = [
        f"{module} imports {name}, but its room may not know Pyro"
        for name in imported(source, module, is_package)
        if name.partition(".")[0] == "pyro" and room in WITHOUT_PYRO
    ]
    for target in targets(source, module, is_package, modules):
        other = target.partition(".")[0]
        if not target:
            wrong.append(f"{module} imports from the package, not from one of its modules")
        elif room not in ROOMS or other not in ROOMS or ROOMS.index(other) > ROOMS.index(room):
            wrong.append(f"{module} imports {target}, whose room does not come before its own")
    return wrong


@pytest.mark.parametrize("module", sorted(FILES.keys() - {""}))
def test_module_is_in_a_room_and_imports_from_earlier_ones_only(module):
    assert module.partition(".")[0] in ROOMS, f"give {module} a room"
    path = FILES[module]
    wrong = violations(path.read_text("utf-8"), module, path.name == "__init__.py")
    assert not wrong, "\n".join(wrong)


def test_no_module_comes_back_to_itself_inside_a_room():
    """A circle of imports is an error here: this names it."""
    graph = {
        module: {
            target
            for target in targets(path.read_text("utf-8"), module, path.name == "__init__.py")
            if target not in ("", module)
        }
        for module, path in FILES.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) >= len(FILES)


@pytest.mark.parametrize("module", sorted(FILES))
def test_module_is_not_too_long(module):
    count = len(FILES[module].read_text("utf-8").splitlines())
    assert count <= MAX_LINES, f"{FILES[module].name} has {count} lines; at most {MAX_LINES}"


# --- The check itself --------------------------------------------------------------------------

MODULES = frozenset(
    ("", "core", "core.blocks", "core.step", "model", "model.density", "kernel", "results.export")
    + ("extra", "engines", "engines.base", "engines.trace", "engines.fused.engine")
)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.blocks", "from pyro_fnbg.model.density import ModelDensity"),
        ("core.blocks", "from pyro_fnbg import model"),
        ("core.blocks", "import pyro_fnbg.model.density as d"),
        ("core.blocks", "from ..model.density import ModelDensity"),
        ("core.blocks", "from ..model import density"),
        ("core.step", "def f():\n    from pyro_fnbg.kernel import FNBG"),
        ("core.step", "if TYPE_CHECKING:\n    from pyro_fnbg.kernel import FNBG"),
        ("core.step", "import pyro.distributions as dist"),
        ("core.step", "from pyro import poutine"),
        ("model.density", "from pyro_fnbg.engines import make"),
        ("engines.trace", "from ..kernel import FNBG"),
        ("engines.fused.engine", "from ...kernel import FNBG"),
        ("kernel", "from pyro_fnbg import FNBG"),
        ("kernel", "import pyro_fnbg"),
        ("kernel", "from pyro_fnbg.extra import x"),
        ("extra", "from pyro_fnbg.core.blocks import x"),
    ],
)
def test_wrong_import_is_found(module, source):
    assert len(violations(source, module, modules=MODULES)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.blocks", "import torch, typing"),
        ("core.step", "from pyro_fnbg.core.blocks import Block\nfrom .blocks import Batch"),
        ("model.density", "import pyro\nfrom pyro_fnbg.core import step, blocks"),
        ("engines.trace", "from pyro_fnbg.model.density import f\nfrom ..core.step import sweep"),
        ("engines.trace", "from .base import Engine\nfrom pyro_fnbg.engines.base import Draws"),
        ("engines.fused.engine", "from ..base import Engine\nfrom ...core.step import sweep"),
        ("kernel", "from pyro_fnbg.engines.trace import Engine"),
        ("kernel", "from .engines import make"),
        ("results.export", "from ..kernel import FNBG\nimport arviz"),
        ("core.step", "from pyroscope import x"),
    ],
)
def test_right_import_is_not(module, source):
    assert violations(source, module, modules=MODULES) == []


def test_each_room_has_one_place():
    assert len(ROOMS) == len(set(ROOMS))
    assert set(WITHOUT_PYRO) <= set(ROOMS)
    assert {module.partition(".")[0] for module in FILES} - {""} == set(ROOMS)


def test_each_room_is_described():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text("utf-8")
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert len(rooms) > 10
    assert not [room for room in sorted(rooms) if f"| `{room}/` |" not in page]

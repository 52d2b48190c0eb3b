"""Readings of the processor's clock, put between the parts of the fused engine's sweep.

They go into a copy of the package, for they would cost every user time. Each stands at a text that
occurs once, so that a change of the engine is noticed here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["PARTS", "marked_copy"]

# Parts by number, in the order of a sweep, and what one of their units is
PARTS = {
    0: "noise times scales",
    1: "labels of the batch",
    2: "rows of the batch, read and transposed",
    3: "first layer on the batch",
    4: "increments times inputs, all blocks of the first layer",
    5: "candidates and their priors",
    6: "layers brought up to date",
    7: "the node's pre-activations",
    8: "the node's activations",
    9: "rows that notice",
    10: "the layer above, on rows that notice",
    11: "activations above",
    12: "products above",
    13: "log likelihoods",
    14: "blocks of the output layer",
    15: "sum of changes",
    16: "what is accepted is kept",
    17: "log density and the draw",
}
_CLOCK = """
@intrinsic
def _clock(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from llvmlite import ir

        kind = ir.FunctionType(ir.IntType(64), ())
        return builder.call(
            builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind), ()
        )

    return types.int64(), codegen


@njit(_nrt=False, forceinline=True)
def mark(work: Any, part: int) -> None:
    now = _clock()
    work.marks[part] += now - work.marks[-1]
    work.marks[-1] = now


"""
_PRODUCTS = (
    "        _pre_activations(net, position, below + 1, work.act_tile, 0, 0, "
    "work.pre_tile, 0, 0, n)\n"
)
# By module: a text, and what stands in its place
_MARKS: dict[str, list[tuple[str, str]]] = {
    "memory": [
        (
            "    state: Array  # (6,)",
            "    marks: Array\n    state: Array  # (6,)",
        ),
    ],
    "allocation": [
        (
            "        state=_zeros(",
            "        marks=np.zeros(32, np.int64),\n        state=_zeros(",
        ),
    ],
    "elementwise": [
        ("@compiled()\ndef activate(", _CLOCK + "@compiled()\ndef activate("),
        ('    "activate",\n', '    "activate",\n    "mark",\n'),
    ],
    "layers": [
        ("import INLINE, activate, compiled\n", "import INLINE, activate, compiled, mark\n"),
        ("        if chunk == 0:\n", "        mark(work, 2)\n        if chunk == 0:\n"),
        (
            "        for piece in range(first, last):\n",
            "        mark(work, 3)\n        for piece in range(first, last):\n",
        ),
        (
            "                target[r] = delta[r]\n",
            "                target[r] = delta[r]\n        mark(work, 4)\n",
        ),
        (
            _PRODUCTS,
            f"        mark(work, 11)\n{_PRODUCTS}        mark(work, 12)\n",
        ),
    ],
    "proposals": [
        ("    rounded_up,\n", "    mark,\n    rounded_up,\n"),
        (
            "    if node >= 0:\n        _displace_node(net, work, position, block, delta)\n",
            "    mark(work, 6)\n"
            "    if node >= 0:\n        _displace_node(net, work, position, block, delta)\n"
            "    mark(work, 7)\n",
        ),
        (
            "    activate(net.activations[layer], work.new_pre, work.new_act)\n",
            "    activate(net.activations[layer], work.new_pre, work.new_act)\n    mark(work, 8)\n",
        ),
        (
            "    end = rounded_up(count, LANES)\n",
            "    mark(work, 9)\n    end = rounded_up(count, LANES)\n",
        ),
        (
            "            _take_moved(net, work, layer, start, n)\n",
            "            _take_moved(net, work, layer, start, n)\n            mark(work, 10)\n",
        ),
        (
            "        finish(net, work, position, first, is_act, start, n)\n",
            "        finish(net, work, position, first, is_act, start, n)\n"
            "        mark(work, 13 if is_hidden else 14)\n",
        ),
    ],
    "compiled": [
        ("INLINE, compiled\n", "INLINE, compiled, mark\n"),
        (
            "    # Scales of priors lie above the observation scale, and no row sees them\n",
            "    mark(work, 5)\n",
        ),
        ("    is_usual = math", "    mark(work, 15)\n    is_usual = math"),
        (
            "    return log_ratio, accepted, count\n",
            "    mark(work, 16)\n    return log_ratio, accepted, count\n",
        ),
        (
            "            displace(net, moves, work, position, noise, k)\n"
            "            _begin(data, work, rows)\n",
            "            mark(work, 31)\n"
            "            displace(net, moves, work, position, noise, k)\n"
            "            mark(work, 0)\n"
            "            _begin(data, work, rows)\n"
            "            mark(work, 1)\n",
        ),
        (
            "            results.log_densities[k] = log_density\n",
            "            results.log_densities[k] = log_density\n            mark(work, 17)\n",
        ),
    ],
}


def marked_copy(package: Path, folder: Path) -> None:
    """Copy the package into a folder, with the clock read after every part."""
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for module, marks in _MARKS.items():
        path = folder / package.name / "engines" / "fused" / f"{module}.py"
        text = path.read_text("utf-8")
        for old, new in marks:
            if text.count(old) != 1:
                raise RuntimeError(
                    f"{path.name} has {text.count(old)} times, where once was meant: {old!r}"
                )
            text = text.replace(old, new)
        path.write_text(text, "utf-8")

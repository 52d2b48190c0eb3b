"""Where the time of a sweep goes: the clock stands where the parts end, and the page says it."""

import sys

import numpy as np
import pytest

import pyro_fnbg
from benchmarks.sweep import __main__ as command
from benchmarks.sweep import marks
from support.images import write_images

PACKAGE = command.ROOT / "pyro_fnbg"


def test_a_copy_of_the_package_reads_the_clock_after_every_part(tmp_path):
    marks.marked_copy(PACKAGE, tmp_path)
    sources = (tmp_path / "pyro_fnbg" / "engines" / "fused").glob("*.py")
    texts = {path.name: path.read_text("utf-8") for path in sources}
    for name, text in texts.items():
        compile(text, name, "exec")
    calls = "".join(texts.values())
    for part in marks.PARTS:
        is_chosen = f"mark(work, 13 if is_hidden else {part})" if part == 14 else ""
        assert f"mark(work, {part}" in calls or is_chosen in calls
    # What users run is untouched
    assert "mark(" not in (PACKAGE / "engines" / "fused" / "proposals.py").read_text("utf-8")


def test_a_text_that_has_changed_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(marks._MARKS, "layers", [("no such text", "")])
    with pytest.raises(RuntimeError, match=r"layers.py has 0 times, where once was meant: 'no suc"):
        marks.marked_copy(PACKAGE, tmp_path)


def test_the_page_compares_the_parts_that_are_arithmetic():
    found = {
        "network": "784,10,10",
        "blocks": 100,
        "warmup": 5,
        "sweeps": 3,
        "accepted": 0.25,
        "moved": 0.125,
        "seconds": {str(part): 1e-3 for part in marks.PARTS},
        "least": {"2": 5e-4, "8": 2.5e-4},
        "date": "2026-01-01",
        "machine": "a machine",
        "versions": "some versions",
    }
    text = command.page([found])
    assert "100 blocks, 18.00 ms a sweep, 180.00 µs a block; 25.0% accepted; 12.5% of the" in text
    assert "| the node's activations | 1.000 | 5.6% | 0.250 | 4.0 |" in text
    assert "| what is accepted is kept | 1.000 | 5.6% |  |  |" in text
    assert "| all of these | 2.000 | 11.1% | 0.750 | 2.7 |" in text


@pytest.mark.slow  # compiles
def test_the_command_measures_and_writes_the_page(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    pixels = [generator.integers(0, 256, (size, 28, 28)) for size in (3100, 40)]
    write_images(tmp_path, "MNIST", *pixels, *(np.arange(size) % 10 for size in (3100, 40)))
    place = tmp_path / "sweep.md"
    options = ["--warmup", "2", "--sweeps", "2", "--networks", "784,3,10"]
    monkeypatch.setattr(
        sys, "argv", ["sweep", "--data", str(tmp_path), "--page", str(place), *options]
    )
    command.main()
    rows = [line.split(" | ") for line in place.read_text("utf-8").splitlines() if "%" in line]
    rows = [row for row in rows if len(row) == 5]
    assert len(rows) == len(marks.PARTS) + 1
    shares = [float(row[2].rstrip("%")) for row in rows[:-1]]
    assert sum(shares) == pytest.approx(100, abs=1)
    assert float(rows[-1][1]) > float(rows[-1][3]) > 0
    assert pyro_fnbg.__file__ == str(PACKAGE / "__init__.py")

"""Where records are kept, and what each says of the machine."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["keep", "path_of", "ran_on"]

PACKAGES = ("pyro-fnbg", "pyro-ppl", "torch", "numpy", "numba")


def path_of(folder: Path, name: str) -> Path:
    """Return where the record of something is.

    Example:
        >>> path_of(Path("results"), "classes, Categorical").name
        'classes-categorical.json'
    """
    return folder / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json"


def ran_on() -> dict[str, str]:
    """Say what machine and what versions figures are of."""
    return {
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }


def keep(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write a record with what ran it, and return it."""
    whole = {**record, **ran_on()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    return whole

"""``show_versions``: what a report of a bug has to say of the machine and of what is installed."""

from __future__ import annotations

import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version

import torch

__all__ = ["show_versions"]


def show_versions() -> None:
    """Print the machine, Python, and the versions of this package and of what it depends on.

    Nothing of it is a secret: no paths, names of machines or variables of the environment.

    Example:
        >>> show_versions()  # doctest: +ELLIPSIS
        system: ...
        pyro-fnbg: ...
    """
    told = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "threads of torch": str(torch.get_num_threads()),
        "CUDA of torch": str(torch.version.cuda),
        "GPUs": ", ".join(_gpus()) or "none",
        "C++ compiler": "g++" if shutil.which("g++") else "none",
    }
    for name in ("pyro-fnbg", *_dependencies()):
        # Those of extras need not be there
        try:
            told[name] = version(name)
        except PackageNotFoundError:
            told[name] = "not installed"
    print("\n".join(f"{name}: {value}" for name, value in told.items()))


def _gpus() -> list[str]:
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _dependencies() -> list[str]:
    """Name what the installed package asks for, extras for its developers aside."""
    asked = [
        line
        for line in requires("pyro-fnbg") or []
        if not re.search(r"extra == .(dev|docs|bench).", line)
    ]
    names = {match.group() for line in asked if (match := re.match(r"[\w.-]+", line))}
    return sorted(names, key=str.lower)

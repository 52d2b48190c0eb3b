import errno
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest
from numba.core.caching import IndexDataCacheFile

from pyro_fnbg.core import compiling
from pyro_fnbg.core.compiling import _warn_once, kept_on_disk, warn_if_not_kept, while_compiling

ROOT = Path(__file__).resolve().parents[2]


def half(x):
    return 0.5 * x


@pytest.fixture(autouse=True)
def _nothing_said_yet():
    _warn_once.cache_clear()


def test_what_is_compiled_is_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    first, second = (kept_on_disk(numba.njit(half)) for _ in range(2))
    assert first(3.0) == second(3.0) == 1.5
    assert sum(first.stats.cache_misses.values()) == 1
    assert sum(second.stats.cache_hits.values()) == 1
    warn_if_not_kept(first)  # a warning is an error here


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_cache_that_cannot_be_written_or_read_is_no_error(call, tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(IndexDataCacheFile, call, no_space)
    function = kept_on_disk(numba.njit(half))
    if call == "load":
        assert function(3.0) == 1.5
        return
    with pytest.warns(UserWarning, match=rf"because {tmp_path}/.* does not take .*No space left"):
        assert function(3.0) == 1.5
    assert function(3) == 1.5  # another type; said once: a second warning is an error here


def test_an_index_of_another_version_is_made_anew(tmp_path, monkeypatch):
    """It may name classes that are gone, and Numba reads it before it looks whose it is."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    kept_on_disk(numba.njit(half))(3.0)
    (index,) = tmp_path.rglob("*.nbi")
    with index.open("rb") as file:
        version = pickle.load(file)
    index.write_bytes(pickle.dumps(version) + b"cpyro_fnbg.core.compiling\nGone\n.")
    for misses in (1, 0):
        function = kept_on_disk(numba.njit(half))
        assert function(3.0) == 1.5
        assert sum(function.stats.cache_misses.values()) == misses


def test_no_folder_is_no_error_and_is_said_where_it_matters(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    function = kept_on_disk(numba.njit(half))
    assert function(3.0) == 1.5
    with pytest.warns(UserWarning, match="because neither the package's folder nor the user's cac"):
        warn_if_not_kept(function)
    warn_if_not_kept(function)  # said once


def test_functions_of_python_are_left_alone():
    """As they are where Numba is switched off."""
    assert kept_on_disk(half) is half
    warn_if_not_kept(half)


SHUFFLE = """
import numpy as np
import pyro_fnbg
from pyro_fnbg.core.shuffling import permutations
print(permutations(np.random.default_rng(0), 1, 5).sum(), pyro_fnbg.__file__)
"""
SAMPLE = """
import pyro, torch
from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC
pyro.set_rng_seed(0)
x = torch.randn(30, 2)
mcmc = MultiChainMCMC(FNBG(BayesianMLP([2, 3, 2])), 20, warmup_steps=20, disable_progbar=True)
mcmc.run(x, (x[:, 0] > 0).long())
print("engine", mcmc.kernel.engine)
"""


@pytest.fixture
def without_folders(tmp_path):
    """The package where no cache can be made, whoever runs this; and a process to try it in."""
    package = tmp_path / "pyro_fnbg"
    shutil.copytree(ROOT / "pyro_fnbg", package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [package, *filter(Path.is_dir, package.rglob("*"))]:
        folder.joinpath("__pycache__").write_text("not a folder")
    environment = {name: os.environ[name] for name in ("PATH",)}
    environment |= {"HOME": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "."}

    def run(code):
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_the_package_is_imported_where_nothing_can_be_written(without_folders, tmp_path):
    done = without_folders(SHUFFLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", f"{tmp_path}/pyro_fnbg/__init__.py"]
    assert "compile anew" not in done.stderr


@pytest.mark.slow  # compiles from nothing
def test_sampling_where_nothing_can_be_written_says_so_once(without_folders):
    done = without_folders(SAMPLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["engine", "fused"]
    assert done.stderr.count("has to compile anew in every process") == 1


def test_a_long_compilation_says_so_and_a_short_one_does_not(monkeypatch, capsys):
    monkeypatch.setattr(compiling, "PATIENCE", 0.05)
    with while_compiling("the engine"):
        time.sleep(0.5)
    assert capsys.readouterr() == ("", "pyro_fnbg: compiling the engine\n")
    with while_compiling("the engine"):
        pass
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_the_message_is_given_up_if_compilation_fails(monkeypatch, capsys):
    monkeypatch.setattr(compiling, "PATIENCE", 0.05)
    with pytest.raises(ZeroDivisionError), while_compiling("the engine"):
        raise ZeroDivisionError
    time.sleep(0.2)
    assert capsys.readouterr().err == ""

"""The command says what it did by its status, and what is wrong in one line."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import xarray as xr

import pyro_fnbg
from pyro_fnbg import FNBG, store_predictions
from pyro_fnbg.command_line import main as module
from pyro_fnbg.command_line.main import main
from support.drivers import drive
from support.stores import NET, SIZES, X, Y

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "run.zarr"
    drive(FNBG(NET, batch_size=7), X, Y, store=path, **SIZES)
    store_predictions(path, NET, X[:3], progress=False)
    return path


def run(*arguments):
    """Run the command as a process."""
    return subprocess.run(
        [sys.executable, "-m", "pyro_fnbg", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_entry_point_is_the_command():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"pyro-fnbg": f"{module.__name__}:main"}


def test_it_says_its_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == [pyro_fnbg.__version__]


def test_what_a_store_holds_is_printed_and_nothing_changed(store, capsys):
    files = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    assert main(["info", str(store)]) == 0
    told = capsys.readouterr()
    assert "layer1.weight  (3, 2) float32" in told.out
    assert "predictions of 3 rows, under 40 draws of each of 3 chains" in told.out
    assert told.err == ""
    assert files == {path: path.stat().st_mtime_ns for path in store.rglob("*")}


def test_a_page_and_a_file_are_written_once(store, tmp_path, capsys):
    page, file = tmp_path / "report.html", tmp_path / "run.nc"
    assert main(["report", str(store), "-o", str(page)]) == 0
    assert main(["export", str(store), "--to", "netcdf", "-o", str(file)]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    with xr.open_datatree(file) as tree:
        assert tree["posterior"].sizes["draw"] == 40
    assert capsys.readouterr() == ("", "")
    for arguments in (["report"], ["export", "--to", "netcdf"]):
        assert main([*arguments, str(store), "-o", str(page)]) == 2
        told = capsys.readouterr().err
        assert told.startswith("pyro-fnbg: error: output must be a path where there is nothing yet")
        assert told.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.nc"]


def test_a_file_is_beside_its_store_if_no_place_is_given(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run.zarr")
    assert main(["export", str(tmp_path / "run.zarr")]) == 0
    assert (tmp_path / "run.nc").exists()


def without(store, name, path):
    """Copy a store but for a file of it."""
    for one in store.rglob("*"):
        if one.is_file() and one.relative_to(store).as_posix() != name:
            (path / one.relative_to(store)).parent.mkdir(parents=True, exist_ok=True)
            (path / one.relative_to(store)).write_bytes(one.read_bytes())
    return path


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("checkpoint.npz", "no checkpoint of the chains"),
        ("zarr.json", "store must be a folder that MultiChainMCMC"),
        ("posterior/zarr.json", "it was changed"),
        ("observed_data/zarr.json", "it was changed"),
        ("sample_stats/batch_log_density/c/0/0", "is missing from the store"),
        ("posterior/layer1.weight/c/2/0/0/0", "is missing from the store"),
    ],
)
def test_a_damaged_store_is_named_in_one_line(missing, words, store, tmp_path, capsys):
    damaged = without(store, missing, tmp_path / "run")
    for arguments in (["report", "-o", "a.html"], ["export", "--to", "netcdf", "-o", "a.nc"]):
        place = str(tmp_path / arguments[-1])
        assert main([*arguments[:-1], place, str(damaged)]) == 2
        told = capsys.readouterr()
        assert words in told.err
        assert told.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_is_no_store_or_no_place_is_refused(store, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for arguments, words in (
        (["info", "nothing"], "store must be a folder that MultiChainMCMC"),
        (["info", "file"], "store must be a folder that MultiChainMCMC"),
        (["report", str(store), "-o", "no/a.html"], "output must be a path in a folder that is"),
        (["report", str(store), "-o", "file/a.html"], "output must be a path in a folder that is"),
    ):
        monkeypatch.chdir(tmp_path)
        assert main(arguments) == 2
        told = capsys.readouterr()
        assert f"pyro-fnbg: error: {words}" in told.err
        assert told.out == ""

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "a.html")

    monkeypatch.setattr(Path, "touch", refuse)
    assert main(["report", str(store), "-o", "a.html"]) == 2
    assert "Permission denied: 'a.html'" in capsys.readouterr().err


@pytest.mark.slow
def test_work_that_fails_has_another_status(store, tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["report", str(store), "-o", str(tmp_path / "a.html")]) == 1
    assert capsys.readouterr().err.strip().endswith("[Errno 28] No space left on device")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["", "info", "report", "export"])
def test_help_says_what_a_command_does(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*filter(None, [command]), "--help"])
    told = capsys.readouterr().out
    assert "usage: pyro-fnbg" in told
    assert "STORE" in told or "report" in told


@pytest.mark.parametrize("arguments", [[], ["show"], ["report", "a"], ["export"]])
def test_arguments_that_are_none_are_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage:" in capsys.readouterr().err


@pytest.mark.slow  # in a process of its own
def test_it_runs_as_a_module_and_ends_where_nobody_reads_on(store):
    done = run("info", store)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(store)
    assert run("info", store / "nothing").returncode == 2
    # A pipe that is closed before anything is written to it
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "pyro_fnbg", "info", str(store)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    broken = subprocess.run(
        command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True, timeout=300
    )
    os.close(write)
    assert (broken.returncode, broken.stderr) == (1, "")


def test_a_run_that_is_under_way_can_be_looked_at(tmp_path, capsys):
    told = []

    def hook(kernel, params, stage, i):
        if (stage, i) == ("Sample [1]", 38):
            told.append(main(["info", str(tmp_path / "run")]))
            told.append(main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "a.html")]))

    mcmc = drive(FNBG(NET, engine="trace"), X, Y, store=tmp_path / "run", hook_fn=hook, **SIZES)
    assert mcmc.is_complete
    assert told == [0, 0]
    assert "not complete: the run is under way" in capsys.readouterr().out
    assert "the run is not complete" in (tmp_path / "a.html").read_text()

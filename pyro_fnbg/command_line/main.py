"""The command ``pyro-fnbg``, for stores of long runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from pyro_fnbg.command_line.info import lines_of
from pyro_fnbg.command_line.netcdf import export_netcdf
from pyro_fnbg.command_line.output import written
from pyro_fnbg.command_line.page import page_of
from pyro_fnbg.command_line.summary import Summary
from pyro_fnbg.stores.checkpoint import DamagedStore
from pyro_fnbg.stores.contents import Contents
from pyro_fnbg.stores.hierarchy import as_store

__all__ = ["main"]

# What was given cannot be worked with; all else that goes wrong has status 1
REFUSED = (
    DamagedStore,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What follows its name; that of this process when left out.

    Returns:
        The exit status: 0; 2 where a store or an output cannot be worked with, as for arguments
        that are none; 1 where the work failed.
    """
    chosen = _parser().parse_args(arguments)
    try:
        chosen.work(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has enough, as ``head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (*REFUSED, OSError) as error:
        words = " ".join(str(error).split())
        print(f"pyro-fnbg: error: {words}", file=sys.stderr)
        return 2 if isinstance(error, REFUSED) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pyro-fnbg",
        description="Look at the store of a run of pyro_fnbg, which may be under way, have ended "
        "or been killed. Nothing in the store is changed.",
    )
    parser.add_argument("--version", action="version", version=version("pyro-fnbg"))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    store = argparse.ArgumentParser(add_help=False)
    store.add_argument("store", metavar="STORE", help="folder that MultiChainMCMC(store=) made")
    info = commands.add_parser(
        "info",
        parents=[store],
        help="say what a store holds",
        description="Say what a store holds: sites, draws, what the chains target, acceptance, "
        "diagnostics of predictions if store_predictions was called, and warnings.",
    )
    info.set_defaults(work=_info)
    report = commands.add_parser(
        "report",
        parents=[store],
        help="make a page of a store",
        description="Make one page of HTML, pictures included, that says what a store holds and "
        "how its chains went.",
    )
    report.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the page; nothing may be there yet"
    )
    report.set_defaults(work=_report)
    export = commands.add_parser(
        "export",
        parents=[store],
        help="write a store to a file",
        description="Write all that open_store shows to one file, which xarray and ArviZ read.",
    )
    export.add_argument(
        "--to", choices=["netcdf"], default="netcdf", help="kind of file (netcdf if left out)"
    )
    export.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file; nothing may be there yet (STORE with the ending .nc if left out)",
    )
    export.set_defaults(work=_export)
    return parser


def _contents(chosen: argparse.Namespace) -> Contents:
    return Contents.read(as_store(chosen.store))


def _info(chosen: argparse.Namespace) -> None:
    for line in lines_of(Summary(_contents(chosen))):
        print(line)


def _report(chosen: argparse.Namespace) -> None:
    with written(Path(chosen.output)) as part:
        part.write_text(page_of(Summary(_contents(chosen))), "utf-8")


def _export(chosen: argparse.Namespace) -> None:
    path = as_store(chosen.store)
    place = path.with_suffix(".nc") if chosen.output is None else Path(chosen.output)
    with written(place) as part:
        export_netcdf(_contents(chosen), part)

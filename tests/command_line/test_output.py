"""A file is there as a whole, or not at all."""

import pytest

from pyro_fnbg.command_line.output import written


def test_a_file_is_there_once_it_is_whole(tmp_path):
    with written(tmp_path / "a") as part:
        part.write_text("whole")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def half_written(place):
    with written(place) as part:
        part.write_text("half")
        raise ZeroDivisionError


def test_what_fails_leaves_nothing_and_what_was_there_stays(tmp_path):
    with pytest.raises(ZeroDivisionError):
        half_written(tmp_path / "a")
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").write_text("mine")
    with pytest.raises(FileExistsError, match="output must be a path where there is nothing yet"):
        half_written(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "mine"

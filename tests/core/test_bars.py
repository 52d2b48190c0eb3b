import io
import sys

import pytest

from pyro_fnbg.core.bars import progress_bar


class Broken(io.StringIO):
    def write(self, text):
        raise OSError("no space left on device")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [lambda: None, closed, Broken])
def test_a_stream_that_cannot_be_written_costs_nothing(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    with progress_bar(3, True) as bar:
        bar.update(2)
        bar.refresh()
    assert bar.n in (0, 2)  # a bar that is off counts nothing


@pytest.mark.parametrize("is_shown", [True, False])
def test_it_is_shown_on_request(is_shown, capsys):
    with progress_bar(3, is_shown, desc="work") as bar:
        bar.update(3)
    assert ("work: 100%" in capsys.readouterr().err) == is_shown

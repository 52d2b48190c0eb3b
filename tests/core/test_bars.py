import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
import time
from contextlib import contextmanager

import pytest
import tqdm.std

from pyro_fnbg.core.bars import LOG_SECONDS, progress_bar


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


@pytest.mark.parametrize("value", ["1", ""])
def test_the_environment_leaves_it_out(value, monkeypatch, capsys):
    monkeypatch.setenv("TQDM_DISABLE", value)
    with progress_bar(3, True, desc="work") as bar:
        bar.update(3)
    assert ("work: 100%" in capsys.readouterr().err) == (value == "")


@contextmanager
def terminal(columns, monkeypatch):
    """Put a terminal of a width in the place of standard error, and collect what it is sent."""
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen = []

    def read():
        while True:
            try:
                seen.append(os.read(ours, 2**16))
            except OSError:  # the other end is closed
                return

    reader = threading.Thread(target=read)
    with os.fdopen(theirs, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        reader.start()
        yield seen
    reader.join()
    os.close(ours)


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_it_stays_on_one_line_of_a_terminal(columns, monkeypatch):
    with (
        terminal(columns, monkeypatch) as seen,
        progress_bar(100_000, True, desc="Sample", unit="sweep", mininterval=0.0) as bar,
    ):
        for _ in range(10):
            bar.set_postfix_str("acc. rate by layer (%)=30 31", refresh=False)
            bar.update(10_000)
    text = b"".join(seen).decode()
    # A terminal that is told to go on in the next line writes two characters
    assert text.replace("\r\n", "\n").count("\n") == 1
    states = re.sub(r"\x1b\[A", "", text).strip().split("\r")
    assert len(states) >= 10
    assert max(map(len, states)) <= columns
    if columns >= 80:
        assert "acc. rate by layer (%)=30 31" in states[-1]
    assert ("sweep/s" in states[-1]) == (columns >= 100)


class Clock:
    """Passes as fast as a test wants."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_file_gets_a_line_every_half_a_minute(monkeypatch, tmp_path):
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(tqdm.std, "time", clock)
    path = tmp_path / "log"
    with path.open("w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        with progress_bar(6_000, True, desc="Sample", unit="sweep") as bar:
            for _ in range(6_000):
                clock.now += 0.1
                bar.update(1)
    lines = path.read_text().splitlines()
    minutes = 600 / 60
    assert minutes * 60 / LOG_SECONDS - 2 <= len(lines) <= minutes * 60 / LOG_SECONDS + 2
    assert len(path.read_bytes()) < 300 * minutes
    assert all(line.startswith("Sample") for line in lines)
    assert "6000/6000" in lines[-1]
    assert "\r" not in path.read_text()

import re

import pytest
import torch

from pyro_fnbg.chains.statistics import DrawStatistics
from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.drivers.progress import Progress

BLOCKS = (Block("a", (0,), 1), Block("b", (1,), 1), Block("c", (2,), 2))
STATISTICS = DrawStatistics(Partition(BLOCKS, 3, ("layer1", "layer2")))


def bar(disable=False, sweeps=(0, 0)):
    """A bar that is drawn anew at every call, not only from time to time."""
    progress = Progress(
        sweeps=sweeps, warmup_steps=10, num_sweeps=30, statistics=STATISTICS, disable=disable
    )
    progress._bar.mininterval = progress._bar.miniters = 0
    progress._bar.dynamic_miniters = False
    return progress


def test_sweeps_of_all_chains_add_up():
    with bar() as progress:
        assert progress._bar.total == 60
        progress.show(0, 4, [0.5, 0.5, 0.5])
        progress.show(1, 1, [0.5, 0.5, 0.5])
        assert progress._bar.n == 5
        progress.show(0, 30, [0.5, 0.5, 0.5])
        progress.show(0, 30, [0.5, 0.5, 0.5])
        assert progress._bar.n == 31
        progress.show(1, 30, [0.5, 0.5, 0.5])
        assert progress._bar.n == 60


def test_a_run_that_goes_on_begins_where_its_chains_are(capsys):
    with bar(sweeps=(20, 15)) as progress:
        assert (progress._bar.n, progress._bar.initial) == (35, 35)
        # Sweeps of this run alone are counted, so speed and time left are those of this run
        progress.show(0, 22, [0.5, 0.5, 0.5])
        assert progress._bar.n - progress._bar.initial == 2
        progress.show(1, 16, [0.5, 0.5, 0.5])
        assert progress._bar.desc.startswith("Sample")
        assert "38/60" in capsys.readouterr().err


def test_it_is_warmup_until_every_chain_is_through():
    with bar() as progress:
        progress.show(0, 25, [0.5, 0.5, 0.5])
        assert progress._bar.desc.startswith("Warmup")
        progress.show(1, 9, [0.5, 0.5, 0.5])
        assert progress._bar.desc.startswith("Warmup")
        progress.show(1, 10, [0.5, 0.5, 0.5])
        assert progress._bar.desc.startswith("Sample")


def test_rates_by_layer_are_means_over_chains_at_their_last_word():
    with bar() as progress:
        progress.show(0, 5, [1.0, 1.0, 1.0])
        progress.show(0, 6, [0.2, 0.4, 0.8])
        assert progress._bar.postfix == "acc. rate by layer (%)=30 80"
        progress.show(1, 6, [0.4, 0.6, 0.2])
        assert progress._bar.postfix == "acc. rate by layer (%)=40 50"
        # A chain without a sweep in its phase has no rate
        progress.show(1, 10, [torch.nan] * 3)
        assert progress._bar.postfix == "acc. rate by layer (%)=30 80"


@pytest.mark.parametrize("disable", [True, False])
def test_the_bar_is_on_the_screen_or_not(disable, capsys):
    with bar(disable) as progress:
        for sweeps in range(0, 31, 10):
            progress.show(0, sweeps, [0.25, 0.25, 0.5])
            progress.show(1, sweeps, [0.25, 0.25, 0.5])
    out, err = capsys.readouterr()
    assert out == ""
    if disable:
        assert err == ""
    else:
        last = re.split(r"[\r\n]+", err.strip())[-1]
        assert "Sample" in last
        assert "60/60" in last
        assert "acc. rate by layer (%)=25 50" in last


def test_what_stands_beside_the_bar_is_right_at_the_end_though_it_was_not_drawn_before(capsys):
    progress = bar()
    progress._bar.mininterval = 1e9
    with progress:
        progress.show(0, 30, [0.1, 0.1, 0.1])
        progress.show(1, 30, [0.3, 0.5, 0.9])
        assert not progress._bar.desc
    last = re.split(r"[\r\n]+", capsys.readouterr().err.strip())[-1]
    assert "Sample" in last
    assert "60/60" in last
    assert "acc. rate by layer (%)=25 50" in last


def test_a_run_that_breaks_off_leaves_the_bar_where_it_was(capsys):
    progress = bar()

    def break_off():
        with progress:
            progress.show(0, 12, [0.5, 0.5, 0.5])
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        break_off()
    assert progress._bar.disable  # closed
    assert "12/60" in capsys.readouterr().err


def test_a_line_of_a_log_says_how_the_chains_are_at_that_moment(capsys):
    progress = Progress([0, 0], 10, 30, STATISTICS, False)
    with progress:
        progress.show(0, 1, [0.9, 0.9, 0.9])
        # Half a minute later
        progress._bar.last_print_t -= 31
        progress._bar.miniters = 0
        progress.show(0, 12, [0.1, 0.3, 0.4])
        line = capsys.readouterr().err.splitlines()[-1]
    assert "12/60" in line
    assert "acc. rate by layer (%)=20 40" in line

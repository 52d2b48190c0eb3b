"""A report says in lines of text what its fields hold."""

import torch

from pyro_fnbg.fitting.annealing import Annealed
from pyro_fnbg.fitting.descent import Course
from pyro_fnbg.fitting.fit_report import FitReport, WarmStart

COURSE = Course(
    steps=torch.tensor([0, 10, 20]),
    training=torch.tensor([[torch.nan, 3.0, 2.0], [torch.nan, 4.0, 1.0]]),
    held_out=torch.tensor([[9.0, 5.0, 6.0], [8.0, 7.0, 9.0]]),
)


def report(**changes):
    fields = {
        "method": "AdamW of 2 chains",
        "seconds": 1.25,
        "num_steps": 20,
        "best_steps": torch.tensor([10, 0]),
        "losses": COURSE,
        "batch_size": 64,
        "num_held_out": 12,
        "from_prior": (),
        "at_median": (),
        "num_setbacks": torch.tensor([0, 3]),
        "annealing": None,
    }
    return FitReport(**(fields | changes))


def test_lines_say_what_was_done_and_where_each_chain_is_from():
    assert report().lines() == [
        "AdamW of 2 chains, 20 steps in 1.2 s",
        "64 rows a step, 12 held out",
        "chain 0: step 10, training loss 3, held-out loss 9 -> 5",
        "chain 1: its random start, held-out loss 8 -> 8, 3 setbacks",
    ]


def test_lines_say_what_was_not_fitted_and_what_there_was_nothing_of():
    changes = {"batch_size": None, "num_held_out": 0, "from_prior": ("a",), "at_median": ("b",)}
    lines = report(losses=COURSE._replace(held_out=None), **changes).lines()
    assert lines[1:4] == [
        "no rows, 0 held out",
        "drawn from the prior, without a gradient: ['a']",
        "held at the median of the prior: ['b']",
    ]
    assert lines[4] == "chain 0: step 10, training loss 3"


def test_lines_say_how_far_annealing_went():
    densities = torch.tensor([[-9.0, -5.0, -4.0], [-8.0, -7.0, -2.5]])
    course = Annealed(torch.zeros(2, 3), torch.tensor([0, 15, 30]), densities)
    lines = report(annealing=course).lines()
    assert lines[0] == "AdamW of 2 chains, 20 steps and 30 of annealing in 1.2 s"
    assert lines[2].endswith("held-out loss 9 -> 5, log density -9 -> -4 by annealing")
    assert lines[3].endswith("log density -8 -> -2.5 by annealing")


def test_values_are_a_mapping_that_shows_its_sites_and_its_report():
    start = WarmStart({"w": torch.zeros(2, 3)}, report())
    assert start.seconds == 1.25
    assert start.losses is COURSE
    assert repr(start).splitlines()[0] == "WarmStart of w (2, 3)"
    assert len(repr(start).splitlines()) == 5
    assert {name: value[0] for name, value in start.items()}["w"].shape == (3,)

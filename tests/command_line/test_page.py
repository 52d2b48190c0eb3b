"""A page needs nothing but itself, and shows what the store holds."""

import re
from html.parser import HTMLParser

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg import FNBG, store_predictions
from pyro_fnbg.command_line import quantities
from pyro_fnbg.command_line.figures import MAX_TRACED
from pyro_fnbg.command_line.page import page_of
from pyro_fnbg.command_line.summary import Summary
from pyro_fnbg.stores.contents import Contents
from support.drivers import drive
from support.stores import NET, SIZES, X, Y

EMPTY = ("meta", "img")


class Page(HTMLParser):
    """Read a page, and fail where tags do not close each other."""

    def __init__(self, store):
        super().__init__()
        self.source = page_of(Summary(Contents.read(store)))
        self.open, self.images, self.addresses, self.headings = [], [], [], []
        self.words = ""
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.addresses += [named[name] for name in ("src", "href") if name in named]
        self.images += [named["alt"]] if tag == "img" else []
        self.open += [] if tag in EMPTY else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings.append(data)
        if "style" not in self.open:
            self.words += data


def test_a_page_has_all_that_is_asked_of_it_and_needs_nothing_else(tmp_path):
    drive(FNBG(NET, batch_size=7), X, Y, store=tmp_path / "run", **SIZES)
    page = Page(tmp_path / "run")
    assert page.headings == [
        "What the chains target",
        "Summary",
        "Acceptance by layer",
        "Log density",
        "Convergence",
        "layer1.weight[1,1]",
        "layer2.weight[0,1]",
        "layer2.bias[0]",
        "Sites",
        "Versions and seeds",
    ]
    assert page.addresses
    assert all(one.startswith("data:image/png;base64,") for one in page.addresses)
    rest = re.sub('"data:image/png;base64,[^"]*"', "", page.source)
    assert len(rest) < 20_000
    assert not re.search(r"https?:|@import|url\(|<script|<link", rest)
    assert page.images == [
        "acceptance by layer",
        "log density on a batch",
        *("layer1.weight[1,1]", "ranks of layer1.weight[1,1]"),
        *("layer2.weight[0,1]", "ranks of layer2.weight[0,1]"),
        *("layer2.bias[0]", "ranks of layer2.bias[0]"),
    ]
    assert "Weights of networks have symmetries" in page.words
    assert "Each draw is scored on the batch of its sweep" in page.words
    assert "Approximate: prior x likelihood^0.2333" in page.words
    assert "nominal likelihood temperature is 4.286" in page.words


@pytest.mark.slow
def test_stored_predictions_take_the_place_of_weights(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run", **SIZES)
    store_predictions(tmp_path / "run", NET, X[:5], progress=False)
    page = Page(tmp_path / "run")
    assert "Of the stored predictions of 5 rows, under 40 draws of each of 3 chains" in page.words
    assert "largest r_hat" in page.words
    assert "symmetries" not in page.words
    assert any(name.startswith("probability of class ") for name in page.headings)


@pytest.mark.slow
def test_one_chain_has_no_ranks(tmp_path):
    drive(FNBG(NET), X, Y, store=tmp_path / "run")
    page = Page(tmp_path / "run")
    assert not [name for name in page.images if name.startswith("ranks")]
    assert "there is one chain" in page.words
    assert "unknown" in page.words
    store_predictions(tmp_path / "run", NET, X[:5], progress=False)
    page = Page(tmp_path / "run")
    assert "5 rows, under 20 draws of each of 1 chain:" in page.words
    assert "least ess_bulk" in page.words
    assert "nan" not in page.words
    assert "agree" not in page.words.replace("would agree", "").replace("1 where they agree", "")


def test_a_store_without_draws_has_a_page_that_says_so(tmp_path):
    def hook(kernel, params, stage, i):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(FNBG(NET), X, Y, store=tmp_path / "run", hook_fn=hook)
    page = Page(tmp_path / "run")
    assert "There are no draws yet" in page.words
    assert page.images == []


def of_a_name_that_is_markup(y):
    mean = pyro.sample("<b>&$m^$", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("empty", dist.Normal(torch.zeros(0), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean[0], 1.0), obs=y)


@pytest.mark.slow
def test_names_of_a_store_are_no_markup(tmp_path):
    drive(FNBG(of_a_name_that_is_markup), X[:, 0], store=tmp_path / "<i>run", num_chains=2)
    page = Page(tmp_path / "<i>run")
    assert "<b>" not in page.source
    assert "<i>" not in page.source
    assert "<b>&$m^$[1]" in page.headings


@pytest.mark.slow
def test_of_many_chains_and_draws_some_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(quantities, "MAX_DRAWS", 9)
    monkeypatch.setattr(quantities, "MAX_CHAINS", 6)
    drive(FNBG(NET), X, Y, store=tmp_path / "run", num_chains=7)
    page = Page(tmp_path / "run")
    assert f"Course of the first {MAX_TRACED} chains" in page.words
    assert "Of 6 draws of each of 6 chains, one in 3." in page.words

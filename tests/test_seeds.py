import sys
from types import ModuleType

import pyro
import pytest
import torch

from pyro_fnbg.seeds import check_importable, fingerprint, next_key, worker_chain


def test_the_fingerprint_follows_torchs_stream_and_draws_nothing():
    pyro.set_rng_seed(1)
    first = fingerprint()
    assert fingerprint() == first
    torch.rand(1)
    assert fingerprint() != first
    pyro.set_rng_seed(1)
    assert fingerprint() == first


def test_chains_in_turn_number_themselves_until_the_stream_moves():
    pyro.set_rng_seed(1)
    first = next_key(None, None)
    second = next_key(first, None)
    third = next_key(second, None)
    assert {mark.key.seed for mark in (first, second, third)} == {first.key.seed}
    assert [mark.key.chain for mark in (first, second, third)] == [0, 1, 2]
    torch.rand(1)
    moved = next_key(third, None)
    assert moved.key.chain == 0
    assert moved.key.seed != first.key.seed
    pyro.set_rng_seed(1)
    assert next_key(moved, None).key == first.key


def test_a_new_kernel_without_a_new_seed_gets_another_root():
    pyro.set_rng_seed(1)
    assert next_key(None, None).key != next_key(None, None).key


def test_this_process_is_no_worker():
    assert worker_chain() is None


def test_models_of_an_interactive_session_are_refused_by_name(monkeypatch):
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def network():
        pass

    network.__module__ = "__main__"
    with pytest.raises(RuntimeError, match="the model 'network' is defined in an interactive"):
        check_importable(network)
    main.__file__ = "<stdin>"
    with pytest.raises(RuntimeError, match="move the model into a module"):
        check_importable(network)
    main.__file__ = __file__
    check_importable(network)

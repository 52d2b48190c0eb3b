import pyro
import torch

from pyro_fnbg.stock.seeds import fingerprint, next_key, worker_chain


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

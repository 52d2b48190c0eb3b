import torch

from pyro_fnbg.stock.given import GivenParams


def test_slices_of_one_tensor_are_the_chains_of_one_run():
    stacked, other = torch.arange(6.0).reshape(3, 2), torch.zeros(2)
    given = GivenParams()
    for chain in range(3):
        given = given.add({"a": stacked[chain]}, workers=5)
    assert [values["a"].tolist() for values in given.chains] == stacked.tolist()
    assert [v["a"] is other for v in given.add({"a": other}, 5).chains] == [True]
    assert len(given.add({"b": stacked[0]}, 5).chains) == 1
    assert GivenParams(({"a": [1.0]},)).add({"a": [2.0]}, 0).chains == ({"a": [2.0]},)


def test_each_worker_takes_its_own_values_and_a_later_run_none():
    values = tuple({"a": torch.full((2,), float(chain))} for chain in range(2))
    given = GivenParams(values, workers=5)
    assert [given.for_chain(chain, 5 + chain, False) is values[chain] for chain in (0, 1)] == [
        True,
        True,
    ]
    assert given.for_chain(0, 7, False) is given.for_chain(1, 8, False) is None
    assert given.for_chain(None, 5, False) is None
    assert GivenParams(values[:1]).for_chain(None, 9, False) is values[0]
    assert GivenParams().for_chain(0, 0, False) is None
    # Afterwards, when all of them have been started, the parent goes where the first one did
    assert given.for_chain(None, 7, True) is values[0]
    assert given.for_chain(None, 9, True) is None  # these are of another run

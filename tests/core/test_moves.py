"""Moves: where blocks would go, what is learnt from how often they got there, and both together."""

import math

import pytest
import torch

from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.moves.base import Displacement, Move
from pyro_fnbg.core.moves.choice import MOVE_NAMES, make_moves
from pyro_fnbg.core.moves.joint import JointMoves, at, stacked
from pyro_fnbg.core.moves.pcn import PCN
from pyro_fnbg.core.moves.walk import ScaleState, Walk
from pyro_fnbg.core.priors import NormalPriors
from pyro_fnbg.core.step import BatchState, proposals, sweep
from pyro_fnbg.core.tuning import adapt

META = torch.device("meta")  # a device without memory, which is everywhere

# Four blocks of eight coordinates, in no order
CUTS = ((5, 2), (0,), (7, 1, 3), (4, 6))
PARTITION = Partition(tuple(Block(f"b{number}", cut) for number, cut in enumerate(CUTS)), 8)
OWNER = [1, 2, 0, 2, 3, 0, 3, 2]


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


SCALES, TARGETS = double(0.1, 2.0, 0.7, 1.3), double(0.44, 0.3, 0.35, 0.2)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def walk(*blocks):
    own = torch.tensor(blocks or range(4))
    return Walk(PARTITION, own, SCALES[own], TARGETS[own])


class Shift(Move):
    """Go a fixed way that depends on where the sweep starts; its ratios need a correction."""

    name = "shift"

    def start(self):
        return ScaleState(torch.ones(len(self.blocks), dtype=torch.float64))

    def displace(self, state, position, z):
        corrections = z.new_zeros(*z.shape[:-1], len(self.blocks))
        return Displacement(-2 * position, corrections.index_add(-1, self.owners, z))

    def adapt(self, state, position, accept_probs, gain):
        return ScaleState(state.scales + accept_probs)

    def report(self, state):
        return {"shifts": state.scales}


def shift(*blocks):
    return Shift(PARTITION, torch.tensor(blocks))


# --- The walk ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("chains", [(), (3,), (3, 5)])
def test_the_walk_scales_its_noise_by_block(chains, dtype):
    """In double precision, and then rounded: engines of any kind propose the same candidates."""
    move, z = walk(), numbers(*chains, 8)
    scales = SCALES * (1 + torch.rand(*chains, 4, dtype=torch.float64))
    found = move.displace(ScaleState(scales), torch.zeros(*chains, 8, dtype=dtype), z)
    expected = torch.stack([scales[..., owner] * z[..., at] for at, owner in enumerate(OWNER)], -1)
    assert found.increment.dtype == dtype
    assert torch.equal(found.increment, expected.to(dtype))
    assert found.log_corrections is None


def test_the_walk_rounds_once():
    """In single precision, scale times noise would be rounded before it is."""
    z = double(0.1, 0.2, 0.3, 0.7, 0.9, 1.1, 1.3, 1.7)
    found = walk().displace(ScaleState(SCALES), torch.zeros(8), z).increment
    assert torch.equal(found, (SCALES[OWNER] * z).float())
    assert not torch.equal(found, SCALES[OWNER].float() * z.float())


def test_the_walk_of_some_blocks_has_their_coordinates_in_order():
    move = walk(0, 2)
    assert move.coordinates.tolist() == [1, 2, 3, 5, 7]
    assert move.owners.tolist() == [1, 0, 1, 0, 1]
    z = numbers(5)
    found = move.displace(move.start(), torch.zeros(5, dtype=torch.float64), z).increment
    assert torch.equal(found, double(0.7, 0.1, 0.7, 0.1, 0.7) * z)


def test_the_walk_starts_from_its_scales_and_follows_the_recursion():
    move = walk(1, 3)
    state = move.start()
    assert torch.equal(state.scales, double(2.0, 1.3))
    probs = double(1.0, 0.0)
    learnt = move.adapt(state, double(0.0), probs, torch.tensor(0.5))
    assert torch.equal(learnt.scales, adapt(state.scales, probs, double(0.3, 0.2), 0.5))
    assert learnt.scales.tolist() == pytest.approx([2.0 * math.exp(0.35), 1.3 * math.exp(-0.1)])
    assert torch.equal(move.start().scales, double(2.0, 1.3))
    assert move.report(learnt) == {"proposal scale": learnt.scales}


# --- Several moves of a partition ----------------------------------------------------------------


@pytest.mark.parametrize("cut", [[(0, 1, 2, 3)], [(0, 2), (1, 3)], [(3,), (0, 1), (2,)]])
@pytest.mark.parametrize("chains", [(), (3,)])
def test_walks_side_by_side_are_one_walk_over_all_blocks_bit_for_bit(cut, chains):
    """Displacement, decisions, what is learnt and what is told."""
    joint, alone = (
        JointMoves(PARTITION, moves) for moves in ([walk(*own) for own in cut], [walk()])
    )
    joint_state, alone_state = joint.start(), alone.start()
    if chains:
        joint_state, alone_state = (stacked([s] * 3) for s in (joint_state, alone_state))
    assert torch.equal(joint.targets, TARGETS)
    assert torch.equal(alone.targets, TARGETS)
    position = numbers(*chains, 8)
    for number in range(20):
        z, log_u = numbers(*chains, 8), -torch.rand(*chains, 4, dtype=torch.float64)
        results = []
        for moves, state in ((joint, joint_state), (alone, alone_state)):
            known = moves.displace(state, position, z)
            assert known.log_corrections is None
            propose = proposals(normal, PARTITION.indices, known.increment)
            step = moves.steps(propose, known, log_u)
            after, info = sweep(position, normal, step, 4)
            probs = info.log_ratios.clamp(max=0).exp()
            gain = torch.tensor(1 / (number + 1), dtype=torch.float64)
            results.append((known.increment, *info, after.position, probs, gain))
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other)
        position, probs, gain = results[0][-3:]
        joint_state = joint.adapt(joint_state, position, probs, gain)
        alone_state = alone.adapt(alone_state, position, probs, gain)
        (whole,) = alone_state
        for own, state in zip(cut, joint_state, strict=True):
            assert torch.equal(state.scales, whole.scales[..., list(own)])
    assert not torch.equal(whole.scales, SCALES.expand_as(whole.scales))
    if not chains:
        assert torch.equal(joint.report(joint_state)["proposal scale"], whole.scales)


def normal(position):
    return BatchState(position, -0.5 * position.double().square())


def test_moves_of_two_kinds_each_have_their_own_part():
    """Noise, positions, corrections, decisions, states and reports, by block."""
    joint = JointMoves(PARTITION, [walk(1, 2), shift(0, 3)])
    assert [move.name for move in joint.of_block] == ["shift", "walk", "walk", "shift"]
    assert joint.targets[1:3].tolist() == [0.3, 0.35]
    assert joint.targets[[0, 3]].isnan().all()
    states, position, z = joint.start(), numbers(8), numbers(8)
    known = joint.displace(states, position, z)
    is_walk = torch.tensor([owner in (1, 2) for owner in OWNER])
    assert torch.equal(known.increment, torch.where(is_walk, SCALES[OWNER] * z, -2 * position))
    corrections = known.log_corrections
    assert corrections[[1, 2]].tolist() == [0.0, 0.0]
    assert corrections[0].item() == pytest.approx(float(z[2] + z[5]))
    assert corrections[3].item() == pytest.approx(float(z[4] + z[6]))
    # The way there and back is as dense, so the correction alone is left of a shift's ratio
    propose = proposals(normal, PARTITION.indices, known.increment)
    step = joint.steps(propose, known, torch.full((4,), math.inf))
    after, info = sweep(position, normal, step, 4)
    assert torch.equal(after.position, position)
    assert torch.equal(info.log_ratios[[0, 3]], corrections[[0, 3]])
    learnt = joint.adapt(states, after.position, double(0.1, 0.2, 0.3, 0.4), torch.tensor(1.0))
    assert learnt[1].scales.tolist() == [1.1, 1.4]
    expected = adapt(SCALES[1:3], double(0.2, 0.3), TARGETS[1:3], 1.0)
    assert torch.equal(learnt[0].scales, expected)
    told = joint.report(learnt)
    assert set(told) == {"proposal scale", "shifts"}
    assert told["shifts"].isnan().tolist() == [False, True, True, False]
    assert told["shifts"][[0, 3]].tolist() == [1.1, 1.4]
    assert told["proposal scale"].isnan().tolist() == [True, False, False, True]
    assert torch.equal(told["proposal scale"][1:3], expected)


@pytest.mark.parametrize(("correction", "accepted"), [(1.0, True), (-1.0, False)])
def test_a_correction_decides(correction, accepted):
    """Candidates as dense as where they come from, against a threshold between the two ratios."""
    joint = JointMoves(PARTITION, [shift(0, 1, 2, 3)])
    z = torch.zeros(8, dtype=torch.float64)
    z[[2, 0, 1, 4]] = correction  # one coordinate of each block
    position = numbers(8)
    known = joint.displace(joint.start(), position, z)
    propose = proposals(normal, PARTITION.indices, known.increment)
    step = joint.steps(propose, known, torch.full((4,), -0.5))
    after, info = sweep(position, normal, step, 4)
    assert info.accepted.tolist() == [accepted] * 4
    assert info.log_ratios.tolist() == [correction] * 4
    assert torch.equal(after.position, -position if accepted else position)


# --- Which move a block gets ---------------------------------------------------------------------


def no_priors():
    raise AssertionError("no move asks for them")


def test_blocks_get_the_move_that_they_name_or_the_default():
    assert MOVE_NAMES == ("walk", "pcn", "gibbs")
    blocks = (Block("a", (0,), move="walk"), Block("b", (1, 2)))
    joint = make_moves(Partition(blocks, 3), "walk", double(0.1, 0.2), double(0.4, 0.3), no_priors)
    (move,) = joint.moves
    assert isinstance(move, Walk)
    assert move.blocks.tolist() == [0, 1]
    assert torch.equal(move.start().scales, double(0.1, 0.2))
    assert torch.equal(joint.targets, double(0.4, 0.3))


def test_two_moves_get_the_scales_and_targets_of_their_own_blocks():
    names = ["pcn", None, "walk", "pcn"]
    blocks = (
        Block(f"b{number}", cut, move=name)
        for number, (cut, name) in enumerate(zip(CUTS, names, strict=True))
    )
    priors = NormalPriors(torch.zeros(8).double(), torch.ones(8).double())
    joint = make_moves(Partition(tuple(blocks), 8), "walk", SCALES, TARGETS, lambda: priors)
    assert [move.name for move in joint.of_block] == ["pcn", "walk", "walk", "pcn"]
    assert {type(move) for move in joint.moves} == {PCN, Walk}
    assert torch.equal(joint.targets, TARGETS)
    told = joint.report(joint.start())
    assert torch.equal(told["proposal scale"], SCALES)
    assert told["rho"].isnan().tolist() == [False, True, True, False]


def test_moves_are_given_by_name_of_a_block_or_of_its_layer():
    blocks = (
        Block("a", (0,), layer=1),
        Block("b", (1,), layer=1),
        Block("c", (2,), layer=1, move="walk"),
        Block("d", (3,), layer=2),
    )
    partition = Partition(blocks, 4, ("low", "high"))
    priors, ones = NormalPriors(torch.zeros(4).double(), torch.ones(4).double()), double(*[1.0] * 4)
    given = {"low": "pcn", "b": "walk", "c": "pcn"}
    joint = make_moves(partition, given, ones, ones, lambda: priors)
    # A block's own move comes first, then what is given for it, then for its layer
    assert [move.name for move in joint.of_block] == ["pcn", "walk", "walk", "walk"]
    with pytest.raises(
        ValueError, match=r"moves must map names of layers, \['low', 'high'\],.*'e'"
    ):
        make_moves(partition, {"low": "pcn", "e": "pcn"}, ones, ones, lambda: priors)


def test_a_move_given_by_name_must_fit_its_block():
    partition = Partition((Block("a", (0,)), Block("b", (1,))), 2)
    priors = NormalPriors(torch.zeros(2).double(), double(1.0, torch.nan))
    with pytest.raises(ValueError, match=r"'pcn' needs blocks whose priors .* for \['b'\]"):
        make_moves(partition, {"b": "pcn"}, *[double(1.0, 1.0)] * 2, lambda: priors)


def test_a_move_that_does_not_exist_is_named_with_its_block():
    blocks = (Block("a", (0,), move="slice"), Block("b", (1,)))
    with pytest.raises(ValueError, match=r"must be one of \('walk',.*got .*slice of a"):
        make_moves(Partition(blocks, 2), "walk", double(1.0, 1.0), double(0.4, 0.4), no_priors)


@pytest.mark.parametrize("move", [3, True, b"walk"])
def test_a_move_of_another_type_is_refused(move):
    with pytest.raises(TypeError, match="move must be the name of a move or None, got"):
        Block("a", (0,), move=move)


# --- Devices and states --------------------------------------------------------------------------


def test_moves_go_to_a_device_with_all_their_tensors():
    joint = JointMoves(PARTITION, [walk(1, 2), shift(0, 3)])
    moved = joint.to(META)
    assert [type(move) for move in moved.moves] == [Walk, Shift]
    for before, after in zip(joint.moves, moved.moves, strict=True):
        tensors = {name for name, value in vars(before).items() if torch.is_tensor(value)}
        assert {"blocks", "coordinates", "owners", "targets"} <= tensors
        assert all(getattr(after, name).device == META for name in tensors)
        assert all(getattr(before, name).device.type == "cpu" for name in tensors)
    # of_block names the moved ones, and the first are as they were
    assert [joint.moves.index(move) for move in joint.of_block] == [1, 0, 0, 1]
    assert [moved.moves.index(move) for move in moved.of_block] == [1, 0, 0, 1]
    state = [ScaleState(*(values.to(META) for values in own)) for own in joint.start()]
    known = moved.displace(state, torch.empty(8, device=META), torch.empty(8, device=META))
    assert known.increment.device == META
    assert known.log_corrections.device == META


def test_a_displacement_goes_to_a_device():
    for corrections in (None, torch.zeros(2)):
        moved = Displacement(torch.zeros(3), corrections).to(META)
        assert moved.increment.device == META
        assert (moved.log_corrections is None) == (corrections is None)
        assert corrections is None or moved.log_corrections.device == META


def test_states_are_stacked_and_taken_apart():
    states = [(ScaleState(numbers(2)), ScaleState(numbers(3))) for _ in range(4)]
    for number, own in enumerate(states):
        for dim in (0, 1):
            together = stacked(states, dim)
            assert [len(state.scales.shape) for state in together] == [2, 2]
            for whole, part in zip(together, own, strict=True):
                assert isinstance(whole, ScaleState)
                assert torch.equal(whole.scales.select(dim, number), part.scales)
        for found, part in zip(at(stacked(states), number), own, strict=True):
            assert isinstance(found, ScaleState)
            assert torch.equal(found.scales, part.scales)
    (alone, _) = stacked(states[:1])
    assert alone.scales.shape == (1, 2)
    assert alone.scales.data_ptr() == states[0][0].scales.data_ptr()

"""Draws from Normal conditionals: read off a density by hand, as a step, and who gets them."""

import math

import pytest
import torch

from pyro_fnbg.core.blocks import Block, Partition
from pyro_fnbg.core.moves import choice
from pyro_fnbg.core.moves.choice import make_moves
from pyro_fnbg.core.moves.draws import NoState
from pyro_fnbg.core.moves.gibbs import Gibbs
from pyro_fnbg.core.moves.joint import JointMoves, stacked
from pyro_fnbg.core.moves.walk import Walk
from pyro_fnbg.core.priors import NormalPriors
from pyro_fnbg.core.step import BatchState, proposals, sweep

META = torch.device("meta")


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


# Not in the order of the coordinates, and apart from each other
CUTS = ((0, 2), (4, 1, 3))
PARTITION = Partition(tuple(Block(f"b{number}", cut) for number, cut in enumerate(CUTS)), 5)
DRAWN = torch.tensor(CUTS[1])
NEVER = torch.tensor(math.inf)


def conditional(position):
    """Precision and mean of the drawn block, which depend on the other one."""
    a, b = position[..., 0].double(), position[..., 2].double()
    rows = torch.stack([1 + a, b, 0.5 * a, a - b, 2 + 0 * a, 0.3 * b, a * b, 1 - a, b**2], -1)
    design = rows.unflatten(-1, (3, 3))
    precision = torch.eye(3, dtype=torch.float64) / 1.7**2 + design.mT @ design / 0.4**2
    target = design.mT @ double(0.5, -1.0, 2.0).unsqueeze(-1) / 0.4**2
    return precision, (precision.inverse() @ target).squeeze(-1)


def density(position):
    """A Normal density of the drawn block given the others, in two terms."""
    precision, mean = conditional(position)
    away = (position[..., DRAWN].double() - mean).unsqueeze(-1)
    quadratic = -0.5 * (away.mT @ precision @ away).squeeze((-1, -2))
    other = -0.5 * position[..., 0].double() ** 2 + 3.0
    return BatchState(position, torch.stack([quadratic, other], -1))


def set_up(shape=(), dtype=torch.float64):
    move = Gibbs(PARTITION, torch.tensor([1]))
    walk = Walk(PARTITION, torch.tensor([0]), double(0.3), double(0.0))
    joint = JointMoves(PARTITION, [walk, move])
    position, z = torch.randn(*shape, 5, dtype=dtype), torch.randn(*shape, 5, dtype=torch.float64)
    states = joint.start() if not shape else stacked([joint.start()] * shape[0])
    known = joint.displace(states, position, z)
    return move, joint, position, known, proposals(density, PARTITION.indices, known.increment)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_a_draw_is_the_mean_and_noise_through_the_root_of_the_precision(shape):
    """In the order of the block, and its correction is the density's, by hand."""
    move, _, position, known, propose = set_up(shape)
    z = known.increment[..., DRAWN]
    state = density(position)
    values, correction = move.draw(propose, state, 1, z)
    precision, mean = conditional(position)
    root = torch.linalg.cholesky(precision)
    expected = mean + (root.mT.inverse() @ z.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-10)
    after = position.clone()
    after[..., DRAWN] = values
    gap = state.log_density - density(after).log_density
    torch.testing.assert_close(correction, gap, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_u", [-1.0, -0.01, math.inf])
def test_a_step_takes_the_draw_after_earlier_blocks_of_the_sweep(log_u, dtype):
    """Its ratio is 1; only what forbids every candidate forbids it."""
    move, joint, position, known, propose = set_up((2,), dtype)
    thresholds = torch.tensor([-math.inf, log_u], dtype=torch.float64).expand(2, 2)
    after, info = sweep(position, density, joint.steps(propose, known, thresholds), 2)
    assert info.accepted.tolist() == [[True, log_u < 0]] * 2
    assert float(info.log_ratios[:, 1].abs().max()) < (1e-9 if dtype == torch.float64 else 5e-3)
    expected = position.clone()
    expected[:, [0, 2]] += known.increment[:, [0, 2]]
    if log_u < 0:
        drawn, _ = move.draw(propose, density(expected), 1, known.increment[:, DRAWN])
        expected[:, DRAWN] = drawn
    assert torch.equal(after.position, expected)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_density_that_is_not_finite_is_refused(wrong):
    """A chain of the two has one; the other is drawn."""
    move, joint, position, known, propose = set_up((2,))

    def broken(where):
        terms = density(where).log_terms.clone()
        terms[1, 0] = wrong
        return BatchState(where, terms)

    propose = proposals(broken, PARTITION.indices, known.increment)
    state, ratio, accepted = move.step(propose, broken(position), 1, known, double(-1.0, -1.0))
    assert accepted.tolist() == [True, False]
    assert ratio.isnan().tolist() == [False, True]
    assert torch.equal(state.position[1], position[1])
    assert (state.position[0] != position[0]).sum() == 3


def test_a_density_without_a_peak_is_refused():
    move, _, position, known, _ = set_up()

    def growing(where):
        return BatchState(where, where.double().square())

    propose = proposals(growing, PARTITION.indices, known.increment)
    state, ratio, accepted = move.step(propose, growing(position), 1, known, double(-1.0)[0])
    assert ratio.isnan()
    assert not accepted
    assert torch.equal(state.position, position)


def test_displacement_is_noise_alone_and_nothing_is_learnt():
    move, _, position, _, _ = set_up()
    z = double(0.3, -2.0, 1.0)
    known = move.displace(move.start(), position[[1, 3, 4]], z)
    assert torch.equal(known.increment, z)
    assert known.log_corrections is None
    state = move.start()
    assert state == NoState()
    assert move.adapt(state, double(0, 0, 0), double(1), torch.tensor(1.0)) == state
    assert move.report(state) == {}
    assert move.targets.isnan().all()


def test_it_goes_to_a_device_with_all_its_tensors():
    move = set_up()[0]
    moved = move.to(META)
    assert moved.indices[1].device == moved.coordinates.device == META
    assert move.indices[1].device.type == "cpu"


# --- Which blocks are drawn ----------------------------------------------------------------------

# Of two output nodes; the first two coordinates are of a layer below
NODES = torch.tensor([-1, -1, 0, 0, 1, 1])


def moves_of(*cuts, default="gibbs", nodes=NODES, priors=None):
    blocks = tuple(Block(f"b{number}", cut, move=move) for number, (cut, move) in enumerate(cuts))
    ones = torch.ones(len(blocks), dtype=torch.float64)
    joint = make_moves(
        Partition(blocks, 6), default, ones, ones, lambda: priors, None, lambda: nodes
    )
    return [move.name for move in joint.of_block]


def test_blocks_inside_an_output_node_are_drawn_and_others_walk():
    rest = ((0, 1), None)
    assert moves_of(rest, ((2, 3), None), ((5, 4), None)) == ["walk", "gibbs", "gibbs"]
    assert moves_of(rest, ((2, 4), None), ((3,), None), ((5,), "walk")) == [
        "walk", "walk", "gibbs", "walk",
    ]  # fmt: skip
    assert moves_of(rest, ((2, 3), "gibbs"), ((4, 5), None), default="walk") == [
        "walk", "gibbs", "walk",
    ]  # fmt: skip
    priors = NormalPriors(torch.zeros(6).double(), torch.ones(6).double())
    assert moves_of(rest, ((2, 3), "gibbs"), ((4, 5), None), default="pcn", priors=priors) == [
        "pcn", "gibbs", "pcn",
    ]  # fmt: skip


def test_automatically_drawn_are_blocks_that_are_not_large(monkeypatch):
    rest, nodes = ((0, 1), None), [((2, 3), None), ((4, 5), None)]
    assert moves_of(rest, *nodes, default="auto") == ["walk", "gibbs", "gibbs"]
    assert moves_of(rest, ((2, 3), "walk"), nodes[1], default="auto") == ["walk", "walk", "gibbs"]
    assert moves_of(rest, ((2, 3), "gibbs"), nodes[1], default="auto")[1:] == ["gibbs", "gibbs"]
    others = torch.full((6,), -1)
    assert moves_of(rest, *nodes, default="auto", nodes=others) == ["walk"] * 3
    monkeypatch.setattr(choice, "MOST_DRAWN", 1)
    assert moves_of(rest, *nodes, default="auto") == ["walk"] * 3
    assert moves_of(rest, ((2, 3), "gibbs"), nodes[1], default="auto")[1:] == ["gibbs", "walk"]


@pytest.mark.parametrize(
    ("cuts", "options", "named"),
    [
        ((((0, 1), "gibbs"), ((2, 3), None), ((4, 5), None)), {}, r"\['b0'\]"),
        ((((0, 1), None), ((2, 3, 4, 5), "gibbs")), {"default": "walk"}, r"\['b1'\]"),
        ((((0, 1), None), ((2, 3, 4, 5), None)), {"nodes": torch.full((6,), -1)}, r"\['b0', 'b1'"),
    ],
)
def test_blocks_that_have_no_normal_conditional_are_refused_by_name(cuts, options, named):
    with pytest.raises(ValueError, match=rf"'gibbs' needs blocks inside one .* for {named}"):
        moves_of(*cuts, **options)

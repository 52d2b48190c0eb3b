"""What the compiled sweep reads and writes: arrays, made from a network and its blocks."""

from __future__ import annotations

from enum import IntEnum
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fnbg.core.blocks import Partition
from pyro_fnbg.core.moves.conjugate import Conjugate
from pyro_fnbg.core.moves.gibbs import Gibbs
from pyro_fnbg.core.moves.joint import JointMoves
from pyro_fnbg.core.moves.pcn import MAX_ODDS, PCN
from pyro_fnbg.core.priors import Family, ParameterPriors
from pyro_fnbg.engines.network import Network, NotFeedforward
from pyro_fnbg.model.positive import log_form
from pyro_fnbg.networks.likelihoods import LIKELIHOODS, Likelihood
from pyro_fnbg.networks.statement import ACTIVATIONS

__all__ = [
    "ACT",
    "CHUNK",
    "INPUT_TILE",
    "IS_FINITE",
    "LEAST",
    "PRE",
    "TILE",
    "TURN",
    "Data",
    "Head",
    "Kind",
    "MoveData",
    "Noise",
    "Net",
    "Results",
    "Work",
    "head_of",
    "make_data",
    "make_moves",
    "make_net",
]

TILE = 256  # rows that move up the layers together; their values stay in the first cache

# Rows whose inputs are read together; those of an image stay in the second cache
INPUT_TILE = 128

# Entries of Work.state: layers up to which pre and act are current, the chunk in deltas, whether
# the log likelihood is finite, the layer of the nodes that least is for (0: none), and how often
# the sums of all segments have been added up
PRE, ACT, CHUNK, IS_FINITE, LEAST, TURN = range(6)

Array = NDArray[Any]


class Head(NamedTuple):
    """Describe the likelihood."""

    code: int  # its place in LIKELIHOODS
    least_scale: float  # the smallest observation scale that a network can give
    has_exponential_scale: bool  # else that is a softplus of outputs
    degrees_of_freedom: float
    log_normalizer: float


class Net(NamedTuple):
    """Describe network and blocks; layers count from 1, and coordinates follow the blocks."""

    widths: Array  # (rho + 1,)
    first_units: Array  # (rho + 1,) row of a layer's first node in the arrays of all nodes
    weights: Array  # (rho + 1, 3) a layer's first flat coordinate, steps to next node and input
    biases: Array  # (rho + 1, 2) first or -1, step to the next node
    activations: Array  # (rho + 1,) codes
    head: Head
    factor: float
    fixed_scale: float  # 0 where the network gives the observation scale
    scale_coordinate: int  # -1 where the observation scale is fixed
    prior_locs: Array  # (P,)
    prior_families: Array  # (P,) numbers, see Family
    prior_rates: Array  # (P,) what an error, or its square, is multiplied by, see _log_prior
    prior_powers: Array  # (P,) of Student's t distribution, (degrees of freedom + 1) / 2
    prior_forms: Array  # (V, 8) of positive numbers, see ParameterPriors
    form_rows: Array  # (P,) row of a positive number's form, or -1
    holders: Array  # (P,) coordinate that holds the scale of a prior, or -1 where it is fixed
    holder_powers: Array  # (P,) what its value is multiplied by to be the logarithm of the scale
    term_starts: Array  # (B + 1,) into terms
    terms: Array  # coordinates whose priors change with a block; none if only its own do
    log_constant: float  # what the log density has besides
    unnoticed: float  # share of a number whose addition to it is lost in rounding
    block_starts: Array  # (B + 1,) into coordinates
    block_layers: Array  # (B,) lowest layer of a block; rho + 1 for the observation scale alone
    block_nodes: Array  # (B,) its node, or -1 for a block of several
    block_pre: Array  # (B,) layer up to which its candidate needs the current pre-activations
    block_act: Array  # (B,) and the current activations
    coordinates: Array  # (P,) flat coordinates
    inputs: Array  # (P,) input of each, or -1 for a bias
    piece_starts: Array  # (B + 1,) a piece is what a block has in one node of the first layer
    piece_nodes: Array  # (pieces,)
    piece_firsts: Array  # (pieces,) first weight, into coordinates
    piece_sizes: Array  # (pieces,) number of weights
    piece_biases: Array  # (pieces,) the bias, into coordinates, or -1
    counting: Array  # (widest,) 0, 1, 2, ...


class Kind(IntEnum):
    """Number the moves."""

    WALK = 0
    PCN = 1
    CONJUGATE = 2
    GIBBS = 3


class MoveData(NamedTuple):
    """Say how the blocks move. Apart from the net: every field of that costs each call time."""

    kinds: Array  # (B,) which move a block has, see Kind
    block_spreads: Array  # (B,) what PCN measures its proposal scales by
    prior_scales: Array  # (P,)
    max_odds: float  # a proposal scale over its spread, at most
    rates: Array  # (P,) of a drawn variance, see Variances
    member_starts: Array  # (P + 1,) into members
    members: Array  # coordinates of the parameters whose variance a coordinate is
    order: Array  # (P,) into coordinates, block after block in the order of such a block's noise
    rescaled: Array  # (nodes, 2 + most) how many coordinates of each come in, and all, and which


class Data(NamedTuple):
    """Hold the data in the parameters' dtype."""

    inputs: Array  # (N, widths[0])
    labels: Array  # (N, columns)


class Noise(NamedTuple):
    """Hold batches, noise and proposal scales of K sweeps."""

    rows: Array  # (K, n); (1, n) where all sweeps see the same rows
    z: Array  # (K, P)
    log_u: Array  # (K, B)
    scales: Array  # (B,) what the moves have learnt; overwritten where they learn
    targets: Array  # (B,) acceptance probabilities aimed at
    gains: Array  # (K,) how far the scales move after each sweep; (0,) where they stay
    rescaling: Array  # (3, K, nodes) log factors, factors, logarithms of uniforms; or (3, K, 0)


class Work(NamedTuple):
    """Hold the memory of one chain's sweeps, or of one of the threads that share its rows.

    Everything is overwritten. Here n is the number of rows, rounded up (see LANES), and wide that
    of the nodes of the widest layer, to whole vectors.
    """

    num_rows: int  # before it is rounded up
    first_row: int  # of them, in the batch
    num_threads: int  # that share a batch
    first_segment: int  # of those rows, in the batch
    segment_ends: Array  # (own segments,) where they end in those rows
    sums: Array  # (2, all segments) of log likelihoods, this turn's and the last one's; shared
    arrivals: Array  # first how often threads have written their sums, then nothing; shared
    chunk_starts: Array  # (chunks + 1,) pieces whose deltas are held at a time
    input_rows: Array  # (numbers in a vector, widths[0])
    input_tile: Array  # (widths[0], INPUT_TILE)
    labels: Array  # (columns, n)
    pre: Array  # (nodes, n) pre-activations
    act: Array  # (nodes, n) activations
    deltas: Array  # (pieces at a time, n) first-layer increments times inputs
    log_lik: Array  # (n,)
    new_log_lik: Array  # (n,) the candidate's, of the rows that moved
    new_pre: Array  # (n,) the candidate's pre-activations of the block's node
    new_act: Array  # (n,) the candidate's activations of it
    change: Array  # (n,) what its activations change by
    outgoing: Array  # (wide,) weights of the layer above for it
    above: Array  # (n, wide) pre-activations of the layer above, where nodes of a layer are visited
    new_above: Array  # (numbers in a vector, wide) the candidate's, of some of the rows that moved
    is_moved: Array  # (n,) whether a row moved, as bytes
    moved: Array  # (n,) the numbers of those that did
    least: Array  # (n,) change that the layer above would not notice
    new_least: Array  # (n,) the candidate's, of the rows that moved
    label_tile: Array  # (columns, TILE)
    scratch: Array  # (2, TILE)
    pre_tile: Array  # (wide, TILE)
    act_tile: Array  # (widest, TILE)
    increments: Array  # (P,) in the order of the blocks
    candidate: Array  # (P,) displaced coordinates, in the same order
    kept: Array  # (P,) what they were
    root: Array  # (size, size) of the precision of a Normal conditional, in double precision
    shift: Array  # (size,) from the current values to the draw
    state: Array  # (6,) what holds at the moment: see PRE to TURN


class Results(NamedTuple):
    """Take the results of K sweeps."""

    positions: Array  # (K, P)
    log_ratios: Array  # (K, B)
    accepted: Array  # (K, B)
    log_densities: Array  # (K,)
    scales: Array  # (K, B); (0, B) where they stay
    moved_rows: Array  # (K, B) rows on which a candidate was followed up the layers


def head_of(likelihood: Likelihood) -> Head:
    """Turn a likelihood into what the compiled code reads of it."""
    return Head(
        LIKELIHOODS.index(likelihood.name),
        likelihood.least_scale,
        likelihood.has_exponential_scale,
        likelihood.degrees_of_freedom,
        likelihood.log_normalizer,
    )


def make_net(network: Network, partition: Partition) -> Net:
    """Turn network and blocks into the arrays that the compiled sweep reads."""
    architecture, priors = network.architecture, network.priors
    widths, likelihood = architecture.widths, architecture.likelihood
    dtype = network.data.inputs.numpy().dtype
    forms, rows, constant = _forms(network)
    places = network.places.tolist()
    coordinates: list[int] = []
    starts, layers, nodes = [0], list[int](), list[int]()
    piece_starts, pieces = [0], list[tuple[int, int, int, int]]()
    needs = list[tuple[int, int]]()
    terms = [_terms(priors, index) for index in partition.indices]
    for block in partition.blocks:
        # Layer by layer and node by node, in each the weights and then the bias
        index = sorted(block.index, key=lambda at: (*places[at][:2], places[at][2] < 0, at))
        layer, node = network.node_of(torch.tensor(index))
        layers.append(layer)
        nodes.append(-1 if node is None else node)
        first = len(coordinates)
        in_layer_1 = [places[at] for at in index if places[at][0] == 1]
        for number, piece in groupby(in_layer_1, key=lambda place: place[1]):
            inputs = [place[2] for place in piece]
            has_bias = inputs[-1] < 0
            size = len(inputs) - has_bias
            pieces.append((number, first, size, first + size if has_bias else -1))
            first += len(inputs)
        coordinates += index
        starts.append(len(coordinates))
        piece_starts.append(len(pieces))
        top = len(widths) - 1
        if node is not None and layer < top:
            needs.append((layer + 1, layer))
        elif node is None and layer <= top:
            needs.append((max(layer - 1, 1), layer - 1))
        else:
            needs.append((top, top - 1))
    piece_columns = np.array(pieces, dtype=np.int64).reshape(-1, 4).T.copy()
    return Net(
        widths=np.array(widths),
        first_units=np.cumsum([0, 0, *widths[1:-1]]),
        weights=np.array([(0, 0, 0), *((w.start, *w.steps) for w in network.weights)]),
        biases=np.array(
            [(-1, 0), *((-1, 0) if b is None else (b.start, *b.steps) for b in network.biases)]
        ),
        activations=np.array(
            [0, *(list(ACTIVATIONS).index(name) for name in network.activations), 4]
        ),
        head=head_of(likelihood),
        factor=network.factor,
        fixed_scale=0.0 if likelihood.has_network_scale else likelihood.fixed_scale,
        scale_coordinate=-1 if network.scale_coordinate is None else network.scale_coordinate,
        prior_locs=priors.locs.numpy(),
        prior_families=np.where(rows >= 0, int(Family.POSITIVE), priors.families.numpy()),
        prior_rates=_prior_rates(priors).numpy(),
        prior_powers=(0.5 * (priors.degrees_of_freedom + 1)).numpy(),
        prior_forms=forms,
        form_rows=rows,
        holders=priors.scale_coordinates.numpy(),
        holder_powers=priors.scale_powers.numpy(),
        term_starts=np.cumsum([0, *map(len, terms)]),
        terms=np.array([at for own in terms for at in own], np.int64),
        log_constant=constant + float(priors.log_constant),
        unnoticed=dtype.type(np.finfo(dtype).eps / 8),
        block_starts=np.array(starts),
        block_layers=np.array(layers),
        block_nodes=np.array(nodes),
        block_pre=np.array(needs, np.int64).reshape(-1, 2)[:, 0].copy(),
        block_act=np.array(needs, np.int64).reshape(-1, 2)[:, 1].copy(),
        coordinates=np.array(coordinates),
        inputs=np.array([places[at][2] for at in coordinates]),
        piece_starts=np.array(piece_starts),
        piece_nodes=piece_columns[0],
        piece_firsts=piece_columns[1],
        piece_sizes=piece_columns[2],
        piece_biases=piece_columns[3],
        counting=np.arange(max(widths)),
    )


def _terms(priors: ParameterPriors, index: Tensor) -> list[int]:
    """Return the coordinates whose priors change with a block; none if only its own do."""
    terms = priors.terms_of(index)
    return [] if terms is None else terms.tolist()


def _prior_rates(priors: ParameterPriors) -> Tensor:
    """Return what a prior multiplies an error by, or its square; see ``_log_prior``."""
    squares = priors.scales.square()
    rates = torch.where(priors.families == Family.LAPLACE, 1 / priors.scales, 0.5 / squares)
    of_student = 1 / (priors.degrees_of_freedom * squares)
    return torch.where(priors.families == Family.STUDENT, of_student, rates)


def make_moves(network: Network, net: Net, moves: JointMoves) -> MoveData:
    """Turn the blocks' moves into arrays.

    Raises:
        NotFeedforward: If a block is to be drawn whose inputs are the data.
    """
    num_blocks, num_params = len(moves.of_block), len(network.priors.locs)
    kinds, spreads = np.full(num_blocks, Kind.WALK, np.int64), np.ones(num_blocks)
    rates, members = np.zeros(num_params), [list[int]() for _ in range(num_params)]
    order = np.arange(num_params)
    for move in moves.moves:
        own = move.blocks.numpy()
        if isinstance(move, PCN):
            kinds[own], spreads[own] = Kind.PCN, move.block_spreads.numpy()
        elif isinstance(move, Conjugate):
            kinds[own] = Kind.CONJUGATE
            for known in move.conditionals.values():
                rates[known.coordinates.numpy()] = known.rates.numpy()
                for owner, member in zip(known.owners, known.members.tolist(), strict=True):
                    members[known.coordinates[owner]].append(member)
        elif isinstance(move, Gibbs):
            if len(net.widths) == 2:
                raise NotFeedforward("its only layer is drawn from its conditional")
            kinds[own] = Kind.GIBBS
            for block, index in move.indices.items():
                first, end = net.block_starts[block], net.block_starts[block + 1]
                places = {at: first + k for k, at in enumerate(net.coordinates[first:end].tolist())}
                order[first:end] = [places[at] for at in index.tolist()]
    return MoveData(
        kinds,
        spreads,
        network.priors.scales.numpy(),
        MAX_ODDS,
        rates,
        np.cumsum([0, *map(len, members)]),
        np.array([at for some in members for at in some], np.int64),
        order,
        _rescaled(moves),
    )


def _rescaled(moves: JointMoves) -> Array:
    """Return the coordinates of the nodes that are rescaled, a row a node; see ``MoveData``."""
    layers = () if moves.rescaling is None else moves.rescaling.nodes
    nodes = [
        np.concatenate([[len(incoming), len(incoming) + len(outgoing)], incoming, outgoing])
        for layer in layers
        for incoming, outgoing in zip(layer.incoming.numpy(), layer.outgoing.numpy(), strict=True)
    ]
    rows = np.full((len(nodes), max(map(len, nodes), default=2)), -1)
    for row, node in zip(rows, nodes, strict=True):
        row[: len(node)] = node
    return rows


def _forms(network: Network) -> tuple[Array, Array, float]:
    """Describe the priors of positive numbers, the observation scale among them.

    Returns:
        Their forms; each coordinate's row among them, or -1; the constant of the observation scale.

    Raises:
        NotFeedforward: If the prior of the observation scale has no such form.
    """
    priors, at, prior = network.priors, network.scale_coordinate, network.scale_prior
    rows, forms = torch.full((len(priors.locs),), -1), priors.forms
    rows[priors.positives] = torch.arange(len(forms))
    if prior is None or at is None:
        return forms.numpy(), rows.numpy(), 0.0
    form = log_form(prior)
    if form is None:
        raise NotFeedforward(f"the prior of its observation scale is {type(prior).__name__}")
    rows[at] = len(forms)
    return torch.cat([forms, form[None]]).numpy(), rows.numpy(), float(form[-1])


def make_data(network: Network) -> Data:
    """View the inputs, and put the labels, whatever their type, in the parameters' dtype."""
    inputs, labels = network.data
    labels = labels.reshape(len(inputs), -1).to(inputs.dtype)
    return Data(inputs.contiguous().numpy(), labels.contiguous().numpy())

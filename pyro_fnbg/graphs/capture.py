"""Write down, once, the operations that a model's log density is made of.

A run of the model is watched by torch's tracer, whatever way the model is written, and comes out as
a graph of operations on tensors from the values of its latent sites, and the rows of a batch, to
the log density of every site. What depends on neither is computed once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import pyro
import torch
from torch import Tensor, fx
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fnbg.core.checks import checks_done
from pyro_fnbg.graphs.direct import without_copies
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.supports import without_events

__all__ = [
    "Captured",
    "CapturedSite",
    "NotCaptured",
    "ancestors",
    "capture",
    "computed",
    "for_chains",
    "outputs_of",
    "parameters_of",
    "placeholders_of",
    "written_down",
]


# How NumPy gets at a tensor's memory
WAYS_TO_NUMPY = ("numpy", "__dlpack__")


class NotCaptured(ValueError):
    """Say why a model cannot be written down, though nothing is wrong with it."""


class CapturedSite(NamedTuple):
    """Describe a site of the model.

    Attributes:
        kind: Type of its distribution, without events.
        parameters: The distribution's parameters, by name.
        shape: Shape of the site's value.
        value: That value, where it is known.
    """

    kind: type
    parameters: dict[str, fx.Node]
    shape: tuple[int, ...]
    value: fx.Node | None = None


class Captured(NamedTuple):
    """Hold a model's computation.

    Attributes:
        graph: Its operations. Placeholders are the unconstrained values of all latent sites in the
            layout's order, each in its site's shape, and then the rows of the batch, if there are
            batches.
        terms: The terms of the log density, sites and log Jacobians, by name: each flat and in
            double precision.
        latent: The latent sites, by name.
        observed: The observed sites, by name.
    """

    graph: fx.GraphModule
    terms: dict[str, fx.Node]
    latent: dict[str, CapturedSite]
    observed: dict[str, CapturedSite]


def capture(density: ModelDensity, position: Tensor, rows: Tensor | None) -> Captured:
    """Write down what a log density computes.

    Args:
        density: The model's log density.
        position: Where it is evaluated meanwhile; its value does not matter.
        rows: A batch, whose size matters and whose rows do not; None for all rows.

    Raises:
        NotCaptured: If it cannot be; see ``written_down``.
    """
    layout, found = density.layout, list[_Found]()
    if not layout.is_uniform:
        raise NotCaptured("its latent sites have several dtypes")
    shapes = [site.shape for site in layout.sites]
    values = [
        value.reshape(s) for value, s in zip(position.split(layout.sizes), shapes, strict=True)
    ]

    def run_on(*given: Tensor) -> list[Tensor]:
        sites = {site.name: v.clone() for site, v in zip(layout.sites, given, strict=False)}
        run = density.run(sites, None if rows is None else given[-1])
        numbers = [term.reshape(-1).double() for term in run.terms.values()]
        sites_found = dict[str, _FoundSite]()
        for name, site in run.sites.items():
            kind, parameters = parameters_of(site.distribution)
            shape = tuple(site.value.shape)
            sites_found[name] = _FoundSite(kind, list(parameters), shape, site.is_observed)
            numbers += [*parameters.values(), site.value]
        found[:] = [_Found(list(run.terms), sites_found)]
        return numbers

    graph = written_down(run_on, values if rows is None else [*values, rows])
    (named,) = found
    outputs = iter(outputs_of(graph))
    terms = {name: next(outputs) for name in named.terms}
    sites = {
        name: CapturedSite(
            one.kind, {key: next(outputs) for key in one.parameters}, one.shape, next(outputs)
        )
        for name, one in named.sites.items()
    }
    observed = {name for name, one in named.sites.items() if one.is_observed}
    return Captured(
        graph,
        terms,
        {name: site for name, site in sites.items() if name not in observed},
        {name: site for name, site in sites.items() if name in observed},
    )


def written_down(run: Callable[..., list[Tensor]], given: Sequence[Tensor]) -> fx.GraphModule:
    """Write down what a function that runs a model computes.

    Args:
        run: From tensors to tensors.
        given: What it is run on; values do not matter, shapes do.

    Returns:
        A graph whose outputs are those of ``run``, one for one.

    Raises:
        NotCaptured: If the model decides by values, draws numbers, computes as many numbers as
            values say, or does what torch cannot trace.
    """
    with torch.no_grad(), checks_done(), _without_validation(), _without_numpy():
        try:
            graph = _traced(run, given)
            if any(map(_writes, graph.graph.nodes)):
                # Some operations, such as a GRU, are taken apart by the first trace only, and
                # write in place inside
                graph = _traced(graph, given)
        except Exception as error:
            raise NotCaptured(_reason(error)) from error
    random = [node for node in graph.graph.nodes if _is_random(node)]
    if random:
        raise NotCaptured(f"it draws numbers by {random[0].target}")
    _mark_failures(graph)
    graph = _folded(graph)
    varying = [node for node in graph.graph.nodes if _is_of_varying_size(node)]
    if varying:
        raise NotCaptured(f"how many numbers it computes depends on values: {varying[0].target}")
    return graph


def for_chains(captured: Captured, values: Mapping[str, Tensor], rows: Tensor | None) -> Captured:
    """Write down the terms of several chains together, each value with a dimension for chains.

    Args:
        captured: The computation of one.
        values: Unconstrained values of all latent sites in the layout's order, one a chain.
        rows: Batches of the chains, shape ``(chains, batch size)``; None for all rows.
    """
    graph, count = captured.graph, len(captured.terms)

    def terms(*given: Tensor) -> list[Tensor]:
        found: list[Tensor] = graph(*given)[:count]
        return found

    given = [*values.values(), *([] if rows is None else [rows])]
    together = _folded(_traced(torch.func.vmap(terms), given))
    return Captured(together, dict(zip(captured.terms, outputs_of(together), strict=True)), {}, {})


def placeholders_of(graph: fx.GraphModule, node: fx.Node) -> set[int]:
    """Return the numbers of the inputs that a value is computed from."""
    needed = set(ancestors(graph, [node]))
    inputs = (each for each in graph.graph.nodes if each.op == "placeholder")
    return {number for number, each in enumerate(inputs) if each in needed}


def ancestors(graph: fx.GraphModule, of: Iterable[fx.Node]) -> list[fx.Node]:
    """Return some nodes and all that they are computed from, in the order of computation."""
    needed = set(of)
    for node in reversed(graph.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.graph.nodes if node in needed]


def computed(graph: fx.GraphModule, node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """Return the value of a constant or an operation, from those of what it is computed from."""
    if node.op == "get_attr":
        return getattr(graph, str(node.target))
    function: Any = node.target
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
    return function(*args, **kwargs)


def outputs_of(graph: fx.GraphModule) -> list[fx.Node]:
    """Return what a computation gives."""
    return cast("list[fx.Node]", next(iter(reversed(graph.graph.nodes))).args[0])


class _Found(NamedTuple):
    """Name what a run computes, in the order of its outputs."""

    terms: list[str]
    sites: dict[str, _FoundSite]


class _FoundSite(NamedTuple):
    """Describe a site, without the values of its parameters."""

    kind: type
    parameters: list[str]
    shape: tuple[int, ...]
    is_observed: bool


def parameters_of(distribution: Any) -> tuple[type, dict[str, Tensor]]:
    """Return a distribution's type and parameters: those that it was given, or has made of them."""
    base = without_events(distribution)
    return type(base), {key: one for key, one in vars(base).items() if isinstance(one, Tensor)}


def _traced(function: Callable[..., Any], given: Sequence[Tensor]) -> fx.GraphModule:
    """Trace without writing in place, so that every value can be kept while another is tried."""
    pure = torch.func.functionalize(cast("Any", function), remove="mutations")
    graph: fx.GraphModule = make_fx(pure)(*given)
    return graph


def _mark_failures(graph: fx.GraphModule) -> None:
    """Have factorisations that fail give NaN, in place of the error that ends a run of the model.

    The check that raises it is no part of what the log density is computed from.
    """
    for check in list(graph.graph.nodes):
        if check.target != torch.ops.aten._linalg_check_errors.default:
            continue
        info = check.args[0]
        (factorisation,) = info.all_input_nodes
        for piece in list(factorisation.users):
            if piece is info:
                continue
            with graph.graph.inserting_after(check):
                marked = graph.graph.call_function(nan_where_failed, (piece, info))
            piece.replace_all_uses_with(marked, delete_user_cb=lambda user, m=marked: user is not m)


def nan_where_failed(value: Tensor, info: Tensor) -> Tensor:
    """Put NaN into the results of those factorisations that failed: where ``info`` is not 0."""
    if not value.is_floating_point():
        return value
    failed = (info != 0).reshape(info.shape + (1,) * (value.dim() - info.dim()))
    return value.masked_fill(failed, torch.nan)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


@contextmanager
def _without_validation() -> Iterator[None]:
    """Let no distribution look at values, not even one that was made before."""
    kept: Callable[..., None] = Distribution._validate_sample
    Distribution._validate_sample = lambda *_: None  # type: ignore[method-assign]
    try:
        with pyro.validation_enabled(False):
            yield
    finally:
        Distribution._validate_sample = kept  # type: ignore[method-assign]


@contextmanager
def _without_numpy() -> Iterator[None]:
    """Refuse NumPy the values of what is traced: it would find memory that nobody wrote to."""
    kept: dict[str, Callable[..., Any]] = {way: getattr(Tensor, way) for way in WAYS_TO_NUMPY}

    def refusing(way: Callable[..., Any]) -> Callable[..., Any]:
        def checked(tensor: Tensor, *args: Any, **options: Any) -> Any:
            if torch._is_functional_tensor(tensor):
                raise RuntimeError("NumPy computes with its values")
            return way(tensor, *args, **options)

        return checked

    for name, way in kept.items():
        setattr(Tensor, name, refusing(way))
    try:
        yield
    finally:
        for name, way in kept.items():
            setattr(Tensor, name, way)


def _reason(error: Exception) -> str:
    """Say why a run cannot be written down."""
    if "_local_scalar_dense" in str(error):
        return "it takes values out of its sites, as `if` and `.item()` do"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"its run cannot be written down: {lines[0]}"


def _is_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _is_of_varying_size(node: fx.Node) -> bool:
    """Whether the shape that was found is that of these values alone."""
    if node.target is torch.ops.aten.index.Tensor:
        # By numbers there are as many as numbers; by a mask as many as it lets through
        indices = [one for one in node.all_input_nodes[1:] if one.op != "get_attr"]
        return any(one.meta["val"].dtype in (torch.bool, torch.uint8) for one in indices)
    return torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())


def _folded(graph: fx.GraphModule) -> fx.GraphModule:
    """Compute once what depends on no input, and drop what nothing depends on."""
    without_copies(graph.graph)
    known: dict[fx.Node, Any] = {}
    for node in graph.graph.nodes:
        is_call = node.op == "call_function" and all(one in known for one in node.all_input_nodes)
        if node.op == "get_attr" or is_call:
            known[node] = computed(graph, node, known)
    for number, (node, value) in enumerate(known.items()):
        users = [user for user in node.users if user not in known]
        if not users or not isinstance(value, Tensor):
            continue
        name = f"known{number}"
        graph.register_buffer(name, value)
        with graph.graph.inserting_before(node):
            node.replace_all_uses_with(
                graph.graph.get_attr(name), delete_user_cb=lambda user: user not in known
            )
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph

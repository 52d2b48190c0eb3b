"""A captured computation cut into parts: what changes with some sites, from what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, fx

from pyro_fnbg.graphs.capture import Captured, ancestors
from pyro_fnbg.graphs.direct import call_directly

__all__ = ["Function", "Part", "Parts", "values_of"]

Function = Callable[..., Any]


class Part(NamedTuple):
    """Hold what changes with some sites.

    Attributes:
        function: From the values of these sites, and of what is read, to what changes.
        reads: Which of the kept values it reads, by their numbers.
        rows: Which values of the batch it reads.
        writes: Which of the kept values it gives.
        terms: Those among them that are terms of the log density.
    """

    function: Function
    reads: tuple[int, ...]
    rows: tuple[int, ...]
    writes: tuple[int, ...]
    terms: tuple[int, ...]


class Parts:
    """Cut a captured computation by sites.

    A value is *kept* if the part of some sites reads or gives it: a term of the log density, or
    what flows into a part from outside.

    Args:
        captured: The computation.
        num_sites: Number of latent sites.
        groups: Sets of sites that change together.
        prepare: Applied to the function of each part, and of batches.

    Attributes:
        whole: All that any site changes.
        of_group: What each group changes.
        of_batch: From the rows of a batch to its values; None where there are no batches.
        num_kept: Number of kept values.
    """

    def __init__(
        self,
        captured: Captured,
        num_sites: int,
        groups: Iterable[frozenset[int]],
        prepare: Callable[[Function], Function],
    ) -> None:
        self._module, terms = captured.graph, list(captured.terms.values())
        self._prepare = prepare
        nodes = [node for node in captured.graph.graph.nodes if node.op == "placeholder"]
        self._inputs = list(nodes)
        nodes += [node for node in ancestors(captured.graph, terms) if node not in nodes]
        self._site_of = {node: number for number, node in enumerate(self._inputs[:num_sites])}
        self._sites: dict[fx.Node, frozenset[int]] = {}
        self._calls = [node for node in nodes if node.op != "placeholder"]
        for node in nodes:
            own = {self._site_of[node]} if node in self._site_of else set()
            below = (self._sites[one] for one in node.all_input_nodes)
            self._sites[node] = frozenset(own).union(*below)
        every = frozenset(range(num_sites))
        distinct = [every, *dict.fromkeys(groups)]
        # A term that no site changes is a part of the log density all the same
        self._sites |= {node: every for node in terms if not self._sites[node]}
        kept = dict.fromkeys(terms)
        for group in distinct:
            for node in self._calls:
                if self._sites[node] & group:
                    kept |= dict.fromkeys(
                        one
                        for one in node.all_input_nodes
                        if self._sites[one] and not self._sites[one] & group
                    )
        self._kept = {node: number for number, node in enumerate(kept)}
        self._terms = set(terms)
        self.num_kept = len(kept)
        rows = self._inputs[num_sites:]
        self._of_rows = {
            one: None
            for node in self._calls
            if self._sites[node]
            for one in node.all_input_nodes
            if not self._sites[one] and one.op != "get_attr"
        }
        self._row_numbers = {node: number for number, node in enumerate(self._of_rows)}
        self.whole = self._part(every)
        self.of_group = {group: self._part(group) for group in distinct[1:]}
        self.of_batch = self._batch_function(rows) if rows else None

    def _part(self, group: frozenset[int]) -> Part:
        changed = [node for node in self._calls if self._sites[node] & group]
        read = dict.fromkeys(one for node in changed for one in node.all_input_nodes)
        read = {node: None for node in read if not self._sites[node] & group}
        kept = [node for node in read if node in self._kept]
        rows = [node for node in read if node in self._row_numbers]
        sites = [node for node, number in self._site_of.items() if number in group]
        # A site's own value can be a kept one
        written = [node for node in self._kept if self._sites[node] & group]
        function = self._function([*sites, *kept, *rows], changed, written)
        return Part(
            function,
            tuple(self._kept[node] for node in kept),
            tuple(self._row_numbers[node] for node in rows),
            tuple(self._kept[node] for node in written),
            tuple(self._kept[node] for node in written if node in self._terms),
        )

    def _batch_function(self, rows: Sequence[fx.Node]) -> Function:
        calls = [node for node in self._calls if not self._sites[node]]
        return self._function(rows, calls, list(self._of_rows))

    def _function(
        self, inputs: Sequence[fx.Node], calls: Sequence[fx.Node], outputs: Sequence[fx.Node]
    ) -> Function:
        """Make a function of a part of the graph."""
        graph = fx.Graph()
        new = {node: graph.placeholder(f"given{number}") for number, node in enumerate(inputs)}

        def of(node: fx.Node) -> fx.Node:
            if node not in new:  # a constant
                new[node] = graph.node_copy(node)
            return new[node]

        for node in calls:
            if node not in new:
                new[node] = graph.node_copy(node, of)
                call_directly(new[node])
        graph.output(tuple(of(node) for node in outputs))
        graph.eliminate_dead_code()
        module = fx.GraphModule(self._module, graph)
        # Where Python looks first: a module looks for its buffers only after all else
        vars(module).update(module.named_buffers())
        return self._prepare(module.forward)


def values_of(part: Part, kept: Sequence[Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
    """Return what a part reads."""
    return [*(kept[number] for number in part.reads), *(rows[number] for number in part.rows)]

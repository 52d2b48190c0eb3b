"""Shorter ways to the same operations: most of a small one's time goes into calling it."""

from __future__ import annotations

import inspect
from types import BuiltinFunctionType

import torch
from torch import Tensor, fx

__all__ = ["call_directly", "without_copies"]

_COPIES = (torch.ops.aten.clone.default, torch.ops.aten.detach.default)


def call_directly(node: fx.Node) -> None:
    """Have an operation called by torch's own function or method, where there is one.

    The same operation, in about half the time of the overload that tracing found, which goes
    through a slower parser of arguments.
    """
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
        return
    if any(isinstance(value, list | tuple) and None in value for value in node.args):
        return  # such as the dimensions that are not indexed, which only the overload takes
    name = node.target._schema.name.removeprefix("aten::")
    if name == "_to_copy":
        # The method takes no layout, which the operation may name
        if node.kwargs.keys() <= {"dtype"}:
            node.op, node.target = "call_method", "to"
    elif isinstance(function := getattr(torch, name, None), BuiltinFunctionType):
        node.target = function
    elif inspect.ismethoddescriptor(getattr(Tensor, name, None)):
        node.op, node.target = "call_method", name


def without_copies(graph: fx.Graph) -> None:
    """Drop copies, of which a computation that never writes in place needs none."""
    for node in graph.nodes:
        if node.target in _COPIES and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()

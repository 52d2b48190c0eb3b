"""Whether running a model changes the modules in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

__all__ = ["refusing_changed_buffers"]


@contextmanager
def refusing_changed_buffers() -> Iterator[None]:
    """Refuse, after a run of a model, modules whose floating buffers it changed, and mend them.

    Batch normalisation that trains keeps running statistics. Every candidate would enter them,
    rejected or not, and what a trained network had there would be lost.

    Raises:
        ValueError: Naming the module and its buffers.
    """
    before: dict[nn.Module, dict[str, Tensor]] = {}

    def take_down(module: nn.Module, _: Any) -> None:
        if module not in before:
            found = module.named_buffers(recurse=False)
            before[module] = {name: buffer.detach().clone() for name, buffer in found}

    handle = register_module_forward_pre_hook(take_down)
    try:
        yield
    finally:
        handle.remove()
    words = []
    for module, buffers in before.items():
        changed = [name for name, value in buffers.items() if _differ(module, name, value)]
        if changed:
            words.append(f"{module} its buffers {changed}")
            with torch.no_grad():
                for name, value in buffers.items():
                    module.get_buffer(name).copy_(value)
    if words:
        raise ValueError(
            f"each run of the model changes in module {', in module '.join(words)}, so rejected "
            "candidates would leave a trace there: call eval() on the network, or build it with "
            "track_running_stats=False (the buffers are again as they were)"
        )


def _differ(module: nn.Module, name: str, value: Tensor) -> bool:
    """Whether a buffer of floating numbers is not what it was; counters may count."""
    now = module.get_buffer(name)
    return value.is_floating_point() and not torch.equal(now, value)

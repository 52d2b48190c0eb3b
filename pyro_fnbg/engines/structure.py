"""What is known of how a model computes its log density: a network, or operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.core.rescaling import RescaledNodes, Rescaling
from pyro_fnbg.engines.captured.recognition import recognise
from pyro_fnbg.engines.network import Network, NotFeedforward, read_network
from pyro_fnbg.graphs.capture import Captured, NotCaptured, capture
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.density import ModelDensity
from pyro_fnbg.model.priors import stated_scales
from pyro_fnbg.model.sites import ModelSites

__all__ = ["Structure"]


@dataclass(frozen=True, eq=False)
class Structure:
    """Find out what a model computes, each thing when it is first asked for.

    Nothing of it is taken on trust: engines made from it are compared with the model.

    Args:
        bound: The model.
        sites: What set-up found in it.
        plan: The batches.
        density: Its log density.
        position: Where it is run meanwhile.
        rows: A batch to run it on; None for all rows.
    """

    bound: BoundModel
    sites: ModelSites
    plan: BatchPlan
    density: ModelDensity
    position: Tensor
    rows: Tensor | None

    @cached_property
    def stated(self) -> Network | NotFeedforward:
        """The feedforward network that the model states, or why it cannot be taken."""
        try:
            return read_network(self.bound, self.sites, self.plan)
        except NotFeedforward as reason:
            # Another one: what was raised holds on to all that was there at the time
            return NotFeedforward(str(reason))

    @cached_property
    def shown(self) -> Network | NotFeedforward:
        """The feedforward network that the model's operations are, or what is in the way."""
        if isinstance(self.captured, NotCaptured):
            return NotFeedforward(str(self.captured))
        try:
            return recognise(self.captured, self.bound, self.sites, self.plan, self.rows)
        except NotFeedforward as reason:
            return NotFeedforward(str(reason))

    @property
    def is_stated(self) -> bool:
        """Whether the network is one that the model states."""
        return isinstance(self.stated, Network)

    @property
    def network(self) -> Network | NotFeedforward:
        """The feedforward network that the model states, or else shows; or why there is none."""
        has_statement = getattr(self.bound.model, "feedforward", None) is not None
        if isinstance(self.stated, Network) or (
            has_statement and isinstance(self.shown, NotFeedforward)
        ):
            return self.stated
        return self.shown

    @property
    def normal_nodes(self) -> Tensor:
        """Which coordinates have Normal conditionals; see ``Network.normal_nodes``."""
        network = self.network
        if isinstance(network, Network):
            return network.normal_nodes
        return torch.full(self.position.shape, -1)

    @property
    def relu_nodes(self) -> Sequence[RescaledNodes]:
        """Where the parameters of hidden relu nodes are, if it is a network that has some."""
        network = self.network
        return network.relu_nodes if isinstance(network, Network) else ()

    @property
    def rescaling(self) -> Rescaling:
        """The rescaling of the network's relu nodes.

        Raises:
            ValueError: If it has none, or no network is known.
        """
        network, nodes = self.network, self.relu_nodes
        if not isinstance(network, Network) or not nodes:
            found = (
                f"its activations are {list(network.activations)}"
                if isinstance(network, Network)
                else str(network)
            )
            raise ValueError(
                "rescale=True needs a feedforward network with a hidden layer of activation "
                f"'relu', and in this model {found}: leave rescale out"
            )
        return Rescaling(nodes, network.priors, torch.device("cpu"))

    @cached_property
    def captured(self) -> Captured | NotCaptured:
        """The model's operations, or why they cannot be written down."""
        try:
            with torch.no_grad():
                return capture(self.density, self.position, self.rows)
        except NotCaptured as reason:
            return NotCaptured(str(reason))

    @property
    def prior_scales(self) -> Mapping[str, str]:
        """By site, the site that holds the scale or the variance of its prior."""
        if not self.is_stated and isinstance(self.shown, Network):
            return self.shown.prior_scales
        return stated_scales(self.bound, self.sites.layout)

    @property
    def shown_layers(self) -> tuple[tuple[str, Tensor], ...]:
        """Name and flat coordinates, a row a node, of the layers that the model shows.

        A model that states what it is names its sites by their layers.
        """
        return self.shown.nodes if not self.is_stated and isinstance(self.shown, Network) else ()

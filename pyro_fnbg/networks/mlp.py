"""Bayesian neural networks as Pyro models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from pyro_fnbg.core.calls import call_of
from pyro_fnbg.core.checks import are_checks_done, as_finite, is_count, is_list, shown
from pyro_fnbg.networks.architecture import Architecture
from pyro_fnbg.networks.likelihoods import (
    DEGREES_OF_FREEDOM,
    FROM_NETWORK,
    LIKELIHOODS,
    Likelihood,
)
from pyro_fnbg.networks.priors import NetworkPriors, Scale
from pyro_fnbg.networks.statement import ACTIVATIONS, Activation, Feedforward


class BayesianMLP:
    """Describe a fully connected network with independent priors as a Pyro model.

    `model(x, y=None)` samples `layer1.weight` (kappa_1, kappa_0), `layer1.bias` (kappa_1,),
    `layer2.weight` and so on in the dtype and on the device of `x`, then `obs` in the plate `data`
    of one entry per row, and returns `obs`. The density is exact. Rows are taken by
    `pyro.subsample`: a handler that gives the plate a shorter index makes `x` and `y` follow, and
    only those labels' values are checked. Parameters may carry leading draw dimensions.

    Labels are converted, or refused with an error that names `y`:

    - "bernoulli": 0 and 1, of shape (rows,) or (rows, 1).
    - "categorical": whole numbers 0 to kappa_rho - 1, (rows,) or (rows, 1); or one-hot rows,
      (rows, kappa_rho).
    - "normal" and "student": finite numbers, (rows,) or (rows, 1) for one response, else
      (rows, responses).
    - "poisson": whole numbers from 0 on, of the same shapes.

    Any real or bool dtype will do. `x` must be finite; a network that overflows gives a NaN log
    density, which a sampler can reject, and no exception. Source: the model of Papamarkou,
    "Approximate blocked Gibbs sampling for Bayesian neural networks".

    The arguments can be read from `widths`, `prior_scales`, `prior_locs`, `bias_prior_scales`,
    `bias_prior_locs`, `activations` (tuples), `likelihood`, `observation_scale`,
    `degrees_of_freedom`, `prior` and `prior_degrees_of_freedom`.

    Args:
        widths: Number of nodes per layer, kappa_0 (inputs) to kappa_rho (outputs), rho >= 1.
        prior_scale: Scale of the weights' priors: one number, or one per layer. "fan_in" in place
            of a number is 1 over the root of the layer's number of inputs; a `ScalePrior` says that
            the scale is sampled, as the latent site `layer1.weight_scale` or
            `layer1.weight_variance` before the weights.
        prior_loc: Location of the weights' priors: one number, or one per layer.
        bias_prior_scale, bias_prior_loc: The same for biases; None means the weights' values, and
            the scale 1 where theirs is no number.
        activation: "sigmoid", "tanh", "relu", "step" (1 above zero, else 0), "identity" or a
            callable (the model pickles if it does); one for all, or one per hidden layer.
        likelihood: What the outputs v of a row say of its label. One output: "bernoulli",
            P(1) = 1 / (1 + exp(-v)). Two or more: "categorical", P(k) = exp(v_k) / sum_j exp(v_j).
            Any number: "normal", independent numbers of means v_k and standard deviation s;
            "student", v_k plus s times Student's t; "poisson", independent counts of rates
            exp(v_k), P(y) = exp(y v_k - exp(v_k)) / y!.
        observation_scale: The scale s of "normal" and "student", in the units of `y`: a number; or
            a scalar Pyro distribution over positive numbers, which is then sampled as the latent
            site `obs_scale` after the layers, in the distribution's own dtype; or "network", where
            every row and response has one of its own: of kappa_rho = 2 K outputs the first K are
            means or locations of K responses, and s_k = log(1 + exp(v_{K + k})) + 1e-6.
        degrees_of_freedom: Of "student", a number d above 0. The standard deviation of a response
            is s sqrt(d / (d - 2)) for d > 2, and not finite otherwise, which predictions refuse.
        prior: "normal", whose scale is the standard deviation; "laplace", with the density
            exp(-abs(w - loc) / scale) / (2 scale) and the standard deviation sqrt(2) scale; or
            "student", Student's t distribution, whose standard deviation is
            scale sqrt(df / (df - 2)) for more than two degrees of freedom df, else infinite.
        prior_degrees_of_freedom: Of "student": the fewer, the heavier the tails.

    Attributes:
        parameter_shapes: Shape of every weight and bias by site name, in trace order.
        scale_shapes: Shape of every site that holds sampled scales or variances of priors.

    Raises:
        ValueError: An argument, or in a call the shape or value of `x` or `y`, is not allowed.
        TypeError: In a call, `x` or `y` is no tensor, or one of the wrong kind of dtype; or an
            activation returns something else than numbers of its argument's shape and dtype.

    Examples:
        >>> import pyro, torch
        >>> model = BayesianMLP([2, 3, 4], prior_scale=[1.0, 0.5], activation="tanh")
        >>> trace = pyro.poutine.trace(model).get_trace(torch.zeros(5, 2))
        >>> trace.nodes["layer1.weight"]["value"].shape, trace.nodes["obs"]["value"].shape
        (torch.Size([3, 2]), torch.Size([5]))
    """

    def __init__(
        self,
        widths: Sequence[int],
        prior_scale: Scale | Sequence[Scale] = 1.0,
        prior_loc: float | Sequence[float] = 0.0,
        bias_prior_scale: Scale | Sequence[Scale] | None = None,
        bias_prior_loc: float | Sequence[float] | None = None,
        activation: Activation | Sequence[Activation] = "sigmoid",
        likelihood: str = "categorical",
        observation_scale: float | str | TorchDistributionMixin = 1.0,
        degrees_of_freedom: float = DEGREES_OF_FREEDOM,
        prior: str = "normal",
        prior_degrees_of_freedom: float = 4.0,
    ) -> None:
        self.widths = _checked_widths(widths)
        self._given = {
            "widths": list(self.widths),
            "prior_scale": prior_scale,
            "prior_loc": prior_loc,
            "bias_prior_scale": bias_prior_scale,
            "bias_prior_loc": bias_prior_loc,
            "activation": activation,
            "likelihood": likelihood,
            "observation_scale": observation_scale,
            "degrees_of_freedom": degrees_of_freedom,
            "prior": prior,
            "prior_degrees_of_freedom": prior_degrees_of_freedom,
        }
        layers = len(self.widths) - 1
        self._priors = NetworkPriors.from_arguments(
            self.widths,
            prior,
            prior_degrees_of_freedom,
            prior_scale,
            prior_loc,
            bias_prior_scale,
            bias_prior_loc,
        )
        self.prior, self.prior_degrees_of_freedom = prior, self._priors.degrees_of_freedom
        self.prior_scales, self.prior_locs = self._priors.scales, self._priors.locs
        self.bias_prior_scales = self._priors.bias_scales
        self.bias_prior_locs = self._priors.bias_locs
        self.activations = _checked_activations(activation, layers - 1)
        self.likelihood = _checked_likelihood(likelihood, self.widths[-1])
        self.observation_scale = _checked_observation_scale(
            observation_scale, likelihood, self.widths[-1]
        )
        self.degrees_of_freedom = _checked_degrees_of_freedom(degrees_of_freedom, likelihood)
        stated = self.observation_scale
        if isinstance(stated, TorchDistributionMixin):
            stated = "obs_scale"
        self._architecture = Architecture(
            layers=tuple(f"layer{layer}" for layer in range(1, layers + 1)),
            widths=self.widths,
            activations=self.activations,
            has_bias=(True,) * layers,
            likelihood=Likelihood(
                self.likelihood, self.widths[-1], stated, self.degrees_of_freedom
            ),
        )
        self.parameter_shapes = self._architecture.parameter_shapes
        sampled = self._priors.sampled(self.parameter_shapes)
        self._scale_sites = {name: scale.site_of(name) for name, scale in sampled.items()}
        self.scale_shapes = {
            scale.site_of(name): scale.shape_of(self.parameter_shapes[name])
            for name, scale in sampled.items()
        }

    def __repr__(self) -> str:
        return call_of(self, BayesianMLP, self._given)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample the parameters and the response of each row, or observe `y`."""
        if is_unchecked := not are_checks_done():
            self._check_inputs(x)
            if y is not None:
                self._architecture.likelihood.check_label_shape(y, len(x))
        parameters = self._priors.sample(self.parameter_shapes, x)
        scale: float | Tensor = self._architecture.likelihood.fixed_scale
        if isinstance(self.observation_scale, TorchDistributionMixin):
            scale = pyro.sample("obs_scale", self.observation_scale)
        with pyro.plate("data", len(x), device=str(x.device)):
            batch = pyro.subsample(x, event_dim=1)
            if is_unchecked:
                _check_finite(batch, x)
            outputs = self.forward(parameters, batch)
            if y is not None:
                y = pyro.subsample(y, event_dim=y.dim() - 1)
                y = y.squeeze(-1) if y.dim() == 2 and y.shape[1] == 1 else y
                if is_unchecked:
                    self._architecture.likelihood.check_labels(y)
                y = self._architecture.likelihood.converted_labels(y, outputs.dtype)
            # The labels have been checked; Pyro's own check would add only an exception
            # where the outputs are NaN, which a sampler should see as a NaN density.
            response = self._response(outputs, scale, validate=None if y is None else False)
            value: Tensor = pyro.sample("obs", response, obs=y)
        return value

    def feedforward(self, x: Tensor, y: Tensor | None = None) -> Feedforward:
        """State the network's structure, for the fast engines; see `Feedforward`."""
        net, likelihood = self._architecture, self._architecture.likelihood
        return Feedforward(
            inputs=x,
            layers=net.layers,
            activations=net.activations,
            likelihood=likelihood.name,
            observation_scale=likelihood.observation_scale,
            degrees_of_freedom=likelihood.degrees_of_freedom,
            prior_scales=self._scale_sites,
        )

    def forward(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Compute the outputs of each row, of which `likelihood` says what they are.

        Exact and deterministic. Weights (..., kappa_j, kappa_j-1) with biases (..., kappa_j), as
        of several draws, give outputs (..., rows, kappa_rho).

        Args:
            parameters: Weights and biases by site name; other names are ignored.
            x: Inputs of shape (rows, kappa_0), in the parameters' dtype.

        Raises:
            TypeError: `x` is not a floating-point tensor.
            ValueError: `x` or a parameter has the wrong shape or dtype, or one is missing.

        Examples:
            >>> model = BayesianMLP([2, 1], likelihood="bernoulli")
            >>> draws = {"layer1.weight": torch.ones(10, 1, 2), "layer1.bias": torch.zeros(10, 1)}
            >>> model.forward(draws, torch.ones(5, 2)).shape
            torch.Size([10, 5, 1])
        """
        if not are_checks_done():
            self._check_inputs(x)
            self._check_parameters(parameters, x)
        return self._architecture.forward(parameters, x)

    def _check_parameters(self, parameters: Mapping[str, Tensor], x: Tensor) -> None:
        if not isinstance(parameters, Mapping):
            raise TypeError(f"parameters must map names to tensors, got {shown(parameters)}")
        for name, shape in self.parameter_shapes.items():
            if name not in parameters:
                raise ValueError(
                    f"parameters must hold {name!r}, and has only {shown(list(parameters))}"
                )
            value = parameters[name]
            if value.shape[-len(shape) :] != shape or value.dtype != x.dtype:
                raise ValueError(
                    f"parameters[{name!r}] must have last dimensions {shape} and the dtype of x, "
                    f"{x.dtype}; got {tuple(value.shape)} and {value.dtype}"
                )

    def _response(
        self, outputs: Tensor, scale: float | Tensor, validate: bool | None
    ) -> TorchDistributionMixin:
        return self._architecture.likelihood.response(outputs, scale, validate)

    def _check_inputs(self, x: Tensor) -> None:
        expected = f"x must be a floating-point torch tensor of shape (rows, {self.widths[0]})"
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{expected}, got {type(x).__name__}: make one of all rows, as torch.as_tensor does"
            )
        if not x.is_floating_point():
            raise TypeError(f"{expected}, got {x.dtype}: convert and standardise it")
        if x.dim() != 2 or x.shape[1] != self.widths[0] or len(x) == 0:
            raise ValueError(f"{expected}, with at least one row; got {tuple(x.shape)}")


def _check_finite(batch: Tensor, x: Tensor) -> None:
    # A sum takes a fraction of the network's time, and is finite almost always
    if not bool(torch.isfinite(batch.sum())) and not bool(torch.isfinite(batch).all()):
        # In x, since nobody knows the rows of a batch by their place in it
        row, column = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise ValueError(
            f"x must hold finite numbers, got {x[row, column].item()} in row {row} (from 0), "
            f"column {column}"
        )


def _checked_widths(widths: Sequence[int]) -> tuple[int, ...]:
    if not is_list(widths) or len(widths) < 2 or not all(is_count(width, 1) for width in widths):
        raise ValueError(f"widths must be two or more positive integers, got {shown(widths)}")
    return tuple(map(int, widths))


def _checked_activations(
    activation: Activation | Sequence[Activation], hidden_layers: int
) -> tuple[Activation, ...]:
    """Return one activation a hidden layer, of one or one a hidden layer."""
    entries = activation if is_list(activation) else [activation] * hidden_layers
    known = all(callable(entry) or entry in list(ACTIVATIONS) for entry in entries)
    if not known or len(entries) != hidden_layers:
        raise ValueError(
            f"activation must be a callable or one of {', '.join(ACTIVATIONS)}, or a sequence of "
            f"{hidden_layers}, one per hidden layer; got {shown(activation)}"
        )
    return tuple(entries)


def _checked_likelihood(likelihood: str, outputs: int) -> str:
    left_out = "categorical" if outputs == 1 else "bernoulli"
    allowed = tuple(name for name in LIKELIHOODS if name != left_out)
    if likelihood not in allowed:
        raise ValueError(
            f"likelihood must be one of {allowed} where widths[-1] is {outputs}; "
            f"got {shown(likelihood)}"
        )
    return likelihood


def _checked_observation_scale(
    given: float | str | TorchDistributionMixin, likelihood: str, outputs: int
) -> float | str | TorchDistributionMixin:
    has_scale = Likelihood(likelihood, outputs).has_scale
    if isinstance(given, str) and given == FROM_NETWORK:
        if not has_scale or outputs % 2:
            raise ValueError(
                f"observation_scale may be {FROM_NETWORK!r} where likelihood is 'normal' or "
                "'student' and widths[-1] even, a node for each location and one for each scale; "
                f"got {likelihood!r} and {outputs}"
            )
        return FROM_NETWORK
    if isinstance(given, TorchDistributionMixin):
        lowest = getattr(given.support, "lower_bound", -1.0)
        is_positive = given.shape() == () and not given.support.is_discrete and bool(lowest >= 0)
        scale: float | TorchDistributionMixin = given
    else:
        scale = as_finite(given) or 0.0
        is_positive = scale > 0
    if not is_positive or not (has_scale or scale == 1.0):
        raise ValueError(
            "observation_scale must be a positive finite number, a scalar pyro.distributions "
            f"object over positive numbers or {FROM_NETWORK!r}, and 1.0 unless likelihood is "
            f"'normal' or 'student'; got {shown(given)}"
        )
    return scale


def _checked_degrees_of_freedom(given: float, likelihood: str) -> float:
    number = as_finite(given)
    if number is None or number <= 0 or (likelihood != "student" and number != DEGREES_OF_FREEDOM):
        raise ValueError(
            f"degrees_of_freedom must be a positive finite number, and {DEGREES_OF_FREEDOM} unless "
            f"likelihood is 'student'; got {shown(given)}"
        )
    return number

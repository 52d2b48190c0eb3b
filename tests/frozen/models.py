"""The models of the cases, with a few rows of data each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample

from pyro_fnbg import BayesianMLP, Feedforward, noisy_xor

__all__ = ["PROBLEMS", "Problem"]

ROWS = 24


class Problem(NamedTuple):
    """A model with its arguments; the inputs come first.

    Attributes:
        model: The model.
        args: Its arguments.
        predicts: Whether it is a classifier, whose predictions are frozen too.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...]
    predicts: bool = False


class Net(PyroModule):
    """A network of ``torch.nn`` that states its structure, with or without biases."""

    def __init__(self, inputs, hidden, has_bias=True, dtype=None):
        super().__init__()
        self.hidden = PyroModule[torch.nn.Linear](inputs, hidden, bias=has_bias, dtype=dtype)
        self.out = PyroModule[torch.nn.Linear](hidden, 1, bias=has_bias, dtype=dtype)
        for layer in (self.hidden, self.out):
            for name, value in list(layer.named_parameters()):
                prior = dist.Normal(torch.zeros_like(value), 3.0).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def forward(self, x, y=None):
        plate = pyro.plate("data", len(x))
        with plate as rows:
            batch, labels = x[rows], None if y is None else y[rows]
        logits = self.out(torch.tanh(self.hidden(batch))).squeeze(-1)
        with plate:
            return pyro.sample("y", dist.Bernoulli(logits=logits), obs=labels)

    def feedforward(self, x, y=None):
        return Feedforward(x, ["hidden", "out"], ["tanh"], "bernoulli")


def hierarchy(x, groups, y):
    """Intercepts by group around a common mean, and a slope."""
    mean = pyro.sample("mean", dist.Normal(x.new_zeros(()), 2.0))
    spread = pyro.sample("spread", dist.HalfNormal(x.new_ones(())))
    slope = pyro.sample("slope", dist.Normal(x.new_zeros(1), 1.0).to_event(1))
    with pyro.plate("groups", 4):
        intercepts = pyro.sample("intercepts", dist.Normal(mean, spread))
    noise = pyro.sample("noise", dist.HalfCauchy(x.new_ones(())))
    with pyro.plate("data", len(x)) as rows:
        centre = intercepts[groups[rows]] + x[rows, 0] * slope
        pyro.sample("y", dist.Normal(centre, noise), obs=y[rows])


def constrained(x, y):
    """Latent sites on half-lines, intervals and a simplex, and a Cholesky factor."""
    rate = pyro.sample("rate", dist.Gamma(x.new_tensor(2.0), x.new_tensor(1.5)))
    share = pyro.sample("share", dist.Beta(x.new_tensor([2.0, 0.7]), x.new_tensor(1.2)).to_event(1))
    weights = pyro.sample("weights", dist.Dirichlet(x.new_tensor([1.0, 2.0, 0.8])))
    size = pyro.sample("size", dist.LogNormal(x.new_zeros(()), 0.7))
    corner = pyro.sample("corner", dist.Uniform(x.new_tensor(-1.0), x.new_tensor(2.0)))
    factor = pyro.sample("factor", dist.LKJCholesky(3, x.new_tensor(1.5)))
    centre = corner + rate * share[0] * x[:, 0] + weights[1] * factor[2, 0] * x[:, 1]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(centre, size + share[1]), obs=y)


def subsampled(x, y):
    """A logistic regression whose plate has a size of its own, which does not divide the rows."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(1, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x), subsample_size=7) as rows:
        logits = (x[rows] @ w.mT).squeeze(-1)
        pyro.sample("y", dist.Categorical(logits=torch.stack([-logits, logits], -1)), obs=y[rows])


def two_plates(x, y):
    """Several responses a row, in a plate of their own; an observed site outside both."""
    w = pyro.sample("w", dist.StudentT(3.0, x.new_zeros(2, 3), 1.0).to_event(2))
    pyro.sample("hint", dist.Normal(w.sum(), 2.0), obs=x.new_tensor(0.4))
    with pyro.plate("responses", 3, dim=-1), pyro.plate("data", len(x), dim=-2) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ w, 0.8), obs=y[rows])


def scaled(x, y):
    """A likelihood that is scaled and masked by the model itself, and a factor."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    b = pyro.sample("b", dist.Laplace(x.new_zeros(()), 1.0))
    pyro.factor("pull", -0.3 * (w.sum() - b).square())
    with pyro.plate("data", len(x)) as rows, poutine.scale(scale=0.6):
        logits = x[rows] @ w + b
        seen = dist.Bernoulli(logits=logits).mask(x[rows, 0] > -0.4)
        pyro.sample("y", seen, obs=y[rows].to(x.dtype))


def mixed(x, y):
    """Latent sites in single and double precision."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    noise = pyro.sample("noise", dist.Gamma(torch.tensor(2.0).double(), torch.tensor(2.0).double()))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x.double() @ w.double(), noise), obs=y.double())


def broken(x, y):
    """A density that is NaN in some places and zero in others."""
    a = pyro.sample("a", dist.Normal(x.new_full((2,), 0.5), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(x.new_zeros(()), 1.0))
    pyro.factor("root", torch.sqrt(a[0] + 1.0))
    pyro.factor("wall", torch.where(b > 1.0, -torch.inf, x.new_zeros(())))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(a.sum() + b * x[:, 0], 1.0), obs=y)


def without_data(x):
    """The prior alone."""
    pyro.sample("a", dist.Normal(x.new_zeros(2, 2), 1.0).to_event(2))
    pyro.sample("b", dist.Exponential(x.new_ones(())))


def _numbers(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def _classes(seed, count):
    return torch.randint(0, count, (ROWS,), generator=torch.Generator().manual_seed(seed))


def _xor(dtype):
    data = noisy_xor(num_train=ROWS, num_test=4)
    return data.x_train.to(dtype), data.y_train


def _mlp(widths, **options):
    """A classifier: of noisy XOR with two inputs and one output, of random labels otherwise."""

    def problem(dtype):
        model = BayesianMLP(widths, **options)
        if model.likelihood == "bernoulli" and widths[0] == 2:
            return Problem(model, _xor(dtype), True)
        x = _numbers(1, ROWS, widths[0]).to(dtype)
        return Problem(model, (x, _classes(2, max(2, widths[-1]))), True)

    return problem


def _regression(widths, scale, **options):
    """A network with Normal responses; the scale is a number, or a function from a 1 to a prior."""

    def problem(dtype):
        x, y = _numbers(3, ROWS, widths[0]).to(dtype), _numbers(4, ROWS, widths[-1]).to(dtype)
        own = scale(torch.ones((), dtype=dtype)) if callable(scale) else scale
        model = BayesianMLP(widths, likelihood="normal", observation_scale=own, **options)
        return Problem(model, (x, x[:, :1].sin() + 0.3 * y))

    return problem


def _module(**options):
    def problem(dtype):
        x, y = _xor(dtype)
        return Problem(Net(2, 3, dtype=dtype, **options), (x, y.to(dtype)), True)

    return problem


def _plain(model, num_outputs=0, whole=False):
    """A function with its inputs and responses: numbers, rows of them, or 0 and 1."""

    def problem(dtype):
        x = _numbers(5, ROWS, 2).to(dtype)
        if whole:
            return Problem(model, (x, _classes(6, 2)))
        noise = _numbers(7, ROWS, num_outputs) if num_outputs else _numbers(7, ROWS)
        first = x[:, :1] if num_outputs else x[:, 0]
        return Problem(model, (x, 0.7 * first + 0.4 * noise.to(dtype)))

    return problem


def _hierarchy(dtype):
    x, groups = _numbers(8, ROWS, 1).to(dtype), _classes(9, 4)
    y = groups.to(dtype) - 0.5 * x[:, 0] + 0.3 * _numbers(10, ROWS).to(dtype)
    return Problem(hierarchy, (x, groups, y))


PROBLEMS: dict[str, Callable[[torch.dtype], Problem]] = {
    "xor": _mlp([2, 2, 1], prior_scale=10**0.5, likelihood="bernoulli"),
    "deep xor": _mlp([2, 2, 2, 2, 1], prior_scale=3.0, likelihood="bernoulli"),
    "widening relu": _mlp([2, 3, 8, 2], activation="relu"),
    "widening tanh": _mlp([2, 3, 8, 2], activation="tanh", prior_scale=[1.0, 0.5, 2.0]),
    "shallow": _mlp([5, 1], likelihood="bernoulli"),
    "steps": _mlp([3, 4, 3, 3], activation=["step", "identity"], bias_prior_loc=0.3),
    "softplus": _mlp([2, 3, 2], activation=torch.nn.functional.softplus),
    "two outputs": _regression([2, 3, 2], 0.7, activation="sigmoid"),
    "half-normal scale": _regression([2, 3, 1], dist.HalfNormal, activation="tanh"),
    "half-Cauchy scale": _regression([2, 3, 1], dist.HalfCauchy, activation="tanh"),
    "exponential scale": _regression([2, 3, 1], dist.Exponential, activation="relu"),
    "gamma scale": _regression([2, 3, 1], lambda one: dist.Gamma(2 * one, 3 * one)),
    "inverse gamma scale": _regression([2, 3, 1], lambda one: dist.InverseGamma(3 * one, one)),
    "log-normal scale": _regression([2, 3, 1], lambda one: dist.LogNormal(-one, one)),
    "module": _module(),
    "module without biases": _module(has_bias=False),
    "hierarchy": _hierarchy,
    "constrained": _plain(constrained),
    "subsampled": _plain(subsampled, whole=True),
    "two plates": _plain(two_plates, num_outputs=3),
    "scaled": _plain(scaled, whole=True),
    "mixed": _plain(mixed),
    "broken": _plain(broken),
    "without data": lambda dtype: Problem(without_data, (torch.zeros(1, dtype=dtype),)),
}

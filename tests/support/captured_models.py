"""Models that are captured, of all kinds, and data for them."""

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample

from pyro_fnbg.testing import make_inputs
from support.data import even_normal

__all__ = [
    "IMPOSSIBLE",
    "MODELS",
    "X",
    "Y",
    "Lifted",
    "by_hand",
    "horseshoe",
    "inputs_some_impossible",
    "lattice",
    "normal",
]

X = even_normal(40, 2).double()
Y = X[:, 0].sin() - 0.3 * X[:, 1]


def normal(*shape, scale=1.0):
    zero = torch.zeros(shape, dtype=torch.float64)
    return dist.Normal(zero, scale).to_event(len(shape))


class Lifted(PyroModule):
    """Two layers of torch, with a sampled scale."""

    def __init__(self):
        super().__init__()
        self.below = PyroModule[torch.nn.Linear](2, 4)
        self.above = PyroModule[torch.nn.Linear](4, 1)
        for layer in (self.below, self.above):
            for name, value in list(layer.named_parameters()):
                setattr(layer, name, PyroSample(normal(*value.shape)))

    def forward(self, x, y=None):
        scale = pyro.sample("scale", dist.HalfNormal(torch.tensor(1.0, dtype=torch.float64)))
        plate = pyro.plate("data", len(x))
        with plate as rows:
            batch, observed = x[rows], None if y is None else y[rows]
        mean = self.above(torch.tanh(self.below(batch))).squeeze(-1)
        with plate:
            pyro.sample("y", dist.Normal(mean, scale), obs=observed)


def by_hand(x, y=None):
    inner = pyro.sample("inner", normal(2, 3))
    outer = pyro.sample("outer", normal(3))
    with pyro.plate("data", len(x)) as rows:
        mean = torch.relu(x[rows] @ inner) @ outer
        pyro.sample("y", dist.StudentT(4.0, mean, 0.5), obs=None if y is None else y[rows])


def horseshoe(x, y=None):
    one = torch.ones((), dtype=torch.float64)
    overall = pyro.sample("overall", dist.HalfCauchy(one))
    local = pyro.sample("local", dist.HalfCauchy(one.expand(2)).to_event(1))
    slopes = pyro.sample("slopes", dist.Normal(0.0 * local, overall * local).to_event(1))
    with pyro.plate("data", len(x)) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ slopes, 0.5), obs=None if y is None else y[rows])


def writes_in_place(x, y=None):
    weights = pyro.sample("weights", normal(3))
    bias = pyro.sample("bias", normal())
    with pyro.plate("data", len(x)) as rows:
        mean = torch.zeros(len(rows), dtype=torch.float64)
        mean += bias
        mean[:] += x[rows] @ weights[:2]
        mean.mul_(weights[2])
        pyro.sample("y", dist.Normal(mean, 0.5), obs=None if y is None else y[rows])


def two_responses(x, y=None):
    shared = pyro.sample("shared", normal(2))
    shift = pyro.sample("shift", normal())
    with pyro.plate("data", len(x)) as rows:
        mean = x[rows] @ shared
        observed = None if y is None else y[rows]
        pyro.sample("y", dist.Normal(mean, 0.5), obs=observed)
        signs = None if observed is None else (observed > 0).double()
        pyro.sample("is positive", dist.Bernoulli(logits=mean + shift), obs=signs)


def hierarchy(x, y=None):
    group = (torch.arange(len(x)) % 4).to(x.device)
    spread = pyro.sample("spread", dist.Gamma(torch.tensor(2.0, dtype=torch.float64), 2.0))
    with pyro.plate("groups", 4):
        level = pyro.sample("level", dist.Normal(torch.zeros((), dtype=torch.float64), spread))
    with pyro.plate("data", len(x)) as rows:
        of_row = level[group[rows]]
        pyro.sample("y", dist.Normal(of_row, 0.5), obs=None if y is None else y[rows])


def in_an_interval(x, y=None):
    """Its prior turns truth into numbers in a way that torch's method for it does not know."""
    shift = pyro.sample("shift", dist.Uniform(torch.tensor(-1.0, dtype=torch.float64), 2.0))
    slope = pyro.sample("slope", normal())
    with pyro.plate("data", len(x)) as rows:
        mean = x[rows, 0] * slope + shift
        pyro.sample("y", dist.Normal(mean, 0.5), obs=None if y is None else y[rows])


class Recurrent(PyroModule):
    """A layer that torch takes apart while it is traced, into operations that write in place."""

    def __init__(self):
        super().__init__()
        self.gru = PyroModule[torch.nn.GRU](1, 2, batch_first=True)
        for name, value in list(self.gru.named_parameters()):
            setattr(self.gru, name, PyroSample(normal(*value.shape)))

    def forward(self, x, y=None):
        plate = pyro.plate("data", len(x))
        with plate as rows:
            batch, observed = x[rows], None if y is None else y[rows]
        mean = self.gru(batch.unsqueeze(-1))[0][:, -1].sum(-1)
        with plate:
            pyro.sample("y", dist.Normal(mean, 0.5), obs=observed)


MODELS = {
    "network": Lifted,
    "by hand": lambda: by_hand,
    "horseshoe": lambda: horseshoe,
    "writes in place": lambda: writes_in_place,
    "two responses": lambda: two_responses,
    "hierarchy": lambda: hierarchy,
    "recurrent": Recurrent,
    "interval": lambda: in_an_interval,
}


def lattice(x, y=None):
    """Covariances that are none for some candidates, where torch raises an error."""
    one = torch.ones((), dtype=torch.float64)
    link = pyro.sample("link", dist.Normal(0.0 * one, one))
    shift = pyro.sample("shift", dist.Normal(0.0 * one, one))
    covariance = torch.stack([torch.stack([one, link]), torch.stack([link, one])])
    with pyro.plate("data", len(x)) as rows:
        response = dist.MultivariateNormal(shift.expand(2), covariance)
        pyro.sample("y", response, obs=None if y is None else x[rows])


def uses_a_factor(x, y=None):
    """What is used of the factor is finite even where there is none."""
    one = torch.ones((), dtype=torch.float64)
    link = pyro.sample("link", dist.Normal(0.0 * one, one))
    shift = pyro.sample("shift", dist.Normal(0.0 * one, one))
    covariance = torch.stack([torch.stack([one, link]), torch.stack([link, one])])
    slope = torch.linalg.cholesky(covariance)[1, 0]
    with pyro.plate("data", len(x)) as rows:
        mean = slope * x[rows, 0] + shift
        pyro.sample("y", dist.Normal(mean, 0.5), obs=None if y is None else y[rows])


def singular_values(x, y=None):
    """An operation that raises an error itself."""
    one = torch.ones((), dtype=torch.float64)
    link = pyro.sample("link", dist.Normal(0.5 * one, one))
    shift = pyro.sample("shift", dist.Normal(0.0 * one, one))
    root = link.sqrt()
    matrix = torch.stack([torch.stack([one, root]), torch.stack([root, one])])
    slope = torch.linalg.svdvals(matrix)[0]
    with pyro.plate("data", len(x)) as rows:
        mean = slope * x[rows, 0] + shift
        pyro.sample("y", dist.Normal(mean, 0.5), obs=None if y is None else y[rows])


IMPOSSIBLE = [lattice, uses_a_factor, singular_values]


def inputs_some_impossible(run, chains):
    """Draw inputs on which a model of `IMPOSSIBLE` meets candidates that are.

    None in the first sweep, in which chains together are compared with each alone.
    """
    inputs = make_inputs(run, chains=chains, sweeps=80 // chains, scale=1.0)
    return inputs._replace(z=inputs.z.index_fill(1, torch.tensor([0]), 0.0))

"""Sample a network by NumPyro's NUTS or BlackJAX's slice sampling, where these are installed.

python -m benchmarks.samplers.jax_fit TASK OUTCOME
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import norm
from numpyro.infer import NUTS

from benchmarks.uci.exchange import Outcome, Task, read_task, timed, write_outcome

ACTIVATIONS = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "step": lambda z: (z > 0).astype(z.dtype),
}
LEAST_SCALE = 1e-6
# Of a chain's time, before the draws that count; NUTS adapts for so many iterations instead
WARMUP_SHARE, NUTS_WARMUP = 1 / 3, 500
# Draws that a chain keeps of all it makes, before some are taken: what memory has room for
MOST_KEPT = 20_000
# Share of a chain's time that the pilot takes
PILOT_SHARE = 0.05

Array = Any
State = Any


class Target:
    """Hold a network's density over one vector of parameters; a scale is its logarithm."""

    def __init__(self, task: Task, starts: dict[str, Array]) -> None:
        """Read the starts of the chains, which say what the parameters are."""
        self.about = task.about["problem"]
        self.x = jnp.asarray(task.x_train, jnp.float32)
        self.y = jnp.asarray(task.y_train, jnp.float32)
        chains = len(starts["layer1.bias"])
        singles = [
            {name: jnp.asarray(v[chain]) for name, v in starts.items()} for chain in range(chains)
        ]
        self.starts = [ravel_pytree(one)[0].astype(jnp.float32) for one in singles]
        self.unravel = ravel_pytree(singles[0])[1]
        self.size = len(self.starts[0])

    def outputs(self, theta: Array, x: Array) -> Array:
        """Evaluate the network."""
        params = self.unravel(theta)
        num_layers = len(self.about["widths"]) - 1
        for layer in range(1, num_layers + 1):
            x = x @ params[f"layer{layer}.weight"].T + params[f"layer{layer}.bias"]
            x = ACTIVATIONS[self.about["activation"]](x) if layer < num_layers else x
        return x

    def normal(self, theta: Array, x: Array) -> tuple[Array, Array]:
        """Return means and standard deviations of numbers."""
        outputs = self.outputs(theta, x)
        if self.about["has_network_scale"]:
            return outputs[..., 0], jax.nn.softplus(outputs[..., 1]) + LEAST_SCALE
        means = outputs[..., 0]
        return means, jnp.broadcast_to(jnp.exp(self.unravel(theta)["obs_scale"]), means.shape)

    def log_likelihood(self, theta: Array) -> Array:
        """Return that of all rows."""
        if self.about["likelihood"] == "normal":
            means, scales = self.normal(theta, self.x)
            return norm.logpdf(self.y, means, scales).sum()
        signs = 2 * self.y - 1
        return jax.nn.log_sigmoid(signs * self.outputs(theta, self.x)[..., 0]).sum()

    def log_prior(self, theta: Array) -> Array:
        """Return that of the parameters as they are sampled: Jacobians included."""
        params = self.unravel(theta)
        weights = [v.ravel() for name, v in params.items() if name != "obs_scale"]
        density = norm.logpdf(jnp.concatenate(weights), 0.0, self.about["prior_scale"]).sum()
        if "obs_scale" in params:
            log_scale = params["obs_scale"]
            density += jnp.log(2.0) + norm.logpdf(jnp.exp(log_scale)) + log_scale
        return density

    def log_density(self, theta: Array) -> Array:
        """Return prior times likelihood, in logarithms."""
        return self.log_likelihood(theta) + self.log_prior(theta)


def main() -> None:
    """Read the task, sample, and write what is predicted."""
    source, target = map(Path, sys.argv[1:])
    write_outcome(target, fit(read_task(source)))


def fit(task: Task) -> Outcome:
    """Run one chain after the other, each for its part of the time; compiling is not in it."""
    with np.load(task.about["starts"]) as found:
        target = Target(task, dict(found))
    start, step = SAMPLERS[task.about["method"]](target)
    advance = jax.jit(lambda state, count: jax.lax.fori_loop(0, count, lambda _, s: step(s), state))
    keys = jax.random.split(jax.random.PRNGKey(task.about["seed"]), len(target.starts))
    states = [start(key, theta) for key, theta in zip(keys, target.starts, strict=True)]
    compiled = advance.lower(states[0], 1).compile()
    jax.block_until_ready(compiled(states[0], 1))
    about: dict[str, Any] = {
        "versions": {name: version(name) for name in ("numpyro", "blackjax", "jax")}
    }
    seconds = task.about["budget_seconds"] / len(states)
    is_nuts = task.about["method"] == "NUTS"
    with timed(about):
        runs = [run_chain(compiled, state, seconds, is_nuts, task) for state in states]
    about["steps"] = int(np.mean([steps for steps, _ in runs]))
    length = min(len(draws) for _, draws in runs)
    if not length:
        raise RuntimeError(f"after {about['steps']} iterations the time was up, in the warmup")
    draws = jnp.stack([thinned(draws, length, task) for _, draws in runs])
    return predicted(target, draws, jnp.asarray(task.x_test, jnp.float32), about)


def run_chain(
    advance: Callable[[State, int], State],
    state: State,
    seconds: float,
    is_nuts: bool,
    task: Task,
) -> tuple[int, list[Array]]:
    """Return how many steps a chain made in its time, and those of its draws that are kept."""
    began = time.process_time()
    spent = 0.0
    steps = 0
    pilot = 1
    while spent < PILOT_SHARE * seconds:
        state = jax.block_until_ready(advance(state, pilot))
        steps += pilot
        pilot *= 2
        spent = time.process_time() - began
    stride = 1 if is_nuts else max(1, int(steps / spent * seconds / MOST_KEPT))
    draws = []
    while time.process_time() - began < seconds:
        state = jax.block_until_ready(advance(state, stride))
        steps += stride
        is_warmup = (
            steps <= NUTS_WARMUP
            if is_nuts
            else time.process_time() - began < WARMUP_SHARE * seconds
        )
        if not is_warmup:
            draws.append(position_of(state))
    return steps, draws


def thinned(draws: list[Array], length: int, task: Task) -> Array:
    """Take as many draws as are predicted from, evenly, of those that all chains have."""
    places = np.linspace(0, length - 1, min(length, task.about["num_draws"])).round().astype(int)
    return jnp.stack([draws[place] for place in places])


def position_of(state: State) -> Array:
    """Return the parameters of a sampler's state."""
    return state[1].z if hasattr(state[1], "z") else state[1].position


def of_nuts(target: Target) -> tuple[Callable[..., State], Callable[[State], State]]:
    """Return the start and the step of NUTS, with NumPyro's own adaptation."""
    kernel = NUTS(potential_fn=lambda theta: -target.log_density(theta))

    def start(key: Array, theta: Array) -> State:
        return key, kernel.init(key, NUTS_WARMUP, theta, (), {})

    def step(state: State) -> State:
        return state[0], kernel.sample(state[1], (), {})

    return start, step


def of_blackjax(make: Callable[[Target], Any]) -> Callable[[Target], Any]:
    """Return the same for a sampler of BlackJAX."""

    def of_target(target: Target) -> tuple[Callable[..., State], Callable[[State], State]]:
        sampler = make(target)

        def start(key: Array, theta: Array) -> State:
            return key, sampler.init(theta)

        def step(state: State) -> State:
            key, own = jax.random.split(state[0])
            return key, sampler.step(own, state[1])[0]

        return start, step

    return of_target


def elliptical(target: Target) -> Any:
    """Return elliptical slice sampling about the prior.

    The prior of a scale's logarithm is not Normal: N(0, 1) takes its place, and what it lacks is
    counted with the likelihood.
    """
    names = target.unravel(jnp.arange(target.size, dtype=jnp.float32))
    deviations = jnp.full(target.size, target.about["prior_scale"])
    if "obs_scale" in names:
        deviations = deviations.at[int(names["obs_scale"])].set(1.0)

    def rest(theta: Array) -> Array:
        stand_in = norm.logpdf(theta, 0.0, deviations).sum()
        return target.log_likelihood(theta) + target.log_prior(theta) - stand_in

    return blackjax.elliptical_slice(rest, mean=jnp.zeros(target.size), cov=deviations**2)


SAMPLERS = {
    "NUTS": of_nuts,
    "elliptical slice": of_blackjax(elliptical),
    "slice along random lines": of_blackjax(lambda t: blackjax.slice_sampling(t.log_density)),
    "slice by coordinate": of_blackjax(lambda t: blackjax.coordinate_slice(t.log_density)),
}


def predicted(target: Target, draws: Array, x: Array, about: dict[str, Any]) -> Outcome:
    """Predict by every draw of every chain."""

    def over_draws(of_one: Callable[[Array], Any]) -> Any:
        return jax.vmap(lambda chain: jax.lax.map(of_one, chain))(draws)

    if target.about["likelihood"] == "normal":
        means, scales = over_draws(lambda theta: target.normal(theta, x))
        return Outcome(np.asarray(means), np.asarray(scales), about=about)
    logits = over_draws(lambda theta: target.outputs(theta, x)[..., 0])
    both = jnp.stack([jax.nn.log_sigmoid(-logits), jax.nn.log_sigmoid(logits)], -1)
    return Outcome(log_probabilities=np.asarray(both), about=about)


if __name__ == "__main__":
    main()

"""Sample the same network by NumPyro's NUTS, in an environment that has it.

python -m benchmarks.uci.nuts_fit TASK OUTCOME
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_sample

from benchmarks.uci.exchange import Outcome, Task, read_task, timed, write_outcome

LEAST_SCALE = 1e-6


def main() -> None:
    """Read the task, sample, and write what is predicted."""
    source, target = map(Path, sys.argv[1:])
    write_outcome(target, fit(read_task(source)))


def outputs_of(params: dict[str, Any], x: Any, num_layers: int) -> Any:
    """Evaluate the network."""
    for layer in range(1, num_layers + 1):
        x = x @ params[f"layer{layer}.weight"] + params[f"layer{layer}.bias"]
        x = jax.nn.relu(x) if layer < num_layers else x
    return x


def normal_of(outputs: Any) -> tuple[Any, Any]:
    """Return means and standard deviations."""
    return outputs[..., 0], jax.nn.softplus(outputs[..., 1]) + LEAST_SCALE


def model_of(task: Task) -> Any:
    """Return the network as a model."""
    widths = task.widths
    num_layers = len(widths) - 1

    def model(x: Any, y: Any) -> None:
        params = {}
        for layer, (before, after) in enumerate(zip(widths[:-1], widths[1:], strict=True), 1):
            for name, shape in (("weight", (before, after)), ("bias", (after,))):
                site = f"layer{layer}.{name}"
                prior = dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape))
                params[site] = numpyro.sample(site, prior)
        outputs = outputs_of(params, x, num_layers)
        if task.num_classes:
            response = dist.Categorical(logits=outputs)
        else:
            response = dist.Normal(*normal_of(outputs))
        numpyro.sample("obs", response, obs=y)

    return model


def fit(task: Task) -> Outcome:
    """Run one chain after the other, all of them if there is time.

    A chain that has begun is not stopped, so the time can be longer than the limit.
    """
    plan = task.about["settings"]
    nuts = plan["nuts"]
    num_layers = len(task.widths) - 1
    x = jnp.asarray(task.x_train, jnp.float32)
    y = jnp.asarray(task.y_train, jnp.int32 if task.num_classes else jnp.float32)
    thin = max(1, nuts["num_samples"] // plan["num_draws"])
    mcmc = MCMC(
        NUTS(model_of(task), max_tree_depth=nuts["max_tree_depth"], init_strategy=init_to_sample),
        num_warmup=nuts["num_warmup"],
        num_samples=nuts["num_samples"],
        thinning=thin,
        progress_bar=False,
    )
    about: dict[str, Any] = {"versions": {name: version(name) for name in ("numpyro", "jax")}}
    chains, num_steps, num_divergent = [], [], []
    with timed(about):
        started = time.process_time()
        for key in jax.random.split(jax.random.PRNGKey(task.about["seed"]), plan["num_chains"]):
            if chains and time.process_time() - started > nuts["limit_seconds"]:
                break
            mcmc.run(key, x, y, extra_fields=("num_steps", "diverging"))
            chains.append(jax.block_until_ready(mcmc.get_samples()))
            found = mcmc.get_extra_fields()
            num_steps.append(float(found["num_steps"].mean()))
            num_divergent.append(int(found["diverging"].sum()))
    about |= {"chains": len(chains), "steps_a_draw": num_steps, "divergent": num_divergent}
    x_test = jnp.asarray(task.x_test, jnp.float32)
    predict = jax.jit(jax.vmap(lambda params: outputs_of(params, x_test, num_layers)))
    outputs = jnp.stack([predict(samples) for samples in chains])
    if task.num_classes:
        return Outcome(log_probabilities=np.asarray(jax.nn.log_softmax(outputs)), about=about)
    means, scales = normal_of(outputs)
    return Outcome(np.asarray(means), np.asarray(scales), about=about)


if __name__ == "__main__":
    main()

"""Try an installed package, not a checkout, in an environment with nothing else in it.

Run it from another folder, as ``.ci/smoke`` does. It needs what the package depends on, no more.
"""

import importlib.util
import subprocess
import sys
import tempfile
from importlib.metadata import files
from pathlib import Path

import pyro
import torch
from pyro.infer import MCMC

import pyro_fnbg
from pyro_fnbg import (
    FNBG,
    BayesianMLP,
    MultiChainMCMC,
    diagnose_predictions,
    noisy_xor,
    open_store,
    plots,
    predict,
    predictive_probabilities,
    score_classes,
    to_arviz,
    warm_start,
)
from pyro_fnbg.estimators import BNNClassifier
from pyro_fnbg.testing import assert_as_model, make_inputs, run_on, start

SIZES = {"num_samples": 60, "warmup_steps": 40, "num_chains": 2, "disable_progbar": True}


def main() -> None:
    """Go through what a user would do first; raise where something does not work."""
    pyro.set_rng_seed(1)
    folder = Path(tempfile.mkdtemp())
    where = Path(pyro_fnbg.__file__).parent
    assert "site-packages" in where.parts, f"this is no installed package: {where}"
    assert {"py.typed", "__init__.py"} <= {path.name for path in where.iterdir()}
    assert not [path for path in files("pyro-fnbg") if path.parts[0] in ("tests", "docs")]
    pyro_fnbg.show_versions()

    data = noisy_xor(num_train=200, num_test=40)
    model = BayesianMLP([2, 3, 1], likelihood="bernoulli")
    kernel = FNBG(model, batch_size=50)
    mcmc = MCMC(kernel, num_samples=60, warmup_steps=40, disable_progbar=True)
    mcmc.run(data.x_train, data.y_train)
    mcmc.summary()
    assert kernel.engine == "fused", kernel.engine

    store = folder / "run.zarr"
    begin = warm_start(
        model, data.x_train, data.y_train, num_chains=2, steps=20, disable_progbar=True
    )
    chains = MultiChainMCMC(FNBG(model), initial_params=begin, store=store, **SIZES)
    chains.run(data.x_train, data.y_train)
    chains.summary()
    assert to_arviz(chains)["posterior"]["layer1.weight"].shape == (2, 60, 3, 2)
    assert open_store(store)["posterior"].sizes["draw"] == 60
    longer = MultiChainMCMC.resume(store, FNBG(model), more_samples=20)
    longer.run(data.x_train, data.y_train)
    assert longer.get_samples()["layer1.bias"].shape == (160, 3)

    samples = longer.get_samples(group_by_chain=True)
    found = predict(model, longer.get_samples(), data.x_test)
    print(score_classes(found, data.y_test))
    print(diagnose_predictions(model, longer.get_samples(), data.x_test, num_chains=2))
    by_draw = predictive_probabilities(model, longer.get_samples(), data.x_test)
    assert torch.isfinite(torch.as_tensor(by_draw)).all()
    axes = plots.plot_traces(samples["layer1.bias"][..., 0], "a bias")
    axes.flat[0].figure.savefig(folder / "traces.png")
    classifier = BNNClassifier(num_samples=20, warmup_steps=20)
    classifier.fit(data.x_train.numpy(), data.y_train.numpy())

    # No network that is stated, and a step: the model is run or captured
    def regression(x: torch.Tensor, y: torch.Tensor) -> None:
        weight = pyro.sample("weight", pyro.distributions.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", pyro.distributions.Normal((weight * x > 0).float(), 1.0), obs=y)

    x = torch.linspace(-1, 1, 20)
    for engine in ("trace", "captured", "feedforward", "fused"):
        args = (regression, x, x) if engine in ("trace", "captured") else (model, *data[:2])
        run = start(engine, *args)
        inputs = make_inputs(run, sweeps=3, scale=0.5)
        assert_as_model(run, inputs, run_on(run, inputs))

    for arguments in (
        ["info", store],
        ["report", store, "-o", folder / "report.html"],
        ["export", store, "-o", folder / "run.nc"],
    ):
        command = [Path(sys.executable).parent / "pyro-fnbg", *arguments]
        subprocess.run(list(map(str, command)), check=True)
    assert (folder / "report.html").stat().st_size > 10_000
    assert importlib.util.find_spec("pytest") is None, "pytest came along"
    print("all of it works")


if __name__ == "__main__":
    main()

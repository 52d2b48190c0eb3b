"""Finished runs become what ArviZ works on, under version 0 and version 1 alike."""

import pickle
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.infer.mcmc.api as api
import pytest
import torch
import xarray as xr
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc.api import StreamingMCMC

from pyro_fnbg import FNBG, BayesianMLP, to_arviz
from support.drivers import drive, stock

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az

IS_ARVIZ_1 = int(az.__version__.partition(".")[0]) >= 1
NET = BayesianMLP([2, 3, 3], likelihood="categorical")

pytestmark = pytest.mark.filterwarnings("ignore:num_chains=:UserWarning")


def regression(y):
    """Have a vector site without ``to_event``, and a constrained one."""
    loc = pyro.sample("reg.loc", dist.Normal(torch.zeros(2, 3), 1.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    pyro.deterministic("total", loc.sum())
    pyro.factor("nothing", torch.zeros(()))
    with pyro.plate("data", len(y)) as rows:
        pyro.sample("y", dist.Normal(loc.sum(), scale), obs=y[rows])


def run(kernel, *args, draws=30, warmup=10, seed=1, **options):
    pyro.set_rng_seed(seed)
    options = {"disable_progbar": True, "num_chains": 2} | options
    mcmc = MCMC(kernel, num_samples=draws, warmup_steps=warmup, **options)
    mcmc.run(*args)
    return mcmc


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(40, 2, generator=generator), torch.arange(40) % 3


@pytest.fixture(scope="module")
def batched(data):
    return run(FNBG(NET, batch_size=10), *data, draws=60)


@pytest.fixture(scope="module")
def full(data):
    return run(FNBG(NET), *data)


@pytest.fixture(scope="module")
def regressed():
    return run(FNBG(regression), torch.linspace(-2.0, 2.0, 15))


def groups(idata):
    """Return the groups by name as Datasets, whatever holds them."""
    if IS_ARVIZ_1:
        return {name: node.to_dataset() for name, node in idata.children.items()}
    return {name: idata[name] for name in idata.groups()}


def test_the_kind_of_object_is_that_of_the_installed_arviz(batched):
    kind = xr.DataTree if IS_ARVIZ_1 else az.InferenceData
    assert type(to_arviz(batched)) is kind
    assert set(groups(to_arviz(batched))) == {
        "posterior",
        "sample_stats",
        "chain_stats",
        "observed_data",
    }


def test_posterior_has_the_draws_and_names_of_pyro(batched):
    posterior = to_arviz(batched)["posterior"]
    samples = batched.get_samples(group_by_chain=True)
    assert set(posterior.data_vars) == set(samples)
    for name, value in samples.items():
        own = [f"{name}_dim_{i}" for i in range(value.dim() - 2)]
        assert list(posterior[name].dims) == ["chain", "draw", *own]
        assert np.array_equal(posterior[name].values, value.numpy())
        for dim in posterior[name].dims:
            assert posterior[dim].values.tolist() == list(range(posterior.sizes[dim]))


def test_draws_are_constrained_and_sites_keep_their_shape(regressed):
    posterior = to_arviz(regressed)["posterior"]
    assert posterior["reg.loc"].shape == (2, 30, 2, 3)
    assert posterior["scale"].shape == (2, 30)
    assert (posterior["scale"].values > 0).all()


def test_statistics_of_draws_and_chains_are_those_of_the_kernel(batched):
    idata = to_arviz(batched)
    draws, chains = idata["sample_stats"], idata["chain_stats"]
    assert dict(draws.sizes) == {"chain": 2, "draw": 60, "layer": 2}
    assert dict(chains.sizes) == {"chain": 2, "block": 6, "layer": 2}
    assert draws["acceptance_rate"].dims == ("chain", "draw")
    assert draws["layer_acceptance_rate"].dims == ("chain", "draw", "layer")
    assert draws["batch_log_density"].dims == ("chain", "draw")
    assert not {"diverging", "step_size"} & set(draws.data_vars)
    assert draws["layer"].values.tolist() == ["layer1", "layer2"]
    blocks = [f"layer{j}.node{k}" for j in (1, 2) for k in (1, 2, 3)]
    assert chains["block"].values.tolist() == blocks
    for chain, report in enumerate(batched._diagnostics):
        for name, values in report["sample_stats"].items():
            assert np.array_equal(draws[name].values[chain], values), name
        here = chains.isel(chain=chain)
        rates, scales = here["acceptance_rate"], here["proposal_scale"]
        assert dict(zip(blocks, rates.values, strict=True)) == report["acceptance rate by block"]
        assert dict(zip(blocks, scales.values, strict=True)) == report["proposal scale by block"]
        assert here["non_finite_candidates"].values.tolist() == [0] * 6
        reversed_share = report["share of decisions that another batch would reverse"]
        for layer in ("layer1", "layer2"):
            found = here["share_reversed_by_another_batch"].sel(layer=layer).item()
            assert found == reversed_share[layer]
    first, second = draws["acceptance_rate"].values
    assert not np.array_equal(first, second)
    assert (draws["acceptance_rate"].values <= 1).all()


def test_non_finite_candidates_are_counted():
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        pyro.factor("edge", torch.where(a[0, 0] > 0, torch.nan, 0.0))

    counts = to_arviz(run(FNBG(model, proposal_scale=1.0), draws=50))["chain_stats"][
        "non_finite_candidates"
    ]
    assert counts.dims == ("chain", "block")
    assert (counts.sel(block="a.node1").values > 0).all()
    assert (counts.sel(block="a.node2").values == 0).all()


def test_lp_is_the_joint_log_density_of_unconstrained_parameters():
    y = torch.randn(15)
    mcmc = run(FNBG(regression), y)
    stats = to_arviz(mcmc)["sample_stats"]
    assert np.array_equal(stats["lp"].values, stats["batch_log_density"].values)
    samples = mcmc.get_samples(group_by_chain=True)
    for chain, draw in ((0, 3), (1, 29)):
        here = {name: value[chain, draw] for name, value in samples.items()}
        trace = pyro.poutine.trace(pyro.poutine.condition(regression, here)).get_trace(y)
        # scale = exp(u), so its log Jacobian is log(scale)
        expected = trace.log_prob_sum() + here["scale"].log()
        assert stats["lp"].values[chain, draw] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("driver", [stock, drive])
def test_lp_keeps_double_precision(driver):
    """Where the log density is a million, which in single precision has steps of 0.06."""

    def model(level):
        a = pyro.sample("a", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        pyro.factor("level", level + 1e-4 * a.sum())

    level = torch.tensor(1e6, dtype=torch.float64)
    kernel = FNBG(model, proposal_scale=0.01, adapt=False)
    mcmc = driver(kernel, level, draws=40, warmup=0, num_chains=2)
    lp = to_arviz(mcmc)["sample_stats"]["lp"]
    assert lp.dtype == np.float64
    a = mcmc.get_samples(group_by_chain=True)["a"]
    expected = level + 1e-4 * a.sum(-1) + dist.Normal(0.0, 1.0).log_prob(a).sum(-1)
    np.testing.assert_allclose(lp.values, expected, rtol=0.0, atol=1e-9)
    steps = np.diff(lp.values)
    moves = np.abs(steps[steps != 0])
    assert moves.size > 20
    assert moves.min() < 1e-3


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 10}, {"batch_size": 10, "likelihood_scale": "full"}, {"likelihood_scale": 0.5}],
)
def test_only_chains_for_the_models_posterior_have_lp(data, options):
    stats = to_arviz(run(FNBG(NET, **options), *data))["sample_stats"]
    assert "lp" not in stats.data_vars
    assert "batch_log_density" in stats.data_vars


def test_attributes_say_what_the_chains_target(batched):
    idata = to_arviz(batched)
    found = idata["posterior"].attrs
    assert found["target"].startswith("approximate: prior x likelihood^0.25")
    assert (found["batch_size"], found["num_rows"]) == (10, 40)
    assert found["likelihood_factor"] == 1.0
    assert found["nominal_likelihood_temperature"] == 4.0
    assert found["warmup_steps"] == 10
    assert found["seed"] == str(batched._diagnostics[0]["seed"])
    assert found["random_streams"] == "0, 1"
    assert found["pyro_version"] == pyro.__version__
    assert found["torch_version"] == torch.__version__
    for name, key in (
        ("log_ratio_sd_across_batches", "standard deviation of the log ratio across batches"),
        ("share_reversed_by_another_batch", "share of decisions that another batch would reverse"),
    ):
        expected = np.mean([report[key]["all"] for report in batched._diagnostics])
        assert found[name] == pytest.approx(expected)
    assert idata.attrs == found
    for group in groups(idata).values():
        assert group.attrs["inference_library"] == "pyro_fnbg"
        assert {type(value) for value in group.attrs.values()} <= {str, int, float}


def test_exact_chains_have_no_batch_noise(full):
    idata = to_arviz(full)
    assert idata["posterior"].attrs["target"] == "exact: the posterior of the model"
    assert idata["posterior"].attrs["nominal_likelihood_temperature"] == 1.0
    found = {*idata["posterior"].attrs, *idata["chain_stats"].data_vars}
    assert not {"log_ratio_sd_across_batches", "share_reversed_by_another_batch"} & found


# --- The data ----------------------------------------------------------------------------------


def observed(mcmc):
    return {name: v.values for name, v in to_arviz(mcmc)["observed_data"].data_vars.items()}


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}])
def test_data_are_all_rows_in_order_without_factors_and_computed_values(options):
    y = torch.randn(15)
    found = to_arviz(run(FNBG(regression, **options), y))["observed_data"]
    assert set(found.data_vars) == {"y"}
    assert found["y"].dims == ("y_dim_0",)
    assert np.array_equal(found["y"].values, y.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4, 5, 15])
def test_models_that_subsample_themselves_give_all_rows(size):
    def model(y, pairs):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("whole", dist.Normal(loc, 1.0), obs=torch.tensor(3.0))
        with pyro.plate("columns", 2, dim=-1), pyro.plate("rows", 15, subsample_size=size, dim=-2):
            part = pyro.subsample(y, event_dim=0)
            pyro.sample("y", dist.Normal(loc, 1.0), obs=part)
            part = pyro.subsample(pairs, event_dim=1)
            pyro.sample("pairs", dist.Normal(loc, torch.ones(3)).to_event(1), obs=part)

    y, pairs = torch.randn(15, 2), torch.randn(15, 2, 3)
    found = observed(run(FNBG(model), y, pairs))
    assert np.array_equal(found["y"], y.numpy())
    assert np.array_equal(found["pairs"], pairs.numpy())
    assert found["whole"] == 3.0


def test_data_that_lack_the_plates_dimension_are_given_once():
    def model():
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 6, subsample_size=2):
            pyro.sample("zero", dist.Normal(loc, torch.ones(2)), obs=torch.tensor(0.0))

    assert observed(run(FNBG(model)))["zero"].shape == ()


def test_keyword_arguments_and_masked_holes_in_the_data_are_no_obstacle():
    def model(y, ok):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)), pyro.poutine.mask(mask=ok):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    y = torch.tensor([0.5, 1.0, 99.0])
    pyro.set_rng_seed(1)
    mcmc = MCMC(FNBG(model), num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(y, ok=torch.tensor([True, True, False]))
    assert np.array_equal(observed(mcmc)["y"], y.numpy())


def test_no_data_no_group():
    def model():
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.factor("f", torch.zeros(()))

    assert "observed_data" not in groups(to_arviz(run(FNBG(model))))


def test_data_can_be_left_out(batched):
    assert "observed_data" not in groups(to_arviz(batched, observed_data=False))


def test_a_model_that_no_longer_runs_is_an_error_that_says_how_to_go_on():
    y = [torch.ones(5)]

    def model():
        pyro.sample("y", dist.Normal(pyro.sample("a", dist.Normal(0.0, 1.0)), 1.0), obs=y[0])

    mcmc = run(FNBG(model))
    y.clear()
    with pytest.raises(IndexError) as caught:
        to_arviz(mcmc)
    assert "observed_data=False" in str(caught.value)
    assert to_arviz(mcmc, observed_data=False)["posterior"]["a"].shape == (2, 30)


def test_random_state_and_outer_handlers_are_left_alone(batched):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    with pyro.poutine.trace() as outer:
        to_arviz(batched)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert not outer.trace.nodes
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


# --- How often the model runs ------------------------------------------------------------------


class Counted:
    """A model that counts its runs."""

    def __init__(self, subsample_size=None):
        self.subsample_size, self.runs = subsample_size, 0

    def __call__(self, y):
        self.runs += 1
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y), subsample_size=self.subsample_size) as rows:
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y[rows])


@pytest.mark.parametrize(
    ("subsample_size", "options", "runs"),
    [(None, {}, 1), (None, {"batch_size": 5}, 1), (5, {}, 3), (4, {}, 4), (15, {}, 1)],
)
@pytest.mark.parametrize("driver", [stock, drive])
def test_the_model_runs_for_its_data_alone_and_is_not_inspected_again(
    driver, subsample_size, options, runs
):
    model, y = Counted(subsample_size), torch.linspace(-1.0, 1.0, 15)
    mcmc = driver(FNBG(model, **options), y, num_chains=2)
    model.runs = 0
    idata = to_arviz(mcmc)
    assert np.array_equal(idata["observed_data"]["y"].values, y.numpy())
    assert model.runs == runs
    model.runs = 0
    to_arviz(mcmc, observed_data=False)
    assert model.runs == 0


def test_a_run_that_was_loaded_is_converted_as_it_was(full):
    loaded = pickle.loads(pickle.dumps(full))
    for name, group in groups(to_arviz(full)).items():
        xr.testing.assert_equal(groups(to_arviz(loaded))[name], group)


# --- Names, kinds of runs ----------------------------------------------------------------------


def test_dimensions_and_labels_can_be_named(regressed):
    idata = to_arviz(
        regressed,
        dims={"reg.loc": ["row", "column"], "y": ["time"]},
        coords={"column": ["a", "b", "c"], "draw": range(100, 130)},
    )
    loc = idata["posterior"]["reg.loc"]
    assert loc.dims == ("chain", "draw", "row", "column")
    expected = regressed.get_samples(group_by_chain=True)["reg.loc"][1, 4, 0, 2]
    assert loc.sel(chain=1, draw=104, row=0, column="c").item() == expected
    assert idata["sample_stats"]["draw"].values[0] == 100
    assert idata["observed_data"]["y"].dims == ("time",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": {"loc": ["a"]}}, r"dims has entries for \['loc'\]; there are \['reg.loc', 'sc"),
        ({"dims": {"reg.loc": ["a"]}}, r"2 dimensions of shape \(2, 3\), each .*got \['a'\]"),
        ({"dims": {"reg.loc": ["a", "a"]}}, r"each otherwise, got \['a', 'a'\]"),
        ({"dims": {"reg.loc": ["chain", "a"]}}, r"each otherwise, got \['chain', 'a'\]"),
        ({"coords": {"drow": [1]}}, r"coords has entries for \['drow'\]; there are \['block', "),
        ({"coords": {"draw": [1, 2]}}, r"coords\['draw'\] must have 30 labels, got \[1, 2\]"),
    ],
)
def test_names_that_do_not_fit_are_refused(regressed, options, words):
    with pytest.raises(ValueError, match=words):
        to_arviz(regressed, **options)


def test_one_chain_keeps_its_dimension(data, batched):
    mcmc = run(FNBG(NET, batch_size=10), *data, num_chains=1, draws=60)
    idata = to_arviz(mcmc)
    assert idata["posterior"]["layer1.bias"].shape == (1, 60, 3)
    assert idata["sample_stats"]["layer_acceptance_rate"].shape == (1, 60, 2)
    both = to_arviz(batched)
    for group, name in (("posterior", "layer1.bias"), ("sample_stats", "acceptance_rate")):
        assert np.array_equal(idata[group][name].values[0], both[group][name].values[0])


def test_saved_sites_only():
    idata = to_arviz(run(FNBG(regression), torch.ones(7), save_params=["scale"]))
    assert set(idata["posterior"].data_vars) == {"scale"}
    assert idata["sample_stats"]["acceptance_rate"].shape == (2, 30)
    assert idata["chain_stats"].sizes["block"] > 1


def test_no_saved_site_leaves_the_statistics():
    idata = to_arviz(run(FNBG(regression), torch.ones(7), save_params=[]))
    assert set(groups(idata)) == {"sample_stats", "chain_stats", "observed_data"}
    assert idata["sample_stats"]["lp"].shape == (2, 30)
    assert idata.attrs["target"] == "exact: the posterior of the model"


def test_custom_partitions_have_one_nameless_layer(data):
    kernel = FNBG(NET, blocks="site")
    idata = to_arviz(run(kernel, *data))
    names = [block.name for block in kernel.partition.blocks]
    assert idata["chain_stats"]["block"].values.tolist() == names


@pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks")
def test_chains_from_workers_are_those_drawn_in_turn(data, batched, monkeypatch):
    monkeypatch.setattr(api.mp, "cpu_count", lambda: 8)
    forked = to_arviz(run(FNBG(NET, batch_size=10), *data, draws=60, mp_context="fork"))
    for name, group in groups(to_arviz(batched)).items():
        xr.testing.assert_equal(groups(forked)[name], group)
    assert forked.attrs["seed"] == to_arviz(batched).attrs["seed"]


def test_the_costly_diagnostics_of_pyro_are_never_asked_for(batched, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("needs memory that grows with the square of the number of draws")

    monkeypatch.setattr(MCMC, "diagnostics", fail)
    monkeypatch.setattr(MCMC, "summary", fail)
    monkeypatch.setattr(FNBG, "diagnostics", fail)
    assert to_arviz(batched)["posterior"].sizes["draw"] == 60


# --- What ArviZ does with it -------------------------------------------------------------------


def test_arviz_computes_on_it(batched):
    idata = to_arviz(batched)
    assert len(az.summary(idata)) == 21
    assert len(az.summary(idata, group="sample_stats")) == 4
    for result in (az.ess(idata), az.rhat(idata)):
        values = result["layer2.bias"].values
        assert values.shape == (3,)
        assert np.isfinite(values).all()


@pytest.mark.parametrize("options", [{"batch_size": 10}, {}], ids=["batches", "full"])
def test_a_netcdf_file_brings_all_of_it_back(data, options, tmp_path):
    idata = to_arviz(run(FNBG(NET, **options), *data))
    idata.to_netcdf(str(tmp_path / "run.nc"))
    again = az.from_netcdf(str(tmp_path / "run.nc"))
    assert set(groups(again)) == set(groups(idata))
    for name, group in groups(idata).items():
        xr.testing.assert_equal(groups(again)[name].load(), group)
        assert set(group.attrs) <= set(groups(again)[name].attrs)
        for key, value in group.attrs.items():
            assert groups(again)[name].attrs[key] == value, key
    assert again.attrs["target"] == idata.attrs["target"]
    again.close()


@pytest.mark.skipif(IS_ARVIZ_1, reason="ArviZ 1.x has no converter for Pyro")
def test_from_pyro_of_arviz_0_works_as_well():
    y = torch.randn(15)
    mcmc = run(FNBG(regression), y)
    idata = az.from_pyro(mcmc, log_likelihood=False, dims={"reg.loc": ["row", "column"]})
    expected = to_arviz(mcmc)
    assert idata.posterior["reg.loc"].dims == ("chain", "draw", "row", "column")
    for name in ("reg.loc", "scale"):
        assert np.array_equal(idata.posterior[name].values, expected.posterior[name].values)
    assert not idata.sample_stats["diverging"].values.any()
    assert np.array_equal(idata.observed_data["y"].values, y.numpy())


# --- What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("given", [3, None, {"a": torch.zeros(3)}, FNBG(NET)])
def test_other_objects_are_refused(given):
    words = rf"mcmc must be an MCMC that has run with an FNBG kernel.*got {type(given).__name__}$"
    with pytest.raises(TypeError, match=words):
        to_arviz(given)


def test_a_driver_that_keeps_no_draws_is_refused(data):
    mcmc = StreamingMCMC(FNBG(NET), num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(*data)
    with pytest.raises(TypeError, match="kept its draws, got StreamingMCMC"):
        to_arviz(mcmc)


def test_other_kernels_are_refused():
    mcmc = run(NUTS(regression), torch.ones(3), draws=3, warmup=2, num_chains=1)
    with pytest.raises(TypeError, match=r"kernel FNBG, got one of NUTS.*arviz\.from_pyro"):
        to_arviz(mcmc)


def test_runs_that_did_not_end_are_refused(data):
    def interrupt(kernel, params, stage, i):
        if kernel.state.key.chain == 1:
            raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match=r"no finished run.*mcmc\.run"):
        to_arviz(MCMC(FNBG(NET), num_samples=5, warmup_steps=5))
    mcmc = MCMC(FNBG(NET), num_samples=5, num_chains=2, disable_progbar=True, hook_fn=interrupt)
    with pytest.raises(KeyboardInterrupt):
        mcmc.run(*data)
    assert mcmc._diagnostics[0] is not None
    with pytest.raises(RuntimeError, match="no finished run"):
        to_arviz(mcmc)


@pytest.mark.skipif(not hasattr(az, "concat"), reason="ArviZ of version 1 leaves it to xarray")
@pytest.mark.parametrize("options", [{}, {"batch_size": 10}])
def test_two_runs_are_joined_draw_after_draw(data, options):
    first, second = (
        to_arviz(run(FNBG(NET, **options), *data, draws=count), chain_stats=False)
        for count in (12, 30)
    )
    both = az.concat(first, second, dim="draw")
    assert set(both.groups()) == {"posterior", "sample_stats", "observed_data"}
    for group in ("posterior", "sample_stats"):
        for name, values in both[group].data_vars.items():
            assert values.sizes["draw"] == 42
            pieces = [first[group][name].values, second[group][name].values]
            np.testing.assert_array_equal(values.values, np.concatenate(pieces, 1))
    assert both["posterior"].attrs["target"] == first["posterior"].attrs["target"]
    xr.testing.assert_equal(both["observed_data"], first["observed_data"])

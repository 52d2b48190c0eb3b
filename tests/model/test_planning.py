import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fnbg.core.batches import BatchPlan
from pyro_fnbg.model.bound import BoundModel
from pyro_fnbg.model.planning import check_batch_arguments, make_plan
from pyro_fnbg.model.sites import inspect_model

X, Y = torch.arange(24.0).sin().reshape(12, 2), torch.arange(12.0).cos()


def model(x, y, subsample_size=None, subsample=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", 12, subsample_size=subsample_size, subsample=subsample) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ w, 1.0), obs=y[rows])


def plan_of(model, *args, size=None, order="shuffled", plate=None, scale=None, **kwargs):
    return make_plan(inspect_model(BoundModel(model, args, kwargs)), size, order, plate, scale)


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({}, BatchPlan("data", 12, 12, "full", 1.0)),
        ({"size": 3}, BatchPlan("data", 12, 3, "shuffled", 1.0)),
        ({"size": 12}, BatchPlan("data", 12, 12, "full", 1.0)),
        ({"size": 3, "order": "stratified"}, BatchPlan("data", 12, 3, "stratified", 1.0)),
        ({"size": 3, "scale": "full"}, BatchPlan("data", 12, 3, "shuffled", 4.0)),
        ({"size": 3, "scale": "batch"}, BatchPlan("data", 12, 3, "shuffled", 1.0)),
        ({"size": 3, "scale": 2}, BatchPlan("data", 12, 3, "shuffled", 2.0)),
        ({"scale": 0.5}, BatchPlan("data", 12, 12, "full", 0.5)),
        ({"order": "full"}, BatchPlan("data", 12, 12, "full", 1.0)),
        # a model's own subsample_size means the full likelihood, as everywhere in Pyro
        ({"subsample_size": 4}, BatchPlan("data", 12, 4, "shuffled", 3.0)),
        ({"subsample_size": 4, "size": 4}, BatchPlan("data", 12, 4, "shuffled", 3.0)),
        ({"subsample_size": 4, "scale": "batch"}, BatchPlan("data", 12, 4, "shuffled", 1.0)),
        ({"subsample_size": 12}, BatchPlan("data", 12, 12, "full", 1.0)),
    ],
)
def test_plans(wishes, expected):
    assert plan_of(model, X, Y, **wishes) == expected


def test_rows_that_the_model_fixes_are_left_alone():
    rows = torch.tensor([1, 5, 7])
    sites = inspect_model(BoundModel(model, (X, Y), {"subsample": rows}))
    assert make_plan(sites, None, "shuffled", None, None).is_full
    scaled = make_plan(sites, None, "shuffled", None, "batch")
    assert (scaled.is_full, scaled.factor, scaled.temperature) == (True, 1.0, 4.0)
    with pytest.raises(ValueError, match="batch_size=2.*fixes the rows of plate 'data'"):
        make_plan(sites, 2, "shuffled", None, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, r"batch_size must be a whole number, 1 or more; got 0"),
        ({"size": -3}, "got -3"),
        ({"size": 2.5}, "batch_size must be a whole number, 1 or more; got 2.5"),
        ({"size": True}, "batch_size must be a whole number, 1 or more; got True"),
        ({"size": 3, "order": "random"}, "batch_order must be one of .*'random'"),
        ({"plate": 3}, "batch_plate must be the name of a plate, got 3"),
        ({"size": 3, "scale": "half"}, "likelihood_scale must be .*'half'"),
        ({"size": 3, "scale": 0.0}, "positive number, got 0.0"),
        ({"size": 3, "scale": -1}, "positive number, got -1"),
        ({"size": 3, "scale": float("nan")}, "positive number, got nan"),
        ({"size": 3, "scale": float("inf")}, "positive number, got inf"),
        ({"size": 3, "scale": True}, "positive number, got True"),
    ],
)
def test_arguments_that_fit_no_model_are_refused(arguments, words):
    names = ("size", "order", "plate", "scale")
    values = {"order": "shuffled"} | arguments
    with pytest.raises(ValueError, match=words):
        check_batch_arguments(*(values.get(name) for name in names))


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"size": 13}, r"batch_size must be 1..12.*got 13"),
        ({"size": 3, "order": "full"}, "batch_order='full' takes all 12 rows.*batch size is 3"),
        ({"order": "stratified"}, "'stratified' needs batch_size"),
        ({"size": 3, "plate": "rows"}, r"batch_plate='rows'.*there are \['data'\]"),
        ({"size": 3, "subsample_size": 4}, "batch_size=3.*plate 'data' has subsample_size=4"),
    ],
)
def test_wishes_that_contradict_are_refused(wishes, words):
    with pytest.raises(ValueError, match=words):
        plan_of(model, X, Y, **wishes)


def no_plate(y):
    pyro.sample("y", dist.Normal(pyro.sample("a", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def unsized(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data"):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def sequential(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    for i in pyro.plate("data", 12):
        pyro.sample(f"y{i}", dist.Normal(a, 1.0), obs=y[i])


def local_latents(y):
    with pyro.plate("data", 12) as rows:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(a, 1.0), obs=y[rows])


def two_plates(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("outer", 3, dim=-2), pyro.plate("inner", 4, dim=-1):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y.reshape(3, 4))


def two_subsampled(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    for name in ("first", "second"):
        with pyro.plate(name, 12, subsample_size=3) as rows:
            pyro.sample(f"y {name}", dist.Normal(a, 1.0), obs=y[rows])


@pytest.mark.parametrize(
    ("model", "wishes", "words"),
    [
        (no_plate, {"size": 3}, r"in a pyro.plate, and observed sites \['y'\] are in none"),
        (no_plate, {"scale": 0.5}, r"observed sites \['y'\] are in none"),
        (no_plate, {"plate": "data"}, "there are none"),
        (unsized, {"size": 3}, r"are in none with a size: give \['data'\] one, pyro.plate\(name,"),
        (unsized, {"plate": "data"}, r"there are none with a size: give \['data'\] one"),
        (sequential, {"size": 3}, "plate 'data' is sequential"),
        (local_latents, {"size": 3}, r"latent sites \['a'\] are inside plate 'data'"),
        (two_plates, {"size": 3}, r"several plates, \['inner', 'outer'\]: name the one"),
        (two_subsampled, {}, r"plates \['second'\] are subsampled besides 'first'"),
    ],
)
def test_models_that_cannot_be_batched_are_refused_by_name(model, wishes, words):
    with pytest.raises(ValueError, match=words):
        plan_of(model, Y, **wishes)


def test_models_that_are_not_batched_need_no_plate():
    for model in (no_plate, unsized, sequential, local_latents, two_plates):
        plan = plan_of(model, Y)
        assert plan.is_full
        assert plan.temperature == 1.0


def test_batch_plate_chooses():
    assert plan_of(two_plates, Y, size=2, plate="outer").plate == "outer"
    assert plan_of(two_plates, Y, size=2, plate="inner").num_rows == 4


def with_others(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("other", dist.Normal(a, 1.0), obs=torch.tensor(0.5))
    pyro.factor("penalty", -a.abs())
    with pyro.plate("data", 12) as rows, pyro.plate("columns", 1):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y[rows])


@pytest.mark.parametrize("wishes", [{"size": 3}, {"size": 3, "scale": "full"}, {"scale": 0.5}])
def test_the_target_names_what_is_observed_outside_the_plate(wishes):
    plan = plan_of(with_others, Y, plate="data", **wishes)
    assert "likelihood of ['other', 'penalty'] outside plate 'data'" in plan.target
    assert "outside" not in plan_of(two_plates, Y, plate="outer", scale=0.5).target


def test_an_exact_target_is_that_of_the_model_with_all_that_it_observes():
    assert plan_of(with_others, Y).target == "exact: the posterior of the model"
    assert plan_of(with_others, Y, plate="data").target == "exact: the posterior of the model"

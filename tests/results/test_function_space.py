"""Chains are judged by what they predict."""

import warnings

import numpy as np
import pytest
import torch

from pyro_fnbg import BayesianMLP, predictive_probabilities
from pyro_fnbg.results.estimates import import_arviz
from pyro_fnbg.results.function_space import diagnose_predictions, diagnostics_of_predictions
from pyro_fnbg.results.nested import own_nested_r_hat
from support.data import normal

az = import_arviz()
NET = BayesianMLP([2, 3, 3], activation="tanh")


def probabilities(chains=4, draws=50, rows=5, classes=3, shift=0.0):
    """Probabilities of chains that agree, but for the first, whose first class is more probable."""
    logits = normal(chains, draws, rows, classes) + 2 * normal(rows, classes)
    logits[0, ..., 0] += shift
    return torch.softmax(logits, -1)


def test_estimates_are_those_of_arviz_row_by_row():
    draws = probabilities()
    found = diagnostics_of_predictions(draws)
    assert found.estimates.sizes == {"row": 5, "class": 3}
    for row in range(5):
        for place in range(3):
            values = {"x": draws[:, :, row, place].double().numpy()}
            expected = {
                "r_hat": az.rhat(values),
                "ess_bulk": az.ess(values),
                "ess_tail": az.ess(values, method="tail", prob=(0.05, 0.95)),
                "mcse": az.mcse(values),
                "mean": {"x": values["x"].mean()},
            }
            assert set(expected) == set(found.estimates)
            for name, value in expected.items():
                number = float(found.estimates[name][row, place])
                assert number == pytest.approx(float(value["x"]), rel=1e-9)


def test_agreement_by_hand():
    draws = probabilities(chains=3, rows=40, shift=2.0)
    found = diagnostics_of_predictions(draws)
    means = draws.double().mean(1).tolist()
    labels = [[row.index(max(row)) for row in chain] for chain in means]
    for one in range(3):
        for other in range(3):
            same = sum(a == b for a, b in zip(labels[one], labels[other], strict=True)) / 40
            distance = sum(
                abs(p - q) / 2
                for a, b in zip(means[one], means[other], strict=True)
                for p, q in zip(a, b, strict=True)
            )
            assert float(found.agreement["label_agreement"][one, other]) == pytest.approx(same)
            variation = float(found.agreement["total_variation"][one, other])
            assert variation == pytest.approx(distance / 40, abs=1e-12)
    agree = [len({chain[row] for chain in labels}) == 1 for row in range(40)]
    assert found.agreement["labels_agree"].values.tolist() == agree
    assert 0 < sum(agree) < 40
    summary = found.summary
    assert summary["labels_agree"] == pytest.approx(sum(agree) / 40)
    assert summary["label_agreement"] == found.agreement["label_agreement"].values.min() < 1
    assert summary["total_variation"] == found.agreement["total_variation"].values.max() > 0.1


def test_the_worst_is_found_and_shown():
    draws = probabilities()
    draws[0, :, 3] = draws[0, :, 3].flip(-1)
    found = diagnostics_of_predictions(draws)
    lines = str(found).splitlines()
    assert lines[0] == "4 chains of 50 draws, 5 rows"
    r_hat = found.estimates["r_hat"].values
    assert found.summary["r_hat"] == r_hat.max() == r_hat[3].max() > 1.1
    assert lines[1] == f"largest r_hat: {r_hat.max():.4g} in row 3"
    for name, word in (("ess_bulk", "least"), ("ess_tail", "least"), ("mcse", "largest")):
        values = found.estimates[name].values
        worst = values.min() if word == "least" else values.max()
        assert found.summary[name] == worst
        row = np.argwhere(values == worst)[0, 0]
        assert f"{word} {name}: {worst:.4g} in row {row}" in lines
    assert found.summary["unknown"] == 0
    assert lines[-2].startswith("all chains agree on the class of ")
    assert "nested" not in str(found)


def test_superchains():
    draws = probabilities(chains=8, draws=6)
    draws[:4, :, 2] = draws[:4, :, 2].flip(-1)
    ids = [0, 0, 0, 0, 1, 1, 1, 1]
    found = diagnostics_of_predictions(draws, superchain_ids=ids)
    expected = own_nested_r_hat(draws.double().flatten(2).numpy(), ids).reshape(5, 3)
    np.testing.assert_allclose(found.estimates["nested_r_hat"], expected, rtol=1e-9)
    assert found.summary["nested_r_hat"] == pytest.approx(expected.max())
    assert f"largest nested_r_hat: {expected.max():.4g} in row 2" in str(found)
    with pytest.raises(ValueError, match="superchain_ids must give each of the 8 chains"):
        diagnostics_of_predictions(draws, superchain_ids=[0, 1])


@pytest.mark.parametrize("shape", [(), (2,)])
def test_numbers_have_no_labels_to_agree_on(shape):
    draws = normal(2, 40, 6, *shape)
    found = diagnostics_of_predictions(draws)
    assert found.agreement is None
    assert tuple(found.estimates.sizes) == ("row", "output")[: 1 + len(shape)]
    assert found.estimates["r_hat"].shape == (6, *shape)
    assert "agree" not in str(found)
    assert set(found.summary) == {"r_hat", "ess_bulk", "ess_tail", "mcse", "unknown"}


def test_what_is_not_known_is_said():
    draws = probabilities(rows=4)
    draws[:, :, 1] = torch.tensor([0.0, 1.0, 0.0])  # saturated in every draw
    draws[0, 0, 2] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diagnostics_of_predictions(draws)
        text = str(found)
    unknown = found.estimates["r_hat"].isnull().values
    assert unknown.all(1).tolist() == [False, True, True, False]
    assert not unknown[[0, 3]].any()
    assert found.summary["unknown"] == 0.5
    assert found.summary["r_hat"] == found.estimates["r_hat"].values[[0, 3]].max()
    assert "r_hat is not known of 50.0% of predictions" in text
    assert found.agreement is not None


@pytest.mark.parametrize("shape", [(1, 50), (2, 3)])
def test_one_chain_and_few_draws_are_no_error(shape):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diagnostics_of_predictions(probabilities(*shape))
        lines = str(found).splitlines()
    assert lines[1] == "largest r_hat: nan in no row"
    assert found.summary["unknown"] == 1.0
    assert found.estimates["ess_bulk"].isnull().all() == (shape[1] < 4)


@pytest.mark.parametrize("shape", [(2, 9), (2, 9, 3, 2, 2), (2, 0, 3, 2), (2, 9, 0, 2)])
def test_predictions_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"predictions must have shape \(chains, draws, rows\) or"):
        diagnostics_of_predictions(torch.zeros(shape))


def samples_of(draws):
    shapes = NET.parameter_shapes.items()
    return {name: normal(draws, *shape) for name, shape in shapes}


def test_draws_of_a_run_are_cut_into_chains():
    samples, x = samples_of(60), normal(4, 2)
    found = diagnose_predictions(NET, samples, x, 3, superchain_ids=[0, 1, 2])
    each = predictive_probabilities(NET, samples, x)
    expected = diagnostics_of_predictions(each.view(3, 20, 4, 3), superchain_ids=[0, 1, 2])
    assert found.estimates.identical(expected.estimates)
    assert found.agreement.identical(expected.agreement)
    assert (found.num_chains, found.num_draws) == (3, 20)


def test_nodes_that_trade_places_are_no_trouble():
    """The weights of two such chains disagree, and their predictions do not."""
    samples = samples_of(200)
    for name, values in samples.items():
        samples[name] = 0.3 * values + normal(*values.shape[1:])
    order = torch.tensor([2, 0, 1])
    later = slice(100, None)
    for name in ("layer1.weight", "layer1.bias"):
        samples[name][later] = samples[name][later][:, order]
    samples["layer2.weight"][later] = samples["layer2.weight"][later][:, :, order]
    found = diagnose_predictions(NET, samples, normal(5, 2), num_chains=2)
    assert found.summary["r_hat"] < 1.1
    weights = samples["layer1.weight"].view(2, 100, -1).double().numpy()
    assert max(float(az.rhat(weights[..., place])) for place in range(6)) > 1.5


@pytest.mark.parametrize(
    ("num_chains", "message"),
    [
        (7, "as many draws of each of the 7 chains, got 20 draws"),
        (0, "num_chains must be a whole number, 1 or more; got 0"),
        (True, "num_chains must be a whole number"),
    ],
)
def test_chains_that_cannot_be(num_chains, message):
    with pytest.raises(ValueError, match=message):
        diagnose_predictions(NET, samples_of(20), normal(4, 2), num_chains)


def test_mean_responses_are_diagnosed_as_numbers():
    model = BayesianMLP([2, 3, 1], likelihood="normal")
    samples = {name: normal(40, *shape) for name, shape in model.parameter_shapes.items()}
    found = diagnose_predictions(model, samples, normal(4, 2), num_chains=2)
    assert found.agreement is None
    assert found.estimates.sizes == {"row": 4}

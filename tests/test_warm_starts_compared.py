"""The comparison of fits prints a table, a row a variant."""

import sys

import numpy as np
import pytest
import torch

from benchmarks import warm_starts


@pytest.mark.slow  # a benchmark is run by hand
def test_smoke_run_prints_a_row_for_every_variant(tmp_path, monkeypatch, capsys):
    rows = np.random.default_rng(0).standard_normal((1_503, 6))
    np.savetxt(tmp_path / "airfoil.data", rows)
    command = ["warm_starts", "--data", str(tmp_path), "--seeds", "1", "2", "--smoke"]
    monkeypatch.setattr(sys, "argv", command)
    warm_starts.main()
    head, line, *table = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in table] == [
        f"| {variant.name}" for variant in warm_starts.VARIANTS
    ]
    assert head.count("|") == line.count("|") == table[0].count("|") == 6


def test_another_optimizer_takes_the_place_of_the_one_of_fits():
    variant = next(one for one in warm_starts.VARIANTS if one.name == "NAdam")
    parameter = torch.zeros(1, requires_grad=True)
    with warm_starts._optimizer(variant.optimizer):
        found = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.0)
    assert isinstance(found, torch.optim.NAdam)

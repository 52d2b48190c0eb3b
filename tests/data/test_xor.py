import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_fnbg.data.xor import noisy_xor, read_noisy_xor
from support.images import find_data


@settings(max_examples=20, deadline=None)
@given(quarter=st.integers(1, 40), test_quarter=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_corners_come_in_order_and_in_their_squares(quarter, test_quarter, seed):
    data = noisy_xor(4 * quarter, 4 * test_quarter, seed)
    for x, y, rows in (
        (data.x_train, data.y_train, quarter),
        (data.x_test, data.y_test, test_quarter),
    ):
        assert x.shape == (4 * rows, 2)
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        corner = (x > 0.5).long()
        assert torch.equal(2 * corner[:, 0] + corner[:, 1], torch.arange(4).repeat_interleave(rows))
        assert torch.equal(y, corner[:, 0] ^ corner[:, 1])


def test_coordinates_are_uniform_on_their_intervals():
    x = noisy_xor(40_000, 4).x_train.double()
    uniform = torch.where(x > 0.5, x - 0.55, x + 0.55)
    assert uniform.min() >= 0
    assert uniform.max() <= 1
    # Standard errors of the mean and the variance of 80,000 uniform numbers: 0.0010 and 0.00026.
    assert uniform.mean().item() == pytest.approx(1 / 2, abs=0.005)
    assert uniform.var().item() == pytest.approx(1 / 12, abs=0.0013)


def test_default_sizes_are_the_papers():
    data = noisy_xor()
    assert torch.bincount(data.y_train).tolist() == [2500, 2500]
    assert torch.bincount(data.y_test).tolist() == [600, 600]


def test_seed_decides_and_the_sets_differ():
    first, again, other = noisy_xor(400, 400), noisy_xor(400, 400), noisy_xor(400, 400, seed=1)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first.x_train, other.x_train)
    assert not torch.equal(first.x_test, other.x_test)
    assert not torch.equal(first.x_train, first.x_test)
    assert torch.equal(first.x_test, noisy_xor(8, 400).x_test)


def test_global_random_state_is_neither_read_nor_changed():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    first = noisy_xor(8, 8, seed=3)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002
    torch.rand(1)
    assert all(map(torch.equal, first, noisy_xor(8, 8, seed=3)))


@pytest.mark.parametrize("name", ["num_train", "num_test"])
@pytest.mark.parametrize("value", [0, -4, 6, 8.0, True, "8", None])
def test_refused_numbers_of_rows(name, value):
    message = f"{name} must be a positive multiple of 4, got {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        noisy_xor(**{name: value})


@pytest.mark.parametrize("seed", [-1, 1.5, None, False])
def test_refused_seeds(seed):
    message = f"seed must be a whole number, 0 or more; got {seed!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        noisy_xor(seed=seed)


# --- The paper's own files ---------------------------------------------------------------------

FILES = ("training/x.csv", "training/y.csv", "test/x.csv", "test/y.csv")


def write_files(folder, data):
    for part, x, y in (
        ("training", data.x_train, data.y_train),
        ("test", data.x_test, data.y_test),
    ):
        (folder / part).mkdir()
        np.savetxt(folder / part / "x.csv", x, delimiter=",", header="x1,x2", comments="")
        np.savetxt(folder / part / "y.csv", y, fmt="%d", header="y", comments="")


def test_files_read_as_they_were_written(tmp_path):
    data = noisy_xor(40, 20)
    write_files(tmp_path, data)
    for folder in (tmp_path, str(tmp_path)):
        again = read_noisy_xor(folder)
        assert [values.dtype for values in again] == [values.dtype for values in data]
        assert all(map(torch.equal, data, again))


def test_files_of_one_row_and_other_line_ends(tmp_path):
    write_files(tmp_path, noisy_xor(4, 4))
    (tmp_path / "test/x.csv").write_bytes(b"x1,x2\r\n-0.5,1e-1\r\n")
    (tmp_path / "test/y.csv").write_bytes(b"y\r\n1\r\n\r\n")
    data = read_noisy_xor(tmp_path)
    assert torch.equal(data.x_test, torch.tensor([[-0.5, 0.1]]))
    assert data.y_test.tolist() == [1]


def test_papers_files_follow_the_recipe_of_the_simulation():
    data = read_noisy_xor(find_data("noisy_xor") / "noisy_xor")
    simulated = noisy_xor()
    assert [values.shape for values in data] == [values.shape for values in simulated]
    for x, y, y_simulated in (
        (data.x_train, data.y_train, simulated.y_train),
        (data.x_test, data.y_test, simulated.y_test),
    ):
        assert torch.equal(y, y_simulated)
        corner = (x > 0.5).long()
        assert torch.equal(y, corner[:, 0] ^ corner[:, 1])
        uniform = torch.where(x > 0.5, x - 0.55, x + 0.55)
        assert uniform.min() >= 0
        assert uniform.max() <= 1


@pytest.mark.parametrize("file", FILES)
def test_missing_files_are_named(tmp_path, file):
    write_files(tmp_path, noisy_xor(4, 4))
    (tmp_path / file).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path} lacks {file}; expected")):
        read_noisy_xor(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("training/x.csv", "", "the first of 1 lines is ''"),
        ("training/x.csv", "x1,x2\n", "the first of 1 lines is 'x1,x2'"),
        ("training/x.csv", "0.1,0.2\n0.3,0.4\n", "the first of 2 lines is '0.1,0.2'"),
        ("test/x.csv", "x1,x2\n0.1,0.2,0.3\n", "there are 3 columns"),
        ("test/x.csv", "x1,x2\n0.1,0.2\n0.3\n", "columns"),
        ("test/x.csv", "x1,x2\n0.1,nan\n", "not all are finite"),
        ("test/y.csv", "y\nzero\n", "zero"),
        ("test/y.csv", "y\n0\n1 # one\n", "# one"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, file, content, message):
    write_files(tmp_path, noisy_xor(4, 4))
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_noisy_xor(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / file} must hold the line")


def test_file_that_is_no_text(tmp_path):
    write_files(tmp_path, noisy_xor(4, 4))
    (tmp_path / "test/x.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"x\.csv must hold the line 'x1,x2'"):
        read_noisy_xor(tmp_path)


def test_rows_and_labels_must_fit(tmp_path):
    write_files(tmp_path, noisy_xor(4, 4))
    (tmp_path / "training/y.csv").write_text("y\n0\n1\n")
    with pytest.raises(ValueError, match=r"training holds 4 rows in x.csv, but 2 in y.csv"):
        read_noisy_xor(tmp_path)
    (tmp_path / "training/y.csv").write_text("y\n0\n1\n0.5\n0\n")
    with pytest.raises(ValueError, match=r"y.csv must hold labels 0 and 1, got 0\.5"):
        read_noisy_xor(tmp_path)

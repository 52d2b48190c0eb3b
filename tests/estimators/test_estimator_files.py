import json
import os
import pickle
import stat
import tracemalloc
import zipfile

import numpy as np
import pandas as pd
import pytest

from pyro_fnbg.estimators import BNNClassifier, files
from pyro_fnbg.estimators.files import WORDS, read_archive, write_archive
from support.estimators import SHORT, rows, sides, thirds

X = rows()
LABELS = [
    np.array(["left", "right"]),
    np.array(["left", "right\0"], dtype=object),
    np.array([-3, 70], dtype=np.int16),
    np.array([1.0, 4.0], dtype=np.float32),
    np.array([False, True]),
]


@pytest.fixture
def saved(tmp_path):
    classifier = BNNClassifier(**SHORT).fit(X, sides(X))
    path = tmp_path / "a.bnn"
    classifier.save(path)
    return classifier, path


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: str(labels.dtype))
def test_classes_come_back_with_their_type(labels, tmp_path):
    classifier = BNNClassifier(**SHORT).fit(X, labels[sides(X)])
    classifier.save(tmp_path / "a")
    loaded = BNNClassifier.load(tmp_path / "a")
    assert loaded.classes_.dtype == classifier.classes_.dtype == labels.dtype
    assert loaded.classes_.tolist() == sorted(labels.tolist())
    assert np.array_equal(loaded.predict(X), classifier.predict(X))
    assert np.array_equal(loaded.predict_proba(X), classifier.predict_proba(X))


@pytest.mark.parametrize(
    "changes",
    [{}, {"batch_size": 10, "thin": 2}, {"hidden": ()}, {"hidden": [3, 2], "num_chains": 1}],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_file_gives_back_what_was_saved(changes, dtype, tmp_path):
    arguments = SHORT | {"prior_scale": np.float64(3), "random_state": np.int64(4)} | changes
    frame = pd.DataFrame(X.astype(dtype), columns=["first", "second"])
    classifier = BNNClassifier(**arguments).fit(frame, thirds(X))
    classifier.save(str(tmp_path / "a"))
    loaded = BNNClassifier.load(str(tmp_path / "a"))
    asked = classifier.get_params() | {"hidden": tuple(classifier.hidden)}
    assert loaded.get_params() == asked
    assert loaded.target_ == classifier.target_
    assert loaded.n_features_in_ == 2
    assert loaded.feature_names_in_.tolist() == ["first", "second"]
    assert loaded.feature_names_in_.dtype == object
    assert np.array_equal(loaded.predict_proba(frame), classifier.predict_proba(frame))
    for group in ("posterior", "sample_stats", "chain_stats", "observed_data"):
        assert loaded.idata_[group].identical(classifier.idata_[group])
    loaded.save(tmp_path / "b")
    again = BNNClassifier.load(tmp_path / "b")
    assert np.array_equal(again.predict_proba(frame), classifier.predict_proba(frame))


def test_a_loaded_estimator_goes_on_as_the_saved_one(tmp_path):
    classifier = BNNClassifier(**SHORT, warm_start=True).fit(X, sides(X)).fit(X, sides(X))
    classifier.save(tmp_path / "a")
    loaded = BNNClassifier.load(tmp_path / "a")
    one, other = (each.fit(X, sides(X)).predict_proba(X) for each in (classifier, loaded))
    assert np.array_equal(one, other)


def test_arguments_of_the_fit_and_not_later_ones_make_the_network(saved):
    classifier, path = saved
    classifier.set_params(hidden=(7,), activation="tanh").save(path)
    loaded = BNNClassifier.load(path)
    assert loaded.hidden == (7,)
    assert np.array_equal(loaded.predict_proba(X), classifier.predict_proba(X))


def test_an_argument_that_no_file_holds_is_refused(saved):
    classifier, path = saved
    before = path.read_bytes()
    classifier.random_state = np.random.RandomState(0)
    with pytest.raises(ValueError, match=r"random_state cannot be saved: .* got RandomState"):
        classifier.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("path", [None, 3])
def test_a_path_is_one(path, saved):
    with pytest.raises(TypeError, match="path must be the name of a file, got"):
        saved[0].save(path)
    with pytest.raises(TypeError, match="path must be the name of a file, got"):
        BNNClassifier.load(path)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)],
    ids=["pipe", "folder", "loop"],
)
def test_what_is_no_file_is_neither_replaced_nor_read(make, saved):
    classifier, path = saved
    other = path.with_name("other")
    make(other)
    before = os.lstat(other)
    for use in (classifier.save, BNNClassifier.load):
        with pytest.raises(ValueError, match="path must be the name of a file, got .*other"):
            use(other)
    assert os.lstat(other).st_ino == before.st_ino
    assert sorted(path.parent.iterdir()) == [path, other]


def test_a_path_is_not_empty(saved):
    for use in (saved[0].save, BNNClassifier.load):
        with pytest.raises(ValueError, match="path must be the name of a file, got ''"):
            use("")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        BNNClassifier.load(tmp_path / "nowhere")


# Other files


def make_pickle(path):
    path.write_bytes(pickle.dumps({"a": 1}))


def make_npz(path):
    with open(path, "wb") as file:
        np.savez(file, a=np.zeros(3))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("a text that is longer than the start of an archive " * 9),
        make_pickle,
        make_npz,
    ],
)
def test_another_file_is_refused_by_name(make, tmp_path):
    make(tmp_path / "other")
    with pytest.raises(ValueError, match="other is no file that an estimator of pyro_fnbg saved"):
        BNNClassifier.load(tmp_path / "other")


def make_packed(archive):
    archive.writestr("classes.npy", bytes(50_000_000), zipfile.ZIP_DEFLATED)


def make_overlapping(archive):
    archive.writestr("classes.npy", bytes(3_000_000))
    archive.filelist += [archive.filelist[-1]] * 200


def make_claim(archive):
    with archive.open("classes.npy", "w") as entry:
        header = {"descr": "<f8", "fortran_order": False, "shape": (40_000_000,)}
        np.lib.format.write_array_header_1_0(entry, header)
        entry.write(bytes(80))


def make_unnamed(archive):
    archive.writestr("classes.npy", bytes(8))
    archive.writestr("other", bytes(8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_packed, "it has compressed entries"),
        (make_overlapping, "its entries are larger than the file"),
        (make_claim, "cannot reshape"),
        (make_unnamed, "its entries are not those that it names"),
    ],
)
def test_a_file_takes_no_more_memory_than_its_size_allows(make, message, tmp_path):
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        words = {"format": 1, "estimator": "BNNClassifier", "arrays": ["classes"]}
        archive.writestr(WORDS, json.dumps(words))
        make(archive)
    tracemalloc.start()
    with pytest.raises(ValueError, match=f"a is truncated or damaged: {message}"):
        BNNClassifier.load(tmp_path / "a")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * (tmp_path / "a").stat().st_size + 2_000_000


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_by_name(share, saved):
    _, path = saved
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"a\.bnn is truncated or damaged"):
        BNNClassifier.load(path)


def test_a_changed_number_is_found(saved):
    _, path = saved
    content = bytearray(path.read_bytes())
    content[content.index(b"posterior/layer1.weight.npy") + 400] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.bnn is truncated or damaged: Bad CRC-32"):
        BNNClassifier.load(path)


def of_groups(change):
    return lambda words, arrays: change(words["groups"]["posterior"], arrays)


def replaced(change, name="posterior/layer1.weight"):
    return lambda words, arrays: arrays.update({name: change(arrays[name])})


def emptied(group, arrays):
    group["dims"] = {}


def with_dims(*dims):
    return of_groups(lambda group, arrays: group["dims"].update({"layer1.bias": dims}))


def without_draws(words, arrays):
    for name, dims in words["groups"]["posterior"]["dims"].items():
        if dims[0] == "chain":
            arrays[f"posterior/{name}"] = arrays[f"posterior/{name}"][:0]


def with_nan(value):
    return np.where(np.arange(value.size).reshape(value.shape) == 7, np.nan, value)


def rewrite(path, change):
    """Write an archive anew with other words and arrays."""
    words, arrays = read_archive(path)
    change(words, arrays)
    write_archive(path, words, arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words, arrays: words.update(format=2), "has format 2, .*newer.* up to 1"),
        (
            lambda words, arrays: words.update(estimator="BNNRegressor"),
            "holds a BNNRegressor, not a BNNClassifier: use BNNRegressor.load",
        ),
        (lambda words, arrays: words.pop("network"), "is damaged: KeyError"),
        (lambda words, arrays: words["arguments"].update(other=1), "is damaged: .*other"),
        (lambda words, arrays: arrays.pop("classes"), "is damaged: KeyError"),
        (lambda words, arrays: arrays.update(classes=np.arange(3)), "is damaged: .*2 classes"),
        (
            lambda words, arrays: words["network"].update(widths=[2, 4, 1]),
            "is damaged: .*no draws of shapes",
        ),
        (lambda words, arrays: words.pop("estimator"), "is damaged: it says None where the"),
        (lambda words, arrays: words.update(estimator=["a"]), r"is damaged: it says \['a'\]"),
        (
            lambda words, arrays: words.update(format=float("inf")),
            "is truncated or damaged: format",
        ),
        (lambda words, arrays: words.update(continued=float("inf")), "is damaged: .*continued"),
        (lambda words, arrays: words.update(continued=-5), "is damaged: .*continued .* got -5"),
        (lambda words, arrays: words.update(features=["a"]), r"is damaged: .*inputs \['a'\]"),
        (lambda words, arrays: words.update(features="ab"), "is damaged: .*features .* 'ab'"),
        (lambda words, arrays: words.update(features=[1, 2]), "is damaged: .*features .*1, 2"),
        (
            lambda words, arrays: words["network"].update(likelihood="normal"),
            "is damaged: .*likelihood is normal",
        ),
        (replaced(lambda classes: classes[::-1], "classes"), "is damaged: .*classes in order"),
        (replaced(lambda classes: classes * 0, "classes"), "is damaged: .*classes in order"),
        (
            lambda words, arrays: words["response"].update(classes=[1, 2]),
            r"is damaged: .*classes .* \[1, 2\]",
        ),
        (of_groups(emptied), "is damaged: .*draws must be float32.* got set"),
        (of_groups(lambda group, arrays: group.update(attributes={"target": 3})), ".*target .* 3"),
        (with_dims("draw", "chain", "a"), "is damaged: "),
        (with_dims("other", "draw", "a"), "is damaged: .*layer1.bias must have chains and draws"),
        (with_dims("chain"), "is damaged: "),
        (replaced(lambda weight: weight.astype(np.float32)), "is damaged: .*draws must be float32"),
        (replaced(lambda weight: weight.astype(int)), "is damaged: .*draws must be float32"),
        (replaced(lambda weight: weight.astype(">f8")), "is damaged: "),
        (replaced(with_nan), "is damaged: .*layer1.weight has draws that are not possible"),
        (without_draws, "is damaged: .*must have chains and draws, got .*'chain': 0"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(change, message, saved):
    _, path = saved
    rewrite(path, change)
    with pytest.raises(ValueError, match=rf"a\.bnn {message}"):
        BNNClassifier.load(path)


def test_nothing_is_unpickled(tmp_path):
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    with zipfile.ZipFile(tmp_path / "trap", "w") as archive:
        words = {"format": 1, "estimator": "BNNClassifier", "arrays": ["classes"]}
        archive.writestr(WORDS, json.dumps(words))
        with archive.open("classes.npy", "w") as entry:
            np.lib.format.write_array(entry, np.array([Trap()], dtype=object))
    with pytest.raises(ValueError, match="trap is truncated or damaged: .*OBJECT"):
        BNNClassifier.load(tmp_path / "trap")
    assert not ran.exists()


# Writing in one step


class Mine(BNNClassifier):
    def __init__(self, hidden=(2,), random_state=0):
        super().__init__(hidden, num_samples=20, warmup_steps=20, random_state=random_state)


def test_a_class_of_ones_own_reads_its_own_files(saved, tmp_path):
    mine = Mine().fit(X, sides(X))
    mine.save(tmp_path / "mine")
    loaded = Mine.load(tmp_path / "mine")
    assert type(loaded) is Mine
    assert loaded.num_samples == 20
    assert np.array_equal(loaded.predict_proba(X), mine.predict_proba(X))
    with pytest.raises(ValueError, match="holds a Mine, not a BNNClassifier: use Mine.load"):
        BNNClassifier.load(tmp_path / "mine")
    with pytest.raises(ValueError, match="holds a BNNClassifier, not a Mine: use BNNClassifier"):
        Mine.load(saved[1])


@pytest.mark.parametrize("broken", ["write_array", "replace"])
def test_a_crash_leaves_the_old_file_and_no_other(broken, saved, monkeypatch):
    classifier, path = saved
    before = path.read_bytes()

    def crash(*args, **options):
        raise KeyboardInterrupt

    where = files.os if broken == "replace" else files.np.lib.format
    monkeypatch.setattr(where, broken, crash)
    with pytest.raises(KeyboardInterrupt):
        classifier.save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_replaced_by_the_next(saved):
    classifier, path = saved
    other = BNNClassifier(**SHORT | {"random_state": 5}).fit(X, sides(X))
    other.save(path)
    loaded = BNNClassifier.load(path).predict_proba(X)
    assert np.array_equal(loaded, other.predict_proba(X))
    assert not np.array_equal(loaded, classifier.predict_proba(X))
    assert list(path.parent.iterdir()) == [path]


def parts_of(path):
    """Everything in a file but when it was written."""
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_its_target_is_written(is_there, saved):
    classifier, path = saved
    target, link = path.parent / "folder" / "target", path.with_name("link")
    target.parent.mkdir()
    if is_there:
        target.write_text("old")
    link.symlink_to("folder/target")
    classifier.save(link)
    assert link.is_symlink()
    assert parts_of(target) == parts_of(path)
    assert list(target.parent.iterdir()) == [target]
    assert np.array_equal(BNNClassifier.load(link).predict(X), classifier.predict(X))


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o400])
def test_the_permissions_of_an_older_file_stay(mode, saved):
    classifier, path = saved
    path.chmod(mode)
    classifier.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_name_can_be_as_long_as_the_system_allows(saved):
    classifier, path = saved
    name = "a" * os.pathconf(path.parent, "PC_NAME_MAX")
    classifier.save(path.with_name(name))
    assert path.with_name(name).read_bytes() == path.read_bytes()

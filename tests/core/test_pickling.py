"""What a worker that starts anew would not find is named before it starts."""

import functools
import sys
from types import ModuleType

import pytest
import torch

from pyro_fnbg.core.pickling import check_picklable


def in_session(name, kind="function"):
    """Define something as a cell of a notebook would."""
    text = f"class {name}:\n    def go(self): pass" if kind == "class" else f"def {name}(): pass"
    exec(text, vars(sys.modules["__main__"]))
    return vars(sys.modules["__main__"])[name]


@pytest.fixture
def session(monkeypatch):
    """A main module without a file."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


@pytest.mark.usefixtures("session")
def test_what_is_defined_in_a_session_is_refused_by_name():
    network, box = in_session("network"), in_session("Box", "class")()
    for value, name in (
        (network, "network"),
        (functools.partial(network), "network"),
        (box, "Box"),
        (box.go, "go"),
        ({"deep": [box]}, "Box"),
    ):
        with pytest.raises(RuntimeError, match=f"hook_fn needs '{name}', which is defined in an i"):
            check_picklable({"model": torch.randn, "hook_fn": value})


def test_what_a_file_defines_is_found_by_a_worker(session):
    network = in_session("network")
    session.__file__ = "<stdin>"
    with pytest.raises(RuntimeError, match="move it into a module"):
        check_picklable({"model": network})
    session.__file__ = __file__
    check_picklable({"model": network})


def test_what_cannot_be_pickled_is_refused_by_name():
    named = {"argument 0 of run": torch.ones(3), "argument 1 of run": (i for i in range(3))}
    with pytest.raises(RuntimeError, match="argument 1 of run must be.*got generator, which cann"):
        check_picklable(named)
    with pytest.raises(RuntimeError, match="argument 'scale' of run must be.*got function, which"):
        check_picklable({"argument 'scale' of run": lambda: 1})


def test_tensors_are_not_copied_to_find_out():
    class Unreadable(torch.Tensor):
        def __reduce_ex__(self, protocol):
            raise AssertionError("read")

    check_picklable({"y": [torch.ones(2).as_subclass(Unreadable)]})


def test_what_stands_behind_the_guard_alone_is_refused(session, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "def above(): pass\n"
        "if __name__ == '__main__':\n"
        "    def behind(): pass\n"
        "    def above(): pass\n"
    )
    session.__file__ = str(script)
    check_picklable({"model": in_session("above")})
    with pytest.raises(RuntimeError, match="model needs 'behind'.* under if __name__ == '__main"):
        check_picklable({"model": in_session("behind")})

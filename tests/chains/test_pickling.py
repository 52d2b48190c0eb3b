"""What a worker that starts anew would not find is named before it starts."""

import functools
import importlib.util
import sys
import threading
from types import ModuleType

import pytest
import torch

from pyro_fnbg.stock.spawning import arguments, check_main_guard, check_travels


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
            check_travels({"model": torch.randn, "hook_fn": value})


def test_what_a_file_defines_is_found_by_a_worker(session):
    network = in_session("network")
    session.__file__ = "<stdin>"
    with pytest.raises(RuntimeError, match="move it into a module"):
        check_travels({"model": network})
    session.__file__ = __file__
    check_travels({"model": network})


def test_what_cannot_be_pickled_is_refused_by_name():
    named = arguments((torch.ones(3), (i for i in range(3))), {"scale": lambda: 1})
    with pytest.raises(RuntimeError, match="argument 1 of run must be.*got generator, which cann"):
        check_travels(named)
    del named["argument 1 of run"]
    with pytest.raises(RuntimeError, match="argument 'scale' of run must be.*got function, which"):
        check_travels(named)


def test_tensors_are_not_copied_to_find_out():
    class Unreadable(torch.Tensor):
        def __reduce_ex__(self, protocol):
            raise AssertionError("read")

    check_travels({"y": [torch.ones(2).as_subclass(Unreadable)]})


SCRIPT = """
def start():
    check_main_guard()

with open(__file__):
    {line}
"""


@pytest.mark.parametrize("line", ["start()", "[start() for _ in range(1)]"])
def test_a_run_that_its_script_starts_without_a_guard_is_refused(tmp_path, monkeypatch, line):
    with pytest.raises(RuntimeError, match=r"script.py and would come to line 6.*__name__"):
        run_script(tmp_path, monkeypatch, line)


def test_a_run_under_a_guard_and_one_of_another_thread_are_not(tmp_path, monkeypatch):
    run_script(tmp_path, monkeypatch, "if __name__ == '__main__': start()")
    thread = threading.Thread(target=check_main_guard)
    thread.start()
    thread.join()


def run_script(tmp_path, monkeypatch, line):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(line=line))
    spec = importlib.util.spec_from_file_location("__main__", path)
    main = importlib.util.module_from_spec(spec)
    main.check_main_guard = check_main_guard
    monkeypatch.setitem(sys.modules, "__main__", main)
    spec.loader.exec_module(main)


def test_cells_of_a_notebook_are_no_script(session):
    exec(compile("check()", "<cell>", "exec"), vars(session) | {"check": check_main_guard})
    session.check = check_main_guard
    exec(compile("check()", "<cell>", "exec"), vars(session))


def test_what_stands_behind_the_guard_alone_is_refused(session, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "def above(): pass\n"
        "if __name__ == '__main__':\n"
        "    def behind(): pass\n"
        "    def above(): pass\n"
    )
    session.__file__ = str(script)
    check_travels({"model": in_session("above")})
    with pytest.raises(RuntimeError, match="model needs 'behind'.* under if __name__ == '__main"):
        check_travels({"model": in_session("behind")})

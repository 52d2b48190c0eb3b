"""The page of errors and warnings has every message of the source, and no other."""

import re
from pathlib import Path

import pytest

from support.messages import GAP, Message, messages_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "messages.md").read_text("utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (`+)(.*?)\2 \| (.+) \|$", flags=re.MULTILINE)
MESSAGES = messages_of(ROOT / "pyro_fnbg")


def test_every_message_of_the_source_is_on_the_page():
    listed = [(kind, text.strip()) for kind, _, text, _ in ROW.findall(PAGE)]
    raised = {(message.kind, message.text): message.place for message in MESSAGES}
    assert {key: place for key, place in raised.items() if key not in listed} == {}
    assert [key for key in listed if key not in raised] == []
    assert sorted(set(listed)) == sorted(listed)


def test_every_row_of_the_page_is_read():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(ROW.findall(PAGE)) > 100


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.place)
def test_a_message_has_words_of_its_own(message):
    words = message.text.replace(GAP, "")
    assert len(re.findall(r"[a-z]+", words)) >= 3, message


SOURCE = """
ADVICE = "look elsewhere"

def _damage(path):
    return f"{path} is damaged"

def check(name, value, *, allowed):
    if value is None:
        raise TypeError(f"{name} must not be None: {ADVICE}")
    found = f"got {value}"
    if value not in allowed:
        raise ValueError(
            f"{name} must be one of {sorted(allowed)}, "
            f"{found}"
        )
    found = None
    warnings.warn(f"{found}{name!r} is odd", UserWarning, stacklevel=2)
    try:
        read(value)
    except OSError as error:
        raise ValueError(f"{_damage(value)}: {error}") from error
        raise mended(error)
    except ValueError as error:
        error.add_note(f"in line {name}:\\n{found}")
        error.add_note(value)
    raise
"""


def test_texts_are_read_from_source(tmp_path):
    (tmp_path / "module.py").write_text(SOURCE)
    assert messages_of(tmp_path) == [
        Message("TypeError", "… must not be None: look elsewhere", "module.py:9"),
        Message("ValueError", "… must be one of …, got …", "module.py:12"),
        Message("UserWarning", "… is odd", "module.py:17"),
        Message("ValueError", "… is damaged: …", "module.py:21"),
        Message("note", "in line …: …", "module.py:24"),
    ]

"""The page of errors and warnings quotes messages that the package has."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "messages.md").read_text("utf-8")
QUOTED = re.findall(r"^\| `(.+?)` \| .+ \|$", PAGE, flags=re.MULTILINE)
SOURCE = "".join(path.read_text("utf-8") for path in sorted(ROOT.glob("pyro_fnbg/**/*.py")))
# A message that goes over several lines is one text
MESSAGES = re.sub(r'"\s*\n\s*f?"', "", SOURCE)


def test_every_row_of_the_page_is_read():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(set(QUOTED)) > 30


@pytest.mark.parametrize("words", QUOTED)
def test_a_message_of_the_page_is_one_of_the_package(words):
    assert words in MESSAGES

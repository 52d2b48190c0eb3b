"""Draws, decisions, reports and conversions are what they were, bit for bit.

A change that is meant to alter results records them anew, ``make frozen``, and says so; any other
change must leave ``frozen/hashes.json`` as it is.
"""

import json

import pytest

from frozen.cases import CASES
from frozen.parts import parts_of
from frozen.record import HASHES, differences, environment_differences

STORED = json.loads(HASHES.read_text("utf-8"))
ELSEWHERE = environment_differences(STORED["environment"])


def test_every_case_is_recorded_and_no_other():
    assert STORED["cases"].keys() == CASES.keys()


@pytest.mark.skipif(bool(ELSEWHERE), reason=f"hashes of another place: {'; '.join(ELSEWHERE)}")
@pytest.mark.parametrize("name", CASES)
def test_results_are_what_they_were(name):
    differ = list(differences(STORED["cases"][name], parts_of(CASES[name])))
    assert not differ, "\n".join(differ)

"""The page of benchmarks says what the JSON holds."""

import copy
from dataclasses import replace

import pytest

from benchmarks import bench_chains, bench_eeyore, bench_rows, bench_threads
from benchmarks.lengths import LENGTHS
from benchmarks.report import VALUES, number, page, records_of, seconds, speeds
from benchmarks.tables import HEADLINES, MAX_R_HAT, TABLES, Headline


def timing(table, case, who, turn, seconds, units=1, **values):
    labels = {"table": table, "case": case, "who": who, "turn": turn}
    extra = labels | {"units": units, "values": values}
    return {"extra_info": extra, "stats": {"median": seconds}}


RUN = {
    "machine_info": {
        "cpu": {"brand_raw": "Some processor", "count": 2},
        "system": "Linux",
        "machine": "x86_64",
        "python_version": "3.11.7",
    },
    "commit_info": {"id": "0123456789abcdef", "dirty": True},
    "datetime": "2026-01-02T03:04:05+00:00",
    "run": {
        "length": vars(LENGTHS["bench"]),
        "images": "random",
        "versions": {"torch": "2.14.1", "eeyore": "0.0.20"},
    },
    "benchmarks": [
        timing("eeyore", "a", "eeyore", 0, 0.2, units=20),
        timing("eeyore", "a", "fused engine", 0, 0.001, units=10, acceptance=0.25),
        timing("eeyore", "a", "eeyore", 1, 0.6, units=20),
        timing("eeyore", "a", "fused engine", 1, 0.002, units=10, acceptance=0.5),
        timing("eeyore", "a", "eeyore", 2, 0.4, units=20),
        timing("eeyore", "a", "fused engine", 2, 0.004, units=10, acceptance=0.3),
        timing("ess", "b", "FNBG", 0, 3.0, r_hat=1.01, median_ess=50.0),
        timing("ess", "b", "NUTS", 0, 3.0, r_hat=1.01, median_ess=75.0),
        timing("ess", "b", "FNBG", 1, 3.0, r_hat=1.02, median_ess=50.0),
        timing("ess", "b", "NUTS", 1, 3.0, r_hat=1.7, median_ess=5000.0),
    ],
}


def row(text, case, who):
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {case} | {who}")]
    return [cell.strip() for cell in found.strip("| ").split("|")]


def test_times_are_those_of_one_unit():
    assert records_of(RUN)[0].seconds == pytest.approx(0.01)


def test_median_and_range_over_turns():
    cells = row(page(RUN), "a", "fused engine")
    assert cells[2] == "200 µs (100 µs to 400 µs)"
    assert cells[3] == "30.0 % (25.0 % to 50.0 %)"


def test_ratios_pair_the_turns():
    # 10 / 0.1, 30 / 0.2 and 20 / 0.4; the ratio of the medians would be another, 20 / 0.2
    assert row(page(RUN), "a", "fused engine")[-1] == "100 (50.0 to 150)"
    shuffled = RUN | {"benchmarks": RUN["benchmarks"][::-1]}
    assert row(page(shuffled), "a", "fused engine")[-1] == "100 (50.0 to 150)"


def test_a_turn_without_its_base_is_not_compared():
    missing = RUN | {"benchmarks": RUN["benchmarks"][1:4]}
    assert row(page(missing), "a", "fused engine")[-1] == "150"


@pytest.mark.parametrize("r_hat", [MAX_R_HAT + 0.01, float("nan"), float("inf")])
def test_chains_that_disagree_are_marked_and_not_compared(r_hat):
    run = copy.deepcopy(RUN)
    run["benchmarks"][-1]["extra_info"]["values"]["r_hat"] = r_hat
    cells = row(page(run), "b", "NUTS")
    assert cells[1] == "NUTS (not converged)"
    assert cells[-1] == "1.50"
    assert row(page(run), "b", "FNBG")[1] == "FNBG"


def test_page_names_command_machine_versions_commit_and_date():
    text = page(RUN)
    for words in (
        "```sh\nmake bench\n```",
        "Some processor, 2 cores, Linux, x86_64",
        "Python 3.11.7, torch 2.14.1, eeyore 0.0.20",
        "commit 0123456789, with changes that were not committed",
        "2026-01-02",
        "random numbers of MNIST's shape",
    ):
        assert words in text
    assert "mean nothing" not in text


def test_data_and_a_mere_trial_are_named():
    run = RUN | {"run": RUN["run"] | {"images": "MNIST", "length": vars(LENGTHS["smoke"])}}
    text = page(run)
    assert "BENCH_LENGTH=smoke make bench DATA=FOLDER" in text
    assert "those of MNIST" in text
    assert "Its figures mean nothing" in text


def test_headlines_are_ratios_of_turns():
    """Of what was run; nothing is said of the rest."""
    headline = Headline("the engine, as eeyore", "eeyore", "a", "fused engine", "eeyore")
    records = records_of(RUN)
    assert speeds(headline, records) == ["100 (50.0 to 150)", "200 µs"]
    assert speeds(headline, records[1:4])[0] == "150"
    assert speeds(replace(headline, case="none"), records) == []
    by_value = replace(headline, table="ess", case="b", who="NUTS", base="FNBG")
    # 50 / 75 and 50 / 5000
    assert speeds(replace(by_value, value="median_ess"), records)[0] == "0.338 (0.0100 to 0.667)"


def test_headlines_are_of_what_the_benchmarks_run():
    run = {
        "eeyore": bench_eeyore.SIZES,
        "rows": bench_rows.CASES,
        "chains": bench_chains.SIZES,
        "threads": bench_threads.SIZES,
    }
    own = {
        "eeyore": {who for _, who in bench_eeyore.pairs()},
        "rows": {bench_rows.EEYORE, *bench_rows.THREADS},
        "chains": set(bench_chains.OURS),
        "threads": set(bench_threads.NUMBERS),
    }
    for headline in HEADLINES:
        assert headline.case in run[headline.table]
        assert {headline.who, headline.base} <= own[headline.table]


def test_only_tables_with_timings_are_shown():
    text = page(RUN)
    assert [f"## {table.title}" in text for table in TABLES.values()] == [
        name in ("eeyore", "ess") for name in TABLES
    ]


def test_what_is_compared_has_a_column():
    assert {table.compared for table in TABLES.values() if table.compared} <= set(VALUES)


def test_numbers_have_three_digits_and_times_a_unit():
    assert list(map(number, (0.0, 0.01234, 1.0, 56.78, 1234.5, -2.0))) == [
        "0",
        "0.0123",
        "1.00",
        "56.8",
        "1,234",
        "-2.00",
    ]
    assert [seconds(value) for value in (1.5, 0.0123, 4.2e-6)] == ["1.50 s", "12.3 ms", "4.20 µs"]

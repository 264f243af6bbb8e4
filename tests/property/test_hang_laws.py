"""Laws of the hang verdict over simulated jobs, and what it is held against: truth, real dumps, the whole dump."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agents.decode.plain_pickle import loads
from agents.digest import DIGEST_BYTES
from agents.simulation.recorder import RecorderStyle, dump_table
from paceline.diagnose_command import digests_of_directory
from streams.detectors.hang import HangCase, judge
from tests.hang_baselines import BASELINES
from tests.hang_cases import FAULTS, PAIRS, Case, case, digest_of

REAL_DUMPS = Path(__file__).parents[3] / "shared" / "data" / "flight_recorder"
SAMPLE = [PAIRS[i] for i in range(0, len(PAIRS), 5)]
"""A fifth of the table with one seed each; the whole of it is `python -m tests.hang_table`."""


@pytest.fixture(scope="module")
def sample() -> list[Case]:
    return [case(fault, layout, 100 + i) for i, (fault, layout) in enumerate(SAMPLE)]


def test_culprits_are_named_and_nobody_else(sample: list[Case]) -> None:
    right = wrong = missed = 0
    for one in sample:
        named = set(judge(one.digests()).culprit_ranks)
        right += len(named & one.truth.culprits)
        wrong += len(named - one.truth.culprits - one.truth.acceptable)
        missed += len(one.truth.culprits - named)
    assert right >= 8
    assert (wrong, missed) == (0, 0)


def test_what_cannot_be_decided_names_nobody_and_what_goes_on_is_healthy(sample: list[Case]) -> None:
    for one in sample:
        verdict = judge(one.digests())
        if one.truth.verdict == "healthy":
            assert (verdict.verdict, verdict.culprit_ranks) == ("healthy", ())
        else:
            assert verdict.verdict in {"hang", "undecided"}
        if verdict.verdict == "undecided":
            assert verdict.cause == "insufficient"
            assert verdict.culprit_ranks == ()


def test_the_digest_of_16_kb_says_as_much_as_the_whole_dump(sample: list[Case]) -> None:
    for one in sample:
        small, whole = one.digests(), one.digests(None)
        assert judge(small) == judge(whole), (one.fault, one.layout)
        assert all(len(record.model_dump_json(exclude_none=True)) <= DIGEST_BYTES for record in small)


def test_neither_the_order_of_digests_nor_their_arrival_matters(sample: list[Case]) -> None:
    for one in sample:
        records = one.digests()
        expected = judge(records)
        shuffled = records[:]
        random.Random(one.seed).shuffle(shuffled)
        assert judge(shuffled) == expected
        kept = HangCase()
        for record in shuffled + records:
            kept.add(record)
        assert kept.verdict() == expected


@pytest.mark.parametrize(
    ("fault", "layout"), [("python stuck", "tp2 pp4 dp2 moe"), ("gpu broken", "tp4 dp4"), ("size differs", "tp4 dp4")]
)
def test_names_and_encodings_of_a_process_do_not_matter(fault: str, layout: str) -> None:
    one = case(fault, layout, 7)
    verdicts = []
    for style in (
        RecorderStyle(),
        RecorderStyle(encoding="json", version="2.10"),
        RecorderStyle(protocol=5, has_timing=True),
    ):
        dumps = {rank: _renamed(dump_table(run, one.groups, style), rank) for rank, run in one.run.items()}
        records = [digest_of(rank, _bytes(dump)) for rank, dump in dumps.items()]
        verdicts.append(judge(records))
    assert verdicts[0] == verdicts[1] == verdicts[2]


def _renamed(dump: dict[str, Any], rank: int) -> dict[str, Any]:
    """The dump of a process that gave its groups other names, in the same order."""
    order = sorted(dump["pg_config"], key=int)
    names = {name: str(3 * place + rank) for place, name in enumerate(order)}
    dump["pg_config"] = {names[name]: {**group, "name": names[name]} for name, group in dump["pg_config"].items()}
    for one in dump["entries"]:
        one["process_group"] = (names[one["process_group"][0]], one["process_group"][1])
    return dump


def _bytes(dump: dict[str, Any]) -> bytes:
    import pickle

    return pickle.dumps(dump, 2)


def test_a_rank_that_waits_is_never_named_when_more_dumps_get_lost() -> None:
    """Fewer dumps can cost a name, and give none to a rank that the whole set clears."""
    for layout, seed in (("tp2 pp4 dp2", 1), ("tp4 dp4", 2), ("tp2 cp2 pp2 dp2", 3)):
        one = case("python stuck", layout, seed)
        (culprit,) = one.truth.culprits
        records = one.digests()
        others = [record for record in records if record.rank != culprit]
        random.Random(seed).shuffle(others)
        for lost in range(0, len(others), 3):
            kept = [record for record in records if record not in others[:lost]]
            assert set(judge(kept).culprit_ranks) <= {culprit}


def test_the_simulated_recorder_shows_what_real_dumps_show() -> None:
    """Nearly empty culprits, no start times, drifting counters of messages, and dumps of very different length."""
    one = case("python stuck", "tp2 pp4 dp2 moe", 0)
    (culprit,) = one.truth.culprits
    lengths, counters = {}, {}
    for rank, run in one.run.items():
        dump = dump_table(run, one.groups, RecorderStyle(is_active_only=True))
        assert all(entry["state"] == "scheduled" for entry in dump["entries"])
        assert all(entry["time_discovered_started_ns"] is None for entry in dump["entries"])
        assert all(numbers["last_started_collective"] == -1 for numbers in dump["pg_status"].values())
        lengths[rank] = len(dump["entries"])
        counters[rank] = max((x.p2p_seq for x in run.issued), default=0)
    assert lengths[culprit] == 0
    assert max(counters.values()) - min(counters.values()) > 1_700
    broken = case("gpu broken", "tp2 pp4 dp2", 1)
    counts = [record.pending_total or 0 for record in broken.digests()]
    assert max(counts) >= 3 * min(counts)


def test_every_fault_is_in_the_table_with_at_least_25_pairs() -> None:
    assert {fault for fault, _ in PAIRS} == set(FAULTS)
    assert len(set(PAIRS)) == len(PAIRS) >= 25


def test_the_naive_rules_fail_where_they_are_known_to() -> None:
    wrong: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for fault, layout in (
        ("python stuck", "tp2 pp4 dp2"),
        ("gpu broken", "tp2 pp4 dp2 moe"),
        ("gpu broken", "tp8 pp2 dp4"),
    ):
        for seed in range(2):
            one = case(fault, layout, seed)
            for name, rule in BASELINES.items():
                named = rule(one.digests())
                wrong[name] += len(named - one.truth.culprits - one.truth.acceptable)
                missed[name] += len(one.truth.culprits - named)
    assert wrong["any lag"] > 0
    assert missed["fewest records"] + wrong["fewest records"] > 0
    assert missed["wait-for sinks"] + wrong["wait-for sinks"] > 0


@pytest.mark.parametrize(("name", "culprits"), [("gpu_error_1st", (12, 14)), ("lock_gil_2nd", (10, 15))])
def test_real_hangs_are_named_exactly(name: str, culprits: tuple[int, ...]) -> None:
    directory = REAL_DUMPS / name
    if not directory.is_dir():
        pytest.skip(f"reference data absent: {directory}")
    records, unreadable = digests_of_directory(directory)
    assert unreadable == {}
    verdict = judge(records)
    assert verdict.culprit_ranks == culprits
    assert set(verdict.waiting_ranks) == set(range(16)) - set(culprits)
    assert len(BASELINES["any lag"](records) - set(culprits)) >= 6
    for path in sorted(directory.glob("_dump_*"))[:3]:
        assert isinstance(loads(path.read_bytes()), dict)

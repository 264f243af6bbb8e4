"""Uncorrectable ECC: at once when watched, found at start when not."""

from __future__ import annotations

from typing import Any

from factories import SITE, gpu_frame

from streams.core.roster import Roster
from streams.detectors.ecc import UncorrectableEcc


def said(*ticks: dict[str, Any]) -> list[tuple[int, str, bool, Any]]:
    """(tick, severity, urgent, increase) of one GPU's findings."""
    rule = UncorrectableEcc(SITE)
    found: list[tuple[int, str, bool, Any]] = []
    for second, columns in enumerate(ticks):
        for finding in rule.on_frame(gpu_frame(second, gpus=1, **columns), Roster()):
            found.append((second, finding.severity, finding.urgent, finding.values["increase"]))
    return found


def volatile(*counts: int | None) -> list[dict[str, Any]]:
    return [{"ecc_dbe_volatile_count": [count]} for count in counts]


def test_an_increase_is_critical_and_urgent_at_its_frame() -> None:
    assert said(*volatile(0, 0, 2)) == [(2, "critical", True, 2)]


def test_the_first_increase_is_said_at_once_and_more_of_a_minute_together() -> None:
    assert said(*volatile(0, 1, 1, 3)) == [(1, "critical", True, 1)]
    counts = volatile(0, 1, 2, 4, *[4] * 60)
    assert said(*counts) == [(1, "critical", True, 1), (61, "critical", True, 3)]


def test_a_count_above_zero_at_first_sight_is_found_at_start() -> None:
    assert said(*volatile(3, 3)) == [(0, "warning", False, 0)]


def test_the_count_of_the_parts_life_is_no_news_until_it_grows() -> None:
    assert said({"ecc_dbe_aggregate_count": [7]}, {"ecc_dbe_aggregate_count": [8]}) == [(1, "critical", True, 1)]


def test_one_error_in_both_counts_is_one_finding() -> None:
    both = [{"ecc_dbe_volatile_count": [n], "ecc_dbe_aggregate_count": [n + 5]} for n in (0, 1)]
    assert said(*both) == [(1, "critical", True, 1)]


def test_an_unknown_count_is_not_zero() -> None:
    assert said(*volatile(None, None)) == []
    assert said(*volatile(None, 2)) == [(1, "warning", False, 0)]


def test_a_count_that_is_cleared_makes_a_baseline() -> None:
    counts = volatile(0, 1, 0, *[0] * 60, 1)
    assert said(*counts) == [(1, "critical", True, 1), (63, "critical", True, 1)]


def test_corrected_errors_are_not_its_business() -> None:
    assert said({"ecc_sbe_volatile_count": [0]}, {"ecc_sbe_volatile_count": [10**6]}) == []


def test_a_restarted_agent_finds_no_news_in_an_old_count() -> None:
    rule = UncorrectableEcc(SITE)
    frames = [
        gpu_frame(0, gpus=1, ecc_dbe_volatile_count=[2]),
        gpu_frame(1, gpus=1, session="s2", seq=0, ecc_dbe_volatile_count=[2]),
    ]
    assert [len(list(rule.on_frame(frame, Roster()))) for frame in frames] == [1, 0]

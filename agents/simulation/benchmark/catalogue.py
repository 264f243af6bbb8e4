"""The catalogue: which cases a suite has, and which of them are run.

Seeds 0 to 9 are for tuning, 10 to 19 held out. A case and its seed say all; nothing is drawn here. The whole `ci` suite
is every case with every seed; where time is short each case has one, and all of them have their turn.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from agents.simulation.benchmark.adversarial import adversarial_cases
from agents.simulation.benchmark.plain import plain_cases
from agents.simulation.benchmark.replicas import (
    barrier_cases,
    greyhound_cases,
    greyhound_detection_cases,
    greyhound_slow_cases,
    minder_cases,
    resihp_cases,
    soak_cases,
    what_if_cases,
)
from agents.simulation.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agents.simulation.benchmark.case import BenchmarkCase

__all__ = ["HELD_OUT_SEEDS", "SUITES", "TUNING_SEEDS", "cases"]

TUNING_SEEDS = tuple(range(10))
HELD_OUT_SEEDS = tuple(range(10, 20))
_LARGE = 256


def _ci(seeds: Sequence[int]) -> list[tuple[BenchmarkCase, int]]:
    return [(case, seed) for case in _ci_cases() for seed in seeds]


def _ci_cases() -> Iterator[BenchmarkCase]:
    return chain(plain_cases(), adversarial_cases())


def _ablation_cases() -> list[BenchmarkCase]:
    """Of `ci`, below 128 ranks, one case of each row, variant and shape: the one whose severity is next to 20 %."""
    chosen: dict[tuple[str, str, str], tuple[float, BenchmarkCase]] = {}
    for case in _ci_cases():
        scenario, variant, shape = case.case_id.split("/")
        severity = case.tags.get("severity")
        distance = abs(severity - 0.2) if isinstance(severity, float) else 0.0
        key = (scenario, re.sub(r"-?\d+pct", "", variant), shape)
        if case.ranks < 128 and (key not in chosen or distance < chosen[key][0]):
            chosen[key] = (distance, replace(case, suite="ablation"))
    return [case for _, case in chosen.values()]


def _ablation(seeds: Sequence[int]) -> list[tuple[BenchmarkCase, int]]:
    return [(case, seed) for case in _ablation_cases() for seed in seeds]


def _in_turn(
    cases_of: Iterable[BenchmarkCase], seeds: Sequence[int], large: tuple[int, int]
) -> list[tuple[BenchmarkCase, int]]:
    """Each case once: a row's cases of one shape share a seed, so that what varies among them varies alone."""
    numbers: dict[tuple[str, str], int] = {}
    pairs, seen = [], 0
    for case in cases_of:
        seen += case.ranks >= _LARGE
        if case.ranks >= _LARGE and seen % large[1] != large[0]:
            continue
        key = (case.scenario, case.case_id.rpartition("/")[2])
        pairs.append((case, seeds[numbers.setdefault(key, len(numbers)) % len(seeds)]))
    return pairs


_SUITES: dict[str, Callable[[Sequence[int]], list[tuple[BenchmarkCase, int]]]] = {
    "ci": _ci,
    "ablation": _ablation,
    "minder": minder_cases,
    "greyhound": greyhound_cases,
    "greyhound_slow": greyhound_slow_cases,
    "greyhound_detection": greyhound_detection_cases,
    "what_if": what_if_cases,
    "resihp": resihp_cases,
    "soak": soak_cases,
    "barrier": barrier_cases,
}
_TAKING_TURNS: dict[str, Callable[[], Iterable[BenchmarkCase]]] = {"ci": _ci_cases, "ablation": _ablation_cases}
SUITES = tuple(_SUITES)
"""ci: rows A and B. ablation: a part of them. minder: C1. greyhound, greyhound_slow: C3. greyhound_detection: C2.
what_if: C4. resihp: C8. soak: fault-free at scale. barrier: 2,048 ranks that wait for one."""


def cases(
    suite: str,
    seeds: Sequence[int] = TUNING_SEEDS,
    *,
    limit: int | None = None,
    largest_ranks: int | None = None,
    in_turn: bool = False,
    large: tuple[int, int] = (0, 1),
) -> tuple[tuple[BenchmarkCase, int], ...]:
    """(case, seed) pairs of a suite.

    Args:
        suite: one of `SUITES`.
        seeds: in `ci`, `ablation`, `greyhound`, `greyhound_slow`, `resihp`, `soak` and `barrier` each case is run with each of
            them; the other suites have a fixed number of cases, which take them in turn.
        limit: how many pairs at most, spread evenly over the suite, so that every row and every seed has its share.
        largest_ranks: leaves out cases of more ranks.
        in_turn: of `ci` and `ablation` each case with one of the seeds only, which take turns over rows and shapes.
        large: (part, parts): in turn, only this part of the cases of 256 ranks and more, which take most of the time.

    Raises:
        ScenarioError: no such suite, or no seed.
    """
    if suite not in _SUITES:
        raise ScenarioError(f"no suite {suite!r}; there are {', '.join(SUITES)}")
    if not seeds:
        raise ScenarioError(f"suite {suite}: it needs a seed at least")
    takes_turns = _TAKING_TURNS.get(suite) if in_turn else None
    pairs = _SUITES[suite](tuple(seeds)) if takes_turns is None else _in_turn(takes_turns(), seeds, large)
    if largest_ranks is not None:
        pairs = [(case, seed) for case, seed in pairs if case.ranks <= largest_ranks]
    if limit is not None and limit < len(pairs):
        pairs = [pairs[index * len(pairs) // limit] for index in range(max(0, limit))]
    return tuple(pairs)

"""The pure path: bytes through the engines in one process, without Kafka, against the decoding of the same bytes.

Every case runs in a process of its own that reads bytes made before, so that memory is the engine's. All variants of a
case take turns for some rounds, and the best round of each counts: what a busy machine adds is left out as far as it can
be. Processor time, not wall time. No late, repeated or lost records here.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import psutil
from report import Section, Table, count, figure, options, publish, ratio
from simulated_bytes import GPUS_PER_NODE, frames, step_timings

from schemas.codec import decode, message
from schemas.steps import StepTiming
from schemas.topics import topic_named
from streams.core.position import Position
from streams.core.roster import Roster
from streams.core.snapshot_codec import pack
from streams.core.step_join import StepJoin, StepJoinConfig
from streams.engines.jobs import JobsEngine
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schemas.base import Record
    from schemas.codec import Message
    from streams.core.step_join import ClosedStep

GPU_FRAMES = topic_named("gpu-frames").name
STEP_TIMINGS = topic_named("step-timings").name
STEP_CASES = {64: 300, 512: 60, 4096: 12, 16384: 6, 32768: 4}
"""Ranks: steps that are measured."""

ONE_SLOW = 16384
"""The size that is measured with a straggler too."""

_REFERENCE_RANKS = 4096

RUN_IN_STEPS = 5
LATENESS_NS = 2_000_000_000
"""Until it has passed the first step cannot close, since an earlier one may come. 10 s by default; shorter here so that
the run-in is. It has no part in the cost of a step that is complete and follows another."""

_CHILD = "--case"


class _Engine(Protocol):
    def on_record(self, record: Record, position: Position) -> list[Record]: ...


def main() -> None:
    """Measure all cases, or, as a child, one."""
    if len(sys.argv) > 2 and sys.argv[1] == _CHILD:
        print(json.dumps(_case(sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:6]))))
        return
    asked = options(__doc__.splitlines()[0])
    load_before = os.getloadavg()[0]
    shrink = 10 if asked.quick else 1
    rounds = 1 if asked.quick else 3
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name:
        folder = Path(name)
        load = frames(nodes=128, ticks=60 // shrink)
        figures = _run_child("frames", _write(folder / "frames", [], load.messages, load.sent_ns), rounds, 0)
        frame_rows = [_frame_row(figures)]
        step_rows, memory_rows = [], []
        engine_us: dict[int, float] = {}
        rules_us: dict[int, float] = {}
        for ranks, steps in STEP_CASES.items():
            for slow in (False, True) if ranks == ONE_SLOW else (False,):
                steps_made = RUN_IN_STEPS + max(3, steps // shrink)
                made = step_timings(ranks, steps_made, slow_rank=slow)
                wires = [message(record) for record in made.reference]
                path = _write(folder / f"{ranks}-{slow}", wires, made.messages, made.sent_ns)
                figures = _run_child("steps", path, rounds, RUN_IN_STEPS * ranks // GPUS_PER_NODE)
                label = f"{ranks:,}{' (one slow)' if slow else ''}"
                if not slow:
                    engine_us[ranks] = figures["cpu_s"]["engine"] / (steps_made - RUN_IN_STEPS) * 1e6
                    rules_us[ranks] = figures["cpu_s"]["rules"] / (steps_made - RUN_IN_STEPS) * 1e6
                step_rows.append(_step_row(label, figures))
                memory_rows.append(_memory_row(label, ranks, steps_made - RUN_IN_STEPS, figures))
    publish(_section(frame_rows, step_rows, _flat_rows(rules_us, engine_us), memory_rows), asked, load_before)


def _section(
    frame_rows: list[tuple[str, ...]],
    step_rows: list[tuple[str, ...]],
    flat_rows: list[tuple[str, ...]],
    memory_rows: list[tuple[str, ...]],
) -> Section:
    ratios = ("bytes to outputs / orjson", "bytes to outputs / decode", "engine alone / decode")
    return Section(
        "pure_path",
        "The engines, without Kafka",
        "Bytes of a simulated fleet through one engine in one process: `TelemetryEngine` for frames of eight GPUs, "
        "`JobsEngine` for step timings of eight ranks each, whole steps joined and judged by all rules. Ratios are of "
        "processor time, the best of three interleaved rounds.",
        (
            Table(
                "Frames of eight GPUs, 128 nodes:",
                ("frames", "bytes each", "frames/s per core from bytes", "from records", *ratios),
                frame_rows,
            ),
            Table(
                "Step timings of one job:",
                ("ranks", "bytes a message", "rank-steps/s per core from bytes", "from records", *ratios),
                step_rows,
            ),
            Table(
                "The diagnosis of joined steps (`on_whole_step`), and with the join of records; a step's fixed cost apart:",
                (
                    "ranks",
                    "diagnosis, rank-steps/s per core",
                    "us a rank-step",
                    "of that the step's fixed cost",
                    "without it / at 4,096 ranks",
                    "with the join, us a rank-step",
                    "of that fixed",
                    "without it / at 4,096 ranks",
                ),
                flat_rows,
            ),
            Table(
                "Closing a step, and memory:",
                (
                    "ranks",
                    "steps",
                    "engine, all of a step, ms",
                    "longest call, ms",
                    "RSS, MB",
                    "grown by, MB",
                    "state, bytes a rank",
                ),
                memory_rows,
            ),
        ),
        (
            (
                "A message of eight ranks costs its decoding and its joining; a closed step costs all rules over all ranks, in "
                "the one call that completes it (the longest call). A worker is busy for that long."
            ),
            (
                "RSS is of a process that holds the input bytes as well; what it grew by while the whole load passed is the "
                "engine, its open steps and what the allocator keeps. State is a packed snapshot, after the last step."
            ),
            (
                "The fixed cost of a step is that of calls of Python and numpy, which cost the same on arrays of any size: it is "
                "paid once a step, and is most of what a small job costs."
            ),
            "'One slow' has one GPU slowed by heat from a quarter of the run on: a straggler is found and stands.",
        ),
    )


def _flat_rows(rules_us: dict[int, float], engine_us: dict[int, float]) -> list[tuple[str, ...]]:
    """Cost of a rank by size, and what is left of it when the fixed cost of a step is taken off.

    Args:
        rules_us: of the diagnosis of a step, by ranks.
        engine_us: of that and the join.
    """
    rows = []
    for ranks in sorted(engine_us):
        cells: list[str] = []
        for of_step_us in (rules_us, engine_us):
            fixed_us = _fixed_us(of_step_us)
            bare = {size: (us - fixed_us) / size for size, us in of_step_us.items()}
            cells += [
                figure(of_step_us[ranks] / ranks),
                figure(fixed_us / ranks),
                ratio(bare[ranks] / bare[_REFERENCE_RANKS]),
            ]
        rows.append((f"{ranks:,}", count(ranks / rules_us[ranks] * 1e6), *cells))
    return rows


def _fixed_us(of_step_us: dict[int, float]) -> float:
    """Where the line through the smallest and the reference size meets no ranks."""
    few = min(of_step_us)
    slope = (of_step_us[_REFERENCE_RANKS] - of_step_us[few]) / (_REFERENCE_RANKS - few)
    return max(0.0, of_step_us[few] - few * slope)


def _frame_row(found: dict[str, Any]) -> tuple[str, ...]:
    cpu = found["cpu_s"]
    return (
        count(found["messages"]),
        count(found["bytes"]),
        count(found["messages"] / cpu["whole"]),
        count(found["messages"] / cpu["engine"]),
        *_ratios(cpu),
    )


def _step_row(label: str, found: dict[str, Any]) -> tuple[str, ...]:
    cpu = found["cpu_s"]
    rank_steps = found["messages"] * GPUS_PER_NODE
    return (
        label,
        count(found["bytes"]),
        count(rank_steps / cpu["whole"]),
        count(rank_steps / cpu["engine"]),
        *_ratios(cpu),
    )


def _ratios(cpu: dict[str, float]) -> tuple[str, ...]:
    return (
        ratio(cpu["whole"] / cpu["orjson"]),
        ratio(cpu["whole"] / cpu["decode"]),
        ratio(cpu["engine"] / cpu["decode"]),
    )


def _memory_row(label: str, ranks: int, steps: int, found: dict[str, Any]) -> tuple[str, ...]:
    return (
        label,
        str(steps),
        figure(found["cpu_s"]["engine"] / steps * 1e3),
        figure(found["longest_s"] * 1e3),
        figure(found["rss_after"] / 1e6),
        figure((found["rss_after"] - found["rss_before"]) / 1e6),
        figure(found["state_bytes"] / ranks),
    )


def _write(path: Path, reference: Sequence[Message], messages: Sequence[Message], sent_ns: Sequence[int]) -> Path:
    """A load as lines: how many reference records, these with their topics, then arrival in ms and payload."""
    with path.open("wb") as file:
        file.write(b"%d\n" % len(reference))
        for wire in reference:
            file.write(b"%b %b\n" % (wire.topic.encode(), wire.value))
        for wire, at_ns in zip(messages, sent_ns, strict=True):
            file.write(b"%d %b\n" % (at_ns // 1_000_000, wire.value))
    return path


def _run_child(case: str, path: Path, rounds: int, run_in: int) -> dict[str, Any]:
    arguments = [_CHILD, case, str(path), str(rounds), str(run_in)]
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _read(path: Path, topic: str) -> tuple[Roster, list[bytes], list[Position]]:
    """What `_write` wrote."""
    roster = Roster()
    values, places = [], []
    with path.open("rb") as file:
        for _ in range(int(file.readline())):
            name, payload = file.readline().split(b" ", 1)
            roster.take(decode(name.decode(), payload))
        for offset, line in enumerate(file):
            arrival_ms, payload = line.split(b" ", 1)
            values.append(payload.rstrip(b"\n"))
            places.append(Position(topic, 0, offset, int(arrival_ms)))
    return roster, values, places


def _case(case: str, path: Path, rounds: int, run_in: int) -> dict[str, Any]:
    """Measure one case.

    Args:
        case: `frames` or `steps`.
        path: the load.
        rounds: how often all variants take turns.
        run_in: messages that an engine is given before a clock starts.
    """
    topic = GPU_FRAMES if case == "frames" else STEP_TIMINGS
    roster, values, places = _read(path, topic)

    warm: TelemetryEngine | JobsEngine = (
        TelemetryEngine("bench", 0, roster)
        if case == "frames"
        else JobsEngine("bench", 0, roster, StepJoinConfig(lateness_ns=LATENESS_NS))
    )

    def engine() -> TelemetryEngine | JobsEngine:
        """One that has had its run-in; the roster is everybody's."""
        return copy.deepcopy(warm, {id(roster): roster})

    # Memory and the longest call first, while nothing of another variant is in memory.
    rss_before = psutil.Process().memory_info().rss
    for value, place in zip(values[:run_in], places[:run_in], strict=True):
        warm.on_record(decode(topic, value), place)
    first = engine()
    longest_s = _longest_call(first, topic, values[run_in:], places[run_in:])
    rss_after = psutil.Process().memory_info().rss
    state_bytes = sum(map(len, pack(first.snapshot()).chunks))
    del first
    timed = list(zip(values, places, strict=True))[run_in:]
    decoded = [(decode(topic, value), place) for value, place in timed]
    # What is held here for the benchmark alone is not to be walked by the collector during it.
    gc.collect()
    gc.freeze()

    def whole(fresh: _Engine) -> None:
        for value, place in timed:
            fresh.on_record(decode(topic, value), place)

    def alone(fresh: _Engine) -> None:
        for record, place in decoded:
            fresh.on_record(record, place)

    joined = _joined(case, roster, [decode(topic, value) for value in values])
    # What a step has found once it keeps: each round has steps of its own.
    to_judge = [[replace(step) for step in joined] for _ in range(rounds)]

    def rules(fresh: JobsEngine) -> None:
        for step in to_judge.pop():
            fresh.on_whole_step(step)

    def parse(_: _Engine) -> None:
        for value, _place in timed:
            orjson.loads(value)

    def validate(_: _Engine) -> None:
        for value, _place in timed:
            decode(topic, value)

    variants: dict[str, Callable[[Any], None]] = {
        "orjson": parse,
        "decode": validate,
        "engine": alone,
        "whole": whole,
        "rules": rules,
    }
    idle = TelemetryEngine("bench", 0, roster)
    return {
        "messages": len(timed),
        "bytes": sum(map(len, values)) / len(values),
        "cpu_s": _best_s(variants, engine, idle, rounds),
        "longest_s": longest_s,
        "rss_before": rss_before,
        "rss_after": rss_after,
        "state_bytes": state_bytes,
    }


def _best_s(
    variants: dict[str, Callable[[Any], None]], engine: Callable[[], _Engine], idle: _Engine, rounds: int
) -> dict[str, float]:
    """Processor seconds of the best round of each variant."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, run in variants.items():
            fresh = engine() if name in {"engine", "whole", "rules"} else idle
            gc.collect()
            begun = time.process_time()
            run(fresh)
            best[name] = min(best[name], time.process_time() - begun)
    return best


def _joined(case: str, roster: Roster, records: Sequence[Record]) -> list[ClosedStep]:
    """The steps after the run-in, joined."""
    if case != "steps":
        return []
    join = StepJoin()
    for record in records:
        assert isinstance(record, StepTiming)
        join.add(record)
    job = roster.job(*next(iter(roster.jobs)))
    return join.close(0, job.expected, job.members, final=True)[RUN_IN_STEPS:]


def _longest_call(engine: _Engine, topic: str, values: Sequence[bytes], places: Sequence[Position]) -> float:
    longest_s = 0.0
    for value, place in zip(values, places, strict=True):
        record = decode(topic, value)
        begun = time.process_time()
        engine.on_record(record, place)
        longest_s = max(longest_s, time.process_time() - begun)
    return longest_s


if __name__ == "__main__":
    main()

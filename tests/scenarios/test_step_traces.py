"""Operation traces from end to end: imported, archived, shuffled, replayed; who is slow is named and nobody else.

One trace is made here, so that this runs everywhere. Two are real (one with a worker slowed on purpose, one healthy with
sequences of varying length); they are read where they are and left out where they are absent.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from factories import SITE

from agents.importers.op_trace import op_trace_records
from schemas.archive import ArchiveWriter, read_archive
from schemas.codec import encode
from schemas.findings import Finding
from schemas.steps import StepTiming
from streams.replay import Problems, replay

if TYPE_CHECKING:
    from schemas.base import Record

REPOSITORY = Path(__file__).parents[2]
TRACES = REPOSITORY.parent / "shared" / "data" / "step_traces"
LATENESS_S = 10.0
REPLAY = """
import sys
from pathlib import Path
from schemas.archive import read_archive
from streams.replay import Problems, ndjson_line, replay
problems = Problems()
for record in replay(read_archive(Path(sys.argv[1])), "site-1", problems):
    if record.record == "finding":
        sys.stdout.buffer.write(ndjson_line(record))
sys.exit(1 if problems.counts["bad_lines"] or problems.counts["late"] else 0)
"""


def needs(name: str) -> None:
    if not (TRACES / f"trace-{name}.parquet").exists():
        pytest.skip(f"reference data absent: {TRACES / f'trace-{name}.parquet'}")


@cache
def real(name: str) -> tuple[tuple[int, Record], ...]:
    return tuple(op_trace_records(TRACES / f"trace-{name}.parquet", TRACES / f"meta-{name}.yaml"))


def write_trace(directory: Path, slow: dict[int, float], steps: int = 24) -> tuple[Path, Path]:
    """A trace of 4 data-parallel replicas of 2 stages, tensor groups of 2: ranks 0, 2, 4, 6 and 8, 10, 12, 14.

    Args:
        directory: where the files go.
        slow: factor of the compute time by rank.
        steps: how many; their numbers jump in the middle, as those of sampled traces do.
    """
    import pyarrow as pa
    import pyarrow.parquet
    import yaml

    rng = random.Random(7)
    rows = []
    for number in range(steps):
        step = number if number < steps // 2 else number + 400
        ends = {}
        for data_rank in range(4):
            for stage in (0, 1):
                rank = 8 * stage + 2 * data_rank
                now = 0.4 * stage
                for optype, seconds in (("forward-compute", 1.0), ("backward-compute", 2.0), ("optimizer", 0.05)):
                    duration = seconds * (1.15 if stage else 1.0) * slow.get(rank, 1.0) * rng.gauss(1, 0.002)
                    rows.append((data_rank, stage, rank, step, optype, now, duration))
                    now += duration
                ends[rank] = (data_rank, stage, now)
        latest = max(now for _, _, now in ends.values())
        for rank, (data_rank, stage, now) in ends.items():
            rows.append((data_rank, stage, rank, step, "grads-reduce-scatter", now, latest - now + 0.1))
            # A batched pair: the same wait, twice.
            rows += [(data_rank, stage, rank, step, f"forward-{way}", 0.1, 0.2) for way in ("send", "recv")]
    names = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration")
    table = pa.table({name: [row[column] for row in rows] for column, name in enumerate(names)})
    trace, layout = directory / "trace.parquet", directory / "meta.yaml"
    pa.parquet.write_table(table, trace)
    layout.write_text(yaml.safe_dump({"trial_name": "own", "dp_size": 4, "pp_size": 2, "tp_size": 2, "world_size": 16}))
    return trace, layout


def own(directory: Path, slow: dict[int, float]) -> tuple[tuple[int, Record], ...]:
    return tuple(op_trace_records(*write_trace(directory, slow)))


def stragglers(records: tuple[tuple[int, Record], ...], directory: Path) -> list[tuple[str, int | None]]:
    """(state, rank) of the straggler findings, through an archive."""
    path = directory / "trace.jsonl"
    with ArchiveWriter.open(path) as archive:
        for arrival_ns, record in records:
            archive.write(record, arrival_ns)
    problems = Problems()
    found = [
        (record.state, record.subject.rank)
        for record in replay(read_archive(path), SITE, problems)
        if isinstance(record, Finding) and record.kind == "straggler"
    ]
    assert problems.counts["bad_lines"] == problems.counts["late"] == 0
    return sorted(found, key=str)


def scaled(records: tuple[tuple[int, Record], ...], rank: int, factor: float) -> tuple[tuple[int, Record], ...]:
    """The same job with one group's compute time multiplied."""
    changed: list[tuple[int, Record]] = []
    for arrival_ns, record in records:
        if isinstance(record, StepTiming) and record.rank == (rank,):
            assert record.compute_us is not None
            assert record.compute_us[0] is not None
            slower = record.model_copy(update={"compute_us": (round(record.compute_us[0] * factor),)})
            changed.append((arrival_ns, slower))
        else:
            changed.append((arrival_ns, record))
    return tuple(changed)


def shuffled_lines(path: Path, seed: int) -> list[bytes]:
    """Lines of an archive in which none comes before one that is 10 s older, and one in twenty comes twice."""
    import orjson

    rng = random.Random(seed)
    lines = path.read_bytes().splitlines(keepends=True)
    arriving: list[tuple[float, int, bytes]] = []
    for line in lines:
        arrival_s = orjson.loads(line)["timestamp_ms"] / 1000
        for _ in range(1 + (rng.random() < 0.05)):
            arriving.append((arrival_s + rng.random() * LATENESS_S * 0.999, len(arriving), line))
    return [line for _, _, line in sorted(arriving)]


def assert_same_bytes_in_any_order(records: tuple[tuple[int, Record], ...], directory: Path) -> None:
    plain = directory / "plain.jsonl"
    with ArchiveWriter.open(plain) as archive:
        for arrival_ns, record in records:
            archive.write(record, arrival_ns)
    paths = [plain]
    for seed in (1, 2):
        path = directory / f"shuffled-{seed}.jsonl"
        path.write_bytes(b"".join(shuffled_lines(plain, seed)))
        assert path.read_bytes() != plain.read_bytes()
        paths.append(path)
    outputs = []
    for hash_seed, path in zip(("0", "1", "12345"), paths, strict=True):
        process = subprocess.run(
            [sys.executable, "-c", REPLAY, str(path)],
            capture_output=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=False,
            timeout=60,
        )
        assert process.returncode == 0, process.stderr.decode()
        outputs.append(process.stdout)
    assert b'"kind":"straggler"' in outputs[0]
    assert outputs[1] == outputs[0]
    assert outputs[2] == outputs[0]


# --- A trace of our own -------------------------------------------------------------------------------------------


def test_the_slowed_group_is_named_and_the_heavy_stage_is_not(tmp_path: Path) -> None:
    assert stragglers(own(tmp_path, {4: 1.2}), tmp_path) == [("open", 4)]


def test_two_slowed_groups_are_both_named(tmp_path: Path) -> None:
    assert stragglers(own(tmp_path, {4: 1.2, 10: 1.1}), tmp_path) == [("open", 10), ("open", 4)]


def test_of_a_healthy_trace_nobody_is_named(tmp_path: Path) -> None:
    assert stragglers(own(tmp_path, {}), tmp_path) == []


def test_an_operation_that_was_not_recorded_is_not_one_that_took_no_time(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    trace, layout = write_trace(tmp_path, {})
    whole = [record for _, record in op_trace_records(trace, layout) if isinstance(record, StepTiming)]
    table = pa.parquet.read_table(trace)
    lost = pa.compute.and_(
        pa.compute.equal(table["rank"], 4),
        pa.compute.is_in(table["optype"], pa.array(["forward-compute", "optimizer"])),
    )
    pa.parquet.write_table(table.filter(pa.compute.invert(lost)), trace)
    rest = [record for _, record in op_trace_records(trace, layout) if isinstance(record, StepTiming)]
    for before, after in zip(whole, rest, strict=True):
        assert before.compute_us is not None
        assert after.compute_us is not None
        # Of nothing recorded the stage's median stands for it, which the noise of this trace is near.
        assert after.compute_us[0] == pytest.approx(before.compute_us[0], rel=0.01)
        if after.rank != (4,):
            assert after.compute_us == before.compute_us


def test_a_batched_pair_is_one_wait(tmp_path: Path) -> None:
    timings = [record for _, record in own(tmp_path, {}) if isinstance(record, StepTiming)]
    pairs = {c.duration_us for timing in timings for c in timing.collectives if c.group == "pp"}
    assert pairs == {(200_000,)}


def test_a_shuffled_and_doubled_trace_gives_the_same_findings_byte_for_byte(tmp_path: Path) -> None:
    assert_same_bytes_in_any_order(own(tmp_path, {4: 1.2}), tmp_path)


# --- Real traces --------------------------------------------------------------------------------------------------


def test_of_the_injected_job_exactly_the_slowed_worker_is_named(tmp_path: Path) -> None:
    needs("AR")
    assert stragglers(real("AR"), tmp_path) == [("open", 0)]


def test_of_the_healthy_job_with_varying_lengths_nobody_is_named(tmp_path: Path) -> None:
    needs("SE")
    assert stragglers(real("SE"), tmp_path) == []


def test_the_injected_job_shuffled_and_doubled_gives_the_same_findings_byte_for_byte(tmp_path: Path) -> None:
    needs("AR")
    assert_same_bytes_in_any_order(real("AR"), tmp_path)


@pytest.mark.parametrize("factor", [1.1, 1.2, 1.5])
@pytest.mark.parametrize("position", [5, 10])
def test_a_healthy_worker_slowed_as_well_is_named_as_well(tmp_path: Path, position: int, factor: float) -> None:
    needs("AR")
    ranks = sorted({record.rank[0] for _, record in real("AR") if isinstance(record, StepTiming)})
    rank = ranks[position]
    assert stragglers(scaled(real("AR"), rank, factor), tmp_path) == sorted([("open", 0), ("open", rank)], key=str)


def test_a_worker_of_the_varying_job_made_half_again_as_slow_is_named(tmp_path: Path) -> None:
    needs("SE")
    ranks = sorted({record.rank[0] for _, record in real("SE") if isinstance(record, StepTiming)})
    assert stragglers(scaled(real("SE"), ranks[6], 1.5), tmp_path) == [("open", ranks[6])]


def test_the_importer_gives_the_same_records_twice(tmp_path: Path) -> None:
    files = write_trace(tmp_path, {4: 1.2})
    first, second = ([(at, encode(record)) for at, record in op_trace_records(*files)] for _ in range(2))
    assert first == second

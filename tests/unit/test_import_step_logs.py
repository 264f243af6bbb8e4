"""Trainer logs as archives: whose a time is, what timers give, event time, restarts, and what is left out."""

from __future__ import annotations

import io
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.importers.op_trace import EPOCH_NS, ImportFailedError
from agents.importers.step_logs import Report, step_log_records
from schemas.archive import ArchiveLine, ArchiveWriter, read_archive
from schemas.codec import decode_value
from schemas.findings import Finding
from schemas.fleet import Job, Layout, Model, RankPlacement
from schemas.results import StepResult
from schemas.steps import StepTiming
from streams.core.position import Position
from streams.core.roster import Roster
from streams.engines.jobs import JobsEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.base import Record

TRAINER_SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "trainer"


def iteration(step: int, ms: float | None, *, prefix: str = "", rest: str = "") -> str:
    time = f"elapsed time per iteration (ms): {ms:.1f} | " if ms is not None else ""
    return f"{prefix} iteration {step:8d}/   90000 | consumed samples: {64 * step} | {time}lm loss: 2.5E+00 | {rest}\n"


def timers_across_ranks(**timers: list[float]) -> str:
    lines = ["times across ranks (ms):\n"]
    for name, times in timers.items():
        lines.append(f"  {name.replace('_', '-')}:\n")
        lines += [f"     rank {rank:2d}: {ms:.2f}\n" for rank, ms in enumerate(times)]
    return "".join(lines)


class Folder:
    """Writes logs and imports them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = Report()

    def log(self, text: str, name: str = "train.log") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def records(self, *logs: Path, **options: Any) -> list[tuple[int, Any]]:
        self.report = Report()
        return list(step_log_records(logs, report=self.report, **options))

    def timings(self, *logs: Path, **options: Any) -> list[StepTiming]:
        return [record for _, record in self.records(*logs, **options) if isinstance(record, StepTiming)]

    def of(self, text: str, name: str = "train.log", **options: Any) -> list[StepTiming]:
        return self.timings(self.log(text, name), **options)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def job(**fields: Any) -> Job:
    return Job(**{"job_id": "llm", "effective_from_ns": 5, "world_size": 8, **fields})


def ns(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1e9)


# ---- whose a time is


def test_a_line_without_rank_gives_the_step_time_of_one_reporter(folder: Folder) -> None:
    (timing,) = folder.of(iteration(7, 430.0))
    assert (timing.node_id, timing.agent_session, timing.seq) == ("log:train", "import", 0)
    assert (timing.step, timing.rank, timing.step_us, timing.phase) == (7, (0,), (430_000,), "train")
    assert timing.own_us is timing.compute_us is timing.wait_us is None


def test_the_rank_of_a_line_goes_before_that_of_the_file(folder: Folder) -> None:
    (timing,) = folder.of(iteration(7, 430.0, prefix="[rank-7/8]"), "out_rank_3.log")
    assert timing.rank == (7,)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("out_rank_3.log", 3), ("rank-12.txt", 12), ("RANK5", 5), ("train.4.log", 4), ("job.err", 0), ("prank3.log", 0)],
)
def test_the_rank_is_read_from_the_file_name(folder: Folder, name: str, rank: int) -> None:
    (timing,) = folder.of(iteration(7, 430.0), name)
    assert timing.rank == (rank,)


def test_a_number_in_a_name_is_no_rank_of_a_job_that_has_no_such_rank(folder: Folder) -> None:
    assert folder.of(iteration(7, 430.0), "train.2026.log", job=job())[0].rank == (0,)


def test_files_without_a_rank_are_numbered_around_those_that_have_one(folder: Folder) -> None:
    logs = [folder.log(iteration(1, 10.0 + i), name) for i, name in enumerate(["a.log", "rank_0.log", "b.log"])]
    timings = folder.timings(*logs)
    assert {t.node_id: t.rank for t in timings} == {"log:rank_0": (0,), "log:a": (1,), "log:b": (2,)}


def test_equal_stems_make_unlike_nodes(folder: Folder) -> None:
    logs = [folder.log(iteration(1, 10.0), name) for name in ("n1/train.log", "n2/train.log", "n2/train.txt")]
    assert len({t.node_id for t in folder.timings(*logs)}) == 3


def test_ranks_that_share_a_log_are_rows_of_one_record(folder: Folder) -> None:
    text = "".join(
        iteration(step, 100.0 * (rank + 1) + step, prefix=f"[rank{rank}]:") for step in (1, 2) for rank in (0, 1, 2)
    )
    first, second = folder.of(text)
    assert (first.rank, first.step_us) == ((0, 1, 2), (101_000, 201_000, 301_000))
    assert (second.step, second.seq) == (2, 1)


def test_a_file_of_one_named_rank_owns_its_unnamed_lines(folder: Folder) -> None:
    timings = folder.of(iteration(1, 10.0, prefix="[rank5]:") + iteration(2, 10.0))
    assert [t.rank for t in timings] == [(5,), (5,)]


# ---- timers


def test_timers_across_ranks_belong_to_the_line_before_them(folder: Folder) -> None:
    block = timers_across_ranks(forward_compute=[100.0, 130.5], backward_compute=[200.0, 201.0], optimizer=[9.0, 9.5])
    first, second = folder.of(iteration(1, 430.0) + block + iteration(2, 431.0))
    assert first.rank == second.rank == (0, 1)
    assert first.forward_us == (100_000, 130_500)
    assert first.backward_us == (200_000, 201_000)
    assert first.compute_us == (300_000, 331_500)
    assert first.optimizer_us == (9_000, 9_500)
    assert second.forward_us is None


def test_a_time_without_rank_is_the_jobs_where_timers_name_ranks(folder: Folder) -> None:
    first, second = folder.of(iteration(1, 430.0) + timers_across_ranks(forward_compute=[1.0, 2.0]) + iteration(2, 9.0))
    assert first.step_us == (430_000, 430_000)
    assert second.step_us == (9_000, 9_000)


def test_a_reporter_that_names_itself_gives_no_time_to_others(folder: Folder) -> None:
    text = iteration(1, 430.0, prefix="[rank3]:") + timers_across_ranks(forward_compute=[1.0, 2.0])
    (timing,) = folder.of(text)
    assert (timing.rank, timing.step_us) == ((0, 1, 3), (None, None, 430_000))
    assert timing.forward_us == (1_000, 2_000, None)


def test_loading_is_taken_out_of_the_forward_time_that_encloses_it(folder: Folder) -> None:
    block = timers_across_ranks(
        forward_compute=[100.0, 100.0], backward_compute=[200.0] * 2, batch_generator=[5.0, 60.0]
    )
    (timing,) = folder.of(iteration(1, 430.0) + block)
    assert timing.data_us == (5_000, 60_000)
    assert timing.forward_us == (95_000, 40_000)
    assert timing.compute_us == (295_000, 240_000)


def test_waits_are_summed_without_counting_parts_of_the_gradient_sync_twice(folder: Folder) -> None:
    names = {"forward_recv": [3.0], "backward_send_forward_recv": [4.0], "grads_reduce_scatter": [50.0]}
    (with_parts,) = folder.of(iteration(1, 430.0) + timers_across_ranks(**names))
    (enclosed,) = folder.of(iteration(1, 430.0) + timers_across_ranks(all_grads_sync=[60.0], **names))
    assert with_parts.wait_us == (57_000,)
    assert enclosed.wait_us == (67_000,)


def test_a_timer_line_without_rank_is_the_reporters(folder: Folder) -> None:
    line = "time (ms) | forward-compute: 53.79 | backward-compute: 138.84 | optimizer: 41.02\n"
    (timing,) = folder.of(iteration(200, 430.0) + line, "rank_6.log")
    assert (timing.rank, timing.compute_us, timing.optimizer_us) == ((6,), (192_630,), (41_020,))


def test_timers_keep_a_step_without_a_time(folder: Folder) -> None:
    (timing,) = folder.of(iteration(1, None) + timers_across_ranks(forward_compute=[1.0, 2.0]))
    assert (timing.step_us, timing.forward_us) == ((None, None), (1_000, 2_000))


def test_timers_before_any_step_and_second_blocks_are_counted_and_left_out(folder: Folder) -> None:
    block = timers_across_ranks(forward_compute=[1.0, 2.0])
    (timing,) = folder.of(block + iteration(1, 430.0) + block + timers_across_ranks(forward_compute=[8.0, 9.0]))
    assert timing.forward_us == (1_000, 2_000)
    assert folder.report.loose_timers == 4


def test_extremes_name_two_ranks_and_invent_none(folder: Folder) -> None:
    block = (
        "(min, max) time across ranks (ms):\n    forward-compute ................................: (3786.54, 3957.31)\n"
    )
    report = "MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 |\n"
    (timing,) = folder.of(iteration(1, 430.0) + block + report)
    assert (timing.rank, timing.forward_us) == ((0,), None)
    assert folder.report.extremes == 1


# ---- steps without a printed time


def titan(step: int, tps: str, time: str = "") -> str:
    return f"[rank0]:[titan] {time} - root - INFO - step:  {step}  loss:  7.62585  memory: 66.91GiB(37.51%)  tps: {tps}  mfu: 13.99%\n"


def test_missing_times_come_from_successive_wall_times(folder: Folder) -> None:
    text = titan(1, "900", "2026-03-01 10:00:00,000") + titan(2, "900", "2026-03-01 10:00:01,500")
    (timing,) = folder.of(text + titan(12, "900", "2026-03-01 10:00:11,500"))[:1]
    assert (timing.step, timing.step_us, timing.rank) == (2, (1_500_000,), (0,))
    assert folder.timings(folder.path / "train.log")[1].step_us == (1_000_000,)
    assert (folder.report.derived, folder.report.without_time, folder.report.steps) == (2, 1, 2)


def test_steps_within_one_tick_of_a_coarse_clock_share_the_next_tick(folder: Folder) -> None:
    times = ["10:00:01", "10:00:01", "10:00:02"]
    timings = folder.of("".join(titan(i, "900", f"2026-03-01 {time}") for i, time in enumerate(times)))
    assert [(t.step, t.step_us) for t in timings] == [(2, (500_000,))]


def test_clocks_without_a_date_pass_midnight(folder: Folder) -> None:
    timings = folder.of(titan(1, "900", "23:59:59") + titan(2, "900", "00:00:01") + titan(3, "900", "00:00:04"))
    assert [t.step_us for t in timings] == [(2_000_000,), (3_000_000,)]
    assert timings[0].event_time_ns == EPOCH_NS + 86_401 * 10**9


def test_a_token_rate_gives_the_time_where_the_job_says_its_tokens(folder: Folder) -> None:
    (timing,) = folder.of(titan(4, "10,000"), job=job(tokens_per_step=160_000))
    assert timing.step_us == (2_000_000,)


def test_a_log_without_any_time_is_an_error_that_counts_the_steps(folder: Folder) -> None:
    with pytest.raises(ImportFailedError, match=r"train\.log: no step with a time \(2 steps without one\)"):
        folder.of(titan(4, "10,000") + titan(5, "10,000"))


def test_smoothed_rates_of_bars_are_no_step_times(folder: Folder) -> None:
    bars = "".join(f"  8%|##   | {n}/24128 [1:52:09<20:27:23,  3.33s/it]\n" for n in (100, 101, 3))
    (timing,) = folder.of(bars + iteration(200, 5.0))
    assert timing.step == 200
    assert (folder.report.without_time, folder.report.restarts) == (3, 0)


# ---- time


def test_printed_times_take_the_given_zone(folder: Folder) -> None:
    line = iteration(1, 1000.0, prefix="[2026-03-01 10:00:00]")
    assert folder.of(line)[0].event_time_ns == ns("2026-03-01T10:00:00+00:00")
    assert folder.of(line, zone=ZoneInfo("Asia/Tokyo"))[0].event_time_ns == ns("2026-03-01T10:00:00+09:00")


@pytest.mark.parametrize(
    "prefix", ["[20260301 10:00:00]", "03/01/2026 10:00:00", "2026-03-01T12:00:00+02:00", "2026-03-01 10:00:00,000"]
)
def test_times_are_read_in_every_form_that_trainers_print(folder: Folder, prefix: str) -> None:
    assert folder.of(iteration(1, 1000.0, prefix=prefix))[0].event_time_ns == ns("2026-03-01T10:00:00+00:00")


@pytest.mark.parametrize(
    "prefix", ["[2026-02-30 10:00:00]", "[0000-01-01 00:00:00]", "[9999-12-31 23:59:59]", "[1900-01-01 00:00:00]"]
)
def test_times_that_do_not_exist_are_as_none(folder: Folder, prefix: str) -> None:
    assert folder.of(iteration(1, 1000.0, prefix=prefix))[0].event_time_ns == EPOCH_NS + 10**9


def test_without_wall_time_steps_follow_each_other(folder: Folder) -> None:
    timings = folder.of(iteration(10, 100.0) + iteration(20, 200.0))
    assert [t.event_time_ns - EPOCH_NS for t in timings] == [100_000_000, 2_100_000_000]
    assert folder.of(iteration(10, 100.0), start_ns=7 * 10**18)[0].event_time_ns == 7 * 10**18 + 100_000_000


def test_a_log_without_wall_time_begins_with_the_logs_that_have_one(folder: Folder) -> None:
    dated = folder.log(iteration(1, 1000.0, prefix="[2026-03-01 10:00:01]"), "rank_0.log")
    bare = folder.log(iteration(1, 1200.0), "rank_1.log")
    assert [t.event_time_ns - ns("2026-03-01T10:00:00+00:00") for t in folder.timings(dated, bare)] == [
        10**9,
        12 * 10**8,
    ]


# ---- the job


def test_the_job_comes_first_and_holds_from_the_first_steps_begin(folder: Folder) -> None:
    records = folder.records(folder.log(iteration(1, 1000.0, prefix="[2026-03-01 10:00:01]")))
    arrival_ns, first = records[0]
    assert arrival_ns == first.effective_from_ns == ns("2026-03-01T10:00:00+00:00")
    assert (first.job_id, first.world_size, first.reporting_ranks) == ("train", 1, None)


def test_only_the_ranks_of_the_logs_are_expected_to_report(folder: Folder) -> None:
    log = folder.log(iteration(1, 1000.0, prefix="[rank-7/8]"))
    assert [r.reporting_ranks for _, r in folder.records(log) if isinstance(r, Job)] == [1]
    given = job(world_size=64, model=Model(parameters=7e9), layout=Layout(tensor=8, data=8), version=3)
    merged = folder.records(log, job=given)[0][1]
    assert (merged.job_id, merged.world_size, merged.reporting_ranks, merged.version) == ("llm", 64, 1, 3)
    assert merged.model == given.model


def test_a_rank_outside_the_job_is_an_error(folder: Folder) -> None:
    with pytest.raises(ImportFailedError, match="rank 9 reports, but the job has ranks 0 to 7"):
        folder.of(iteration(1, 1000.0, prefix="[rank9]:"), job=job())


def test_tokens_of_a_step_follow_from_rate_and_time(folder: Folder) -> None:
    text = "".join(
        iteration(i, ms, rest=f"tokens/sec/gpu: {tps} |")
        for i, (ms, tps) in enumerate([(2000, 1024.0), (1000, 2048.0)])
    )
    log = folder.log(text)
    assert folder.records(log, job=job())[0][1].tokens_per_step == 2048 * 8
    assert folder.records(log, job=job(tokens_per_step=5))[0][1].tokens_per_step == 5
    assert folder.records(log)[0][1].tokens_per_step is None


def test_tokens_that_vary_are_no_tokens_per_step(folder: Folder) -> None:
    text = "".join(iteration(i, 1000, rest=f"tokens/sec/gpu: {tps} |") for i, tps in enumerate([1024.0, 2048.0]))
    assert folder.records(folder.log(text), job=job())[0][1].tokens_per_step is None


def test_a_step_number_that_falls_begins_an_epoch_with_its_own_job(folder: Folder) -> None:
    given = RankPlacement(job_id="llm", effective_from_ns=0, node_id="n1", rank=(0,), gpu_uuid=("GPU-a",), epoch=2)
    log = folder.log("".join(iteration(step, 10.0) for step in (100, 101, 102, 100, 101)))
    records = [record for _, record in folder.records(log, job=job(epoch=2), placements=[given])]
    kinds = [(record.record, record.epoch) for record in records]
    assert kinds[:2] == [("job", 2), ("rank_placement", 2)]
    timed = [epoch for kind, epoch in kinds if kind == "step_timing"]
    assert timed == [2, 2, 2, 3, 3]
    assert kinds.index(("job", 3)) < kinds.index(("rank_placement", 3)) < kinds.index(("step_timing", 3))
    assert folder.report.restarts == 1


def test_unnamed_ranks_that_overtake_each_other_by_a_step_are_no_restart(folder: Folder) -> None:
    timings = folder.of("".join(iteration(step, 10.0) for step in (1, 1, 2, 1, 2, 3, 2, 3)))
    assert [(t.epoch, t.step) for t in timings] == [(0, 1), (0, 2), (0, 3)]
    assert (folder.report.restarts, folder.report.repeats) == (0, 5)


def test_repeated_lines_are_one_step(folder: Folder) -> None:
    assert len(folder.of(iteration(1, 10.0) * 3)) == 1
    assert folder.report.repeats == 2


def test_more_ranks_than_a_message_holds_are_several_records(folder: Folder) -> None:
    block = timers_across_ranks(forward_compute=[100.0] * 5000)
    timings = folder.of(iteration(1, 430.0) + block)
    assert [len(t.rank) for t in timings] == [4096, 904]
    assert [t.seq for t in timings] == [0, 1]


# ---- bad input


def test_a_log_of_no_trainer_is_counted_beside_one_that_is(folder: Folder) -> None:
    other, log = folder.log("hello\nworld\n", "rank_0.log"), folder.log(iteration(1, 10.0), "rank_1.log")
    assert [t.rank for t in folder.timings(other, log)] == [(1,)]
    assert (folder.report.files, folder.report.foreign) == (2, 1)
    with pytest.raises(ImportFailedError, match="no step with a time"):
        folder.timings(other)


def test_files_that_cannot_be_read_and_no_file_are_errors(folder: Folder) -> None:
    with pytest.raises(ImportFailedError, match="absent"):
        folder.timings(folder.path / "absent.log")
    with pytest.raises(ImportFailedError):
        folder.timings(folder.path)
    with pytest.raises(ImportFailedError, match="no log given"):
        folder.timings()
    log = folder.log(iteration(1, 10.0))
    with pytest.raises(ImportFailedError, match="given twice"):
        folder.timings(log, log)


def test_a_file_name_that_is_not_utf8_names_a_node_all_the_same(folder: Folder) -> None:
    path = Path(os.fsdecode(os.fsencode(folder.path) + b"/tr\xff.log"))
    try:
        path.write_text(iteration(1, 10.0))
    except OSError:
        pytest.skip("other: this file system takes UTF-8 names only")
    assert folder.timings(path)[0].node_id.startswith("log:tr")


def test_malformed_lines_are_counted(folder: Folder) -> None:
    folder.of(iteration(1, 10.0) + " iteration x/ 90000 | elapsed time per iteration (ms): 5.0 |\n")
    assert folder.report.malformed == 1


@pytest.mark.parametrize("ms", ["0.0", "1e30", "nan", "-5.0", "-1e308", "1e308"])
def test_what_is_no_duration_is_no_time(folder: Folder, ms: str) -> None:
    text = iteration(1, 10.0) + f" iteration 2/ 9 | elapsed time per iteration (ms): {ms} | lm loss: 1.0 |\n"
    assert [t.step for t in folder.of(text)] == [1]
    assert folder.report.without_time == 1


LINES = st.lists(
    st.one_of(
        st.builds(
            iteration,
            st.integers(0, 10**18),
            st.one_of(st.none(), st.floats(0, 1e18, allow_nan=False)),
            prefix=st.sampled_from(
                ["", "[rank3]:", "23:59:59", "00:00:01", "[2026-03-01 10:00:00]", "[9999-12-31 23:59:59]"]
            ),
            rest=st.sampled_from(["", "tokens/sec/gpu: 1e300 |", "tokens/sec/gpu: 12.5K |"]),
        ),
        st.sampled_from(
            [timers_across_ranks(forward_compute=[1.0, 2.0], batch_generator=[3.0, 0.0]), "time (ms) | step: 4\n"]
        ),
        st.text(max_size=40),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(LINES, min_size=1, max_size=3), described=st.booleans())
def test_any_text_gives_ordered_numbered_records_or_one_error(
    tmp_path: Path, texts: list[list[str]], described: bool
) -> None:
    folder = Folder(tmp_path)
    logs = [folder.log("".join(lines), f"log{i}.txt") for i, lines in enumerate(texts)]
    try:
        records = folder.records(*logs, job=job(tokens_per_step=1000) if described else None)
    except ImportFailedError:
        return
    arrivals = [at_ns for at_ns, _ in records]
    assert arrivals == sorted(arrivals)
    assert isinstance(records[0][1], Job)
    timings = [record for _, record in records if isinstance(record, StepTiming)]
    for log in logs:
        of_log = [t.seq for t in timings if t.node_id == f"log:{log.stem}"]
        assert of_log == list(range(len(of_log)))
    assert len({(t.node_id, t.epoch, t.step) for t in timings}) == len(timings) == folder.report.steps


# ---- the whole way


def archived(folder: Folder, log: Path, **options: Any) -> Iterator[tuple[ArchiveLine, Record]]:
    """Records as a reader of the archive gets them."""
    path = folder.path / "out.jsonl"
    with ArchiveWriter.open(path) as writer:
        for at_ns, record in step_log_records([log], **options):
            writer.write(record, at_ns)
    for line in read_archive(path):
        assert isinstance(line, ArchiveLine)
        yield line, decode_value(line.topic, line.value)


def test_an_imported_log_names_its_slow_rank(folder: Folder) -> None:
    text = "".join(
        iteration(step, 430.0)
        + timers_across_ranks(
            forward_compute=[
                100.0 * (1.2 if rank == 5 else 1.0) + 0.1 * ((step * 7 + rank * 3) % 5) for rank in range(8)
            ],
            backward_compute=[200.0 * (1.2 if rank == 5 else 1.0) for rank in range(8)],
        )
        for step in range(1, 21)
    )
    roster = Roster()
    engine = JobsEngine("site", 0, roster)
    outputs: list[Record] = []
    for line, record in archived(folder, folder.log(text)):
        if not roster.take(record):
            outputs += engine.on_record(record, Position(line.topic, line.partition, line.offset, line.timestamp_ms))
    outputs += engine.flush()
    stragglers = [output for output in outputs if isinstance(output, Finding) and output.kind == "straggler"]
    assert [finding.subject.rank for finding in stragglers] == [5]
    results = [output for output in outputs if isinstance(output, StepResult)]
    assert [(result.ranks_reported, result.step_time_us) for result in results] == [(8, 430_000)] * 20


def test_the_reference_logs_are_imported_or_say_why_not() -> None:
    if not TRAINER_SAMPLES.is_dir():
        pytest.skip("reference data absent: trainer logs")
    seen = 0
    for path in sorted(TRAINER_SAMPLES.glob("*.txt")):
        report = Report()
        try:
            records = list(step_log_records([path], report=report))
        except ImportFailedError as error:
            assert "no step with a time" in str(error)  # noqa: PT017 - most samples do have times
            continue
        seen += report.steps
        assert isinstance(records[0][1], Job)
    assert seen >= 15


def test_archive_lines_are_appended_at_their_event_time(folder: Folder) -> None:
    stream = io.BytesIO()
    writer = ArchiveWriter(stream)
    for at_ns, record in folder.records(folder.log(iteration(1, 1000.0, prefix="[2026-03-01 10:00:01]"))):
        writer.write(record, at_ns)
    moment = datetime(2026, 3, 1, 10, 0, 1, tzinfo=UTC)
    assert f'"timestamp_ms":{int(moment.timestamp() * 1000)}' in stream.getvalue().decode()

"""What a worker's metrics page says, when series end, and that docs/instrumentation.md lists exactly what is there."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from factories import JOB, SITE, at, finding, job, nic_frame, policy, position_of, progress, step_timing, xid_event

from schemas import catalog
from schemas.findings import ProgressMark, Subject
from schemas.fleet import RulePolicy
from schemas.frames import FabricFrame
from schemas.remediation import Cause, Command, Target
from schemas.results import StepResult
from streams.core.roster import Roster
from streams.engines.jobs import JobsEngine
from streams.engines.telemetry import TelemetryEngine
from streams.faust_roles.job_series import MAX_JOBS, SILENT_S, WAIT_BUCKETS_MS
from streams.faust_roles.metrics import PAGE_TYPE, WorkerMetrics
from streams.faust_roles.partition_series import REST_S
from streams.faust_roles.pause_rates import MAX_PORTS, PauseRates

DOCUMENT = Path(__file__).parents[2] / "docs" / "instrumentation.md"
RANK = Subject(level="rank", job_id=JOB, rank=3)
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Clock:
    """Wall clock that a test moves."""

    def __init__(self) -> None:
        self.now: float = at(0) / 1e9

    def __call__(self) -> float:
        return self.now


def series(metrics: WorkerMetrics) -> Series:
    """The page, parsed."""
    found: Series = {}
    for line in metrics.page().decode().splitlines():
        if line.startswith("#"):
            continue
        matched = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        assert matched is not None, line
        labels = tuple(sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', matched[2] or "")))
        found[matched[1], labels] = float(matched[3])
    return found


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    return series(metrics).get((name, tuple(sorted(labels.items()))))


def of_name(metrics: WorkerMetrics, name: str) -> list[dict[str, str]]:
    return [dict(labels) for found, labels in series(metrics) if found == name]


def step(number: int, *, job_id: str = JOB, epoch: int = 0, phase: str = "train", **fields: Any) -> StepResult:
    return StepResult(
        job_id=job_id,
        epoch=epoch,
        step=number,
        event_time_ns=at(number),
        phase=phase,
        ranks_expected=8,
        ranks_reported=8,
        **{"step_time_us": 500_000, **fields},
    )


# --- Jobs ---------------------------------------------------------------------------------------------------------


def test_the_figures_of_the_last_train_step_are_on_the_page() -> None:
    metrics = WorkerMetrics("jobs")
    metrics.record_out(step(1, mfu=0.2, hfu=0.3, wait_share_p50=0.1, wait_share_p99=0.2))
    metrics.record_out(step(2, mfu=0.45, hfu=0.5, wait_share_p50=0.05, wait_share_p99=0.1))
    metrics.record_out(step(3, phase="checkpoint", mfu=0.01, wait_share_p99=0.9))
    assert value(metrics, "calculated_cluster_mfu", job_id=JOB) == 0.45
    assert value(metrics, "calculated_cluster_hfu", job_id=JOB) == 0.5
    assert value(metrics, "paceline_wait_share", job_id=JOB, percentile="50") == 0.05
    assert value(metrics, "paceline_wait_share", job_id=JOB, percentile="99") == 0.1
    assert value(metrics, "paceline_step_time_seconds", job_id=JOB) == 0.5
    assert value(metrics, "paceline_steps_closed_total") == 3


def test_a_step_without_utilisation_has_no_mfu_which_is_not_zero() -> None:
    metrics = WorkerMetrics("jobs")
    metrics.record_out(step(1))
    assert of_name(metrics, "calculated_cluster_mfu") == []
    assert of_name(metrics, "paceline_wait_share") == []
    assert of_name(metrics, "nccl_allreduce_wait_ms_count") == []


def test_an_impossible_mfu_is_no_figure_and_ends_no_count() -> None:
    metrics = WorkerMetrics("jobs")
    for number in range(2):
        metrics.record_out(step(number, mfu=0.2))
    metrics.record_out(step(2, mfu=1.7, impossible=True))
    assert of_name(metrics, "calculated_cluster_mfu") == []
    assert value(metrics, "paceline_low_mfu_steps", job_id=JOB) == 2


def test_the_wait_histogram_holds_the_p99_of_every_train_step_in_milliseconds() -> None:
    metrics = WorkerMetrics("jobs")
    for share in (0.01, 0.1, 0.1, 0.9):  # of half a second: 5, 50, 50 and 450 ms
        metrics.record_out(step(1, wait_share_p99=share))
    metrics.record_out(step(2, phase="warmup", wait_share_p99=0.9))
    buckets = {
        dict(labels)["le"]: count
        for (name, labels), count in series(metrics).items()
        if name == "nccl_allreduce_wait_ms_bucket"
    }
    assert list(buckets) == [f"{bound:g}" for bound in WAIT_BUCKETS_MS] + ["+Inf"]
    assert (buckets["2.5"], buckets["5"], buckets["25"], buckets["50"], buckets["250"]) == (0, 1, 1, 3, 3)
    assert (buckets["500"], buckets["+Inf"]) == (4, 4)
    assert value(metrics, "nccl_allreduce_wait_ms_count", job_id=JOB) == 4
    assert value(metrics, "nccl_allreduce_wait_ms_sum", job_id=JOB) == pytest.approx(555)


@pytest.mark.parametrize(
    ("target", "rules", "mfus", "expected"),
    [
        (None, {}, (0.39, 0.39, 0.39), 3),
        (None, {}, (0.39, 0.40, 0.39), 1),
        (0.30, {}, (0.39, 0.39, 0.39), 0),
        (None, {"low_mfu": RulePolicy(thresholds={"target": 0.5})}, (0.45, 0.45), 2),
        (None, {}, (0.39, None, 0.39), 2),
    ],
)
def test_low_steps_are_counted_by_the_job_s_target_else_the_policy_s(
    target: float | None, rules: dict[str, RulePolicy], mfus: tuple[float | None, ...], expected: int
) -> None:
    roster = Roster()
    roster.take(policy(rules))
    roster.take(job(mfu_target=target))
    metrics = WorkerMetrics("jobs", roster)
    for number, mfu in enumerate(mfus):
        metrics.record_out(step(number, mfu=mfu))
    assert value(metrics, "paceline_low_mfu_steps", job_id=JOB) == expected


def test_low_steps_pass_three_exactly_while_the_rule_says_so() -> None:
    """The alert compares the count with the rule's own number of steps: both must turn at the same step."""
    roster = Roster()
    # 8 ranks at 989.5 TFLOP/s: 6N with these tokens is 50 % in half a second, and 25 % in a whole one.
    tokens = round(0.5 * 989.5e12 * 8 * 0.5 / (6 * 7e9))
    roster.take(job(model={"parameters": 7e9}, tokens_per_step=tokens, peak_tflops=989.5))
    engine, metrics = JobsEngine(SITE, 0, roster), WorkerMetrics("jobs", roster)
    stands, seconds, seen = False, 0.0, []
    for number, slow in enumerate((0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1)):
        # The first step is held back for the earlier ones that may yet come: a while later it is closed.
        seconds += 100.0 if number == 1 else 1.0 if slow else 0.5
        timing = step_timing(number, seconds, [400_000] * 8, step_us=1_000_000 if slow else 500_000)
        for record in engine.on_record(timing, position_of(timing)):
            metrics.record_out(record)
            if getattr(record, "kind", None) == "low_mfu":
                stands = getattr(record, "state", None) == "open"
        count = value(metrics, "paceline_low_mfu_steps", job_id=JOB)
        assert ((count or 0) > 3) == stands
        seen.append(count)
    assert max(count for count in seen if count is not None) == 5


def test_high_wait_steps_count_steps_above_forty_percent() -> None:
    metrics = WorkerMetrics("jobs")
    for number, share in enumerate((0.41, 0.5, 0.4, 0.41)):
        metrics.record_out(step(number, wait_share_p99=share))
    assert value(metrics, "paceline_high_wait_steps", job_id=JOB) == 1


def test_a_new_epoch_begins_its_counts_anew_and_an_old_one_changes_nothing() -> None:
    metrics = WorkerMetrics("jobs")
    for number in range(3):
        metrics.record_out(step(number, mfu=0.1, wait_share_p99=0.9))
    metrics.record_out(step(0, epoch=1, mfu=0.2, wait_share_p99=0.8))
    metrics.record_out(step(3, epoch=0, mfu=0.1, wait_share_p99=0.9))
    assert value(metrics, "paceline_low_mfu_steps", job_id=JOB) == 1
    assert value(metrics, "paceline_high_wait_steps", job_id=JOB) == 1
    assert value(metrics, "calculated_cluster_mfu", job_id=JOB) == 0.2


def test_only_so_many_jobs_have_series_and_the_quietest_makes_room() -> None:
    metrics = WorkerMetrics("jobs")
    for number in range(MAX_JOBS):
        metrics.record_out(step(1, job_id=f"job-{number}", mfu=0.5))
    metrics.record_out(step(2, job_id="job-0", mfu=0.5))
    metrics.record_out(step(1, job_id="new", mfu=0.5))
    jobs = {labels["job_id"] for labels in of_name(metrics, "calculated_cluster_mfu")}
    assert len(jobs) == MAX_JOBS
    assert {"new", "job-0"} <= jobs
    assert "job-1" not in jobs
    assert value(metrics, "paceline_jobs_pushed_out_total") == 1


def test_a_job_that_ended_or_fell_silent_has_no_series() -> None:
    clock, roster = Clock(), Roster()
    metrics = WorkerMetrics("jobs", roster, clock)
    for name in ("ended", "silent", "alive"):
        roster.take(job(job_id=name))
        metrics.record_out(step(1, job_id=name, mfu=0.5))
    roster.take(job(job_id="ended", state="ended", version=2))
    clock.now += SILENT_S - 1
    metrics.record_out(step(2, job_id="alive", phase="checkpoint"))
    assert {labels["job_id"] for labels in of_name(metrics, "calculated_cluster_mfu")} == {"silent", "alive"}
    clock.now += 2
    assert {labels["job_id"] for labels in of_name(metrics, "calculated_cluster_mfu")} == {"alive"}


def test_series_of_jobs_and_partitions_that_moved_to_another_worker_end() -> None:
    metrics = WorkerMetrics("jobs")
    for partition, job_id in enumerate(("stays", "goes")):
        metrics.taken("paceline.step-timings.v1", partition, 7)
        metrics.record_in("step-timings", progress(1, job_id=job_id), partition)
        metrics.event_time(partition, at(1))
        metrics.snapshot_taken(partition, 0.1)
        metrics.snapshot_packed(partition, 100, 10)
        metrics.record_out(step(1, job_id=job_id, mfu=0.5))
    metrics.forget({1, 2})
    assert [labels["job_id"] for labels in of_name(metrics, "calculated_cluster_mfu")] == ["stays"]
    for name in ("paceline_event_time_seconds", "paceline_snapshot_bytes", "paceline_snapshot_pause_seconds"):
        assert [labels["partition"] for labels in of_name(metrics, name)] == ["0"], name


# --- Devices ------------------------------------------------------------------------------------------------------


def fed(metrics: WorkerMetrics, engine: TelemetryEngine, *records: Any) -> None:
    for record in records:
        engine.on_record(record, position_of(record))
        metrics.record_in("kernel-events", record, 0, engine)


def test_xids_are_counted_once_by_code_with_the_lines_folded_into_them() -> None:
    metrics, engine = WorkerMetrics("telemetry"), TelemetryEngine(SITE, 0, Roster())
    first = xid_event(1, 79)
    fed(metrics, engine, first, first, xid_event(2, 48, repeat_count=5), first, xid_event(3, 79))
    assert value(metrics, "nvidia_xid_error_counter", code="79") == 2
    assert value(metrics, "nvidia_xid_error_counter", code="48") == 5
    assert value(metrics, "paceline_repeated_records_total", role="telemetry") == 2


def test_codes_beyond_the_catalogue_and_lines_of_user_processes_share_a_label_each() -> None:
    metrics, engine = WorkerMetrics("telemetry"), TelemetryEngine(SITE, 0, Roster())
    unknown = [code for code in range(100_000, 100_200) if catalog.xid(code) is None]
    fed(metrics, engine, *(xid_event(n, code) for n, code in enumerate(unknown)), xid_event(500, 79, trusted=False))
    fed(metrics, engine, xid_event(501, 22013, source="sxid"), xid_event(502, None, source="aer"))
    assert value(metrics, "nvidia_xid_error_counter", code="other") == len(unknown)
    assert value(metrics, "nvidia_xid_error_counter", code="untrusted") == 1
    assert value(metrics, "nvidia_xid_error_counter", code="79") == 0
    assert len(of_name(metrics, "nvidia_xid_error_counter")) == len(catalog.xids()) + 2


def test_what_alerts_read_is_there_at_zero_before_anything_happened() -> None:
    metrics = WorkerMetrics("telemetry")
    for code in ("48", "79", "92"):
        assert value(metrics, "nvidia_xid_error_counter", code=code) == 0
    for reason in ("invalid_record", "processing_failed"):
        assert value(metrics, "paceline_dead_letters_total", role="telemetry", reason=reason) == 0
    assert of_name(WorkerMetrics("jobs"), "nvidia_xid_error_counter") == []


def ports(seconds: float, rx: list[int | None], *, session: str = "s1", **fields: Any) -> FabricFrame:
    count = len(rx)
    return FabricFrame(
        **{
            "view": "switch",
            "switch_id": "leaf-1",
            "agent_session": session,
            "seq": round(seconds),
            "event_time_ns": at(seconds),
            "device": (None,) * count,
            "port": tuple(f"Ethernet{n}" for n in range(count)),
            "pfc_port": tuple(range(count)),
            "pfc_priority": (3,) * count,
            "rx_pause_frames": tuple(rx),
            "tx_pause_frames": (None,) * count,
            **fields,
        }
    )


def rates(metrics: WorkerMetrics) -> dict[str, float]:
    return {
        dict(labels)["port_id"]: rate
        for (name, labels), rate in series(metrics).items()
        if name == "switch_pfc_pause_rx_rate"
    }


def given(*frames: FabricFrame, clock: Clock | None = None) -> WorkerMetrics:
    metrics = WorkerMetrics("telemetry", clock=clock or Clock())
    for frame in frames:
        metrics.record_in("fabric-frames", frame, 0)
    return metrics


def test_the_pause_rate_is_told_by_two_frames_and_only_of_ports_that_receive_any() -> None:
    metrics = given(ports(0, [10, 20, 30]), ports(2, [10, 21, 1030]))
    assert rates(metrics) == {"leaf-1/Ethernet2": 500.0}
    assert of_name(metrics, "switch_pfc_pause_rx_rate") == [{"port_id": "leaf-1/Ethernet2", "view": "switch"}]
    metrics.record_in("fabric-frames", ports(3, [10, 21, 1030]), 0)
    assert rates(metrics) == {}


def test_all_priorities_and_the_link_level_count_of_a_port_are_added() -> None:
    def frame(seconds: float, each: int) -> FabricFrame:
        return ports(
            seconds,
            [0],
            pfc_port=(0, 0),
            pfc_priority=(3, 4),
            rx_pause_frames=(each, 2 * each),
            tx_pause_frames=(0, 0),
            rx_global_pause_frames=(4 * each,),
        )

    assert rates(given(frame(0, 0), frame(1, 100))) == {"leaf-1/Ethernet0": 700.0}


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([ports(0, [900]), ports(1, [100])], id="a counter that fell"),
        pytest.param([ports(0, [0]), ports(1, [900], session="s2")], id="another session"),
        pytest.param([ports(0, [0]), ports(61, [90_000])], id="a gap"),
        pytest.param([ports(0, [None]), ports(1, [900])], id="a first value"),
        pytest.param([ports(1, [0]), ports(0, [900])], id="an older frame"),
        pytest.param([ports(1, [0]), ports(1, [900])], id="a repeat"),
        pytest.param([ports(0, [0]), ports(1, [900], pfc_priority=(4,))], id="another priority"),
    ],
)
def test_what_is_no_increase_is_no_rate(frames: list[FabricFrame]) -> None:
    assert rates(given(*frames)) == {}


def test_a_publisher_that_fell_silent_has_no_pause_series() -> None:
    clock = Clock()
    metrics = given(nic_frame(0, 0, 0), nic_frame(1, 500, 0), clock=clock)
    assert rates(metrics) == {"node-1/mlx5_0/1": 500.0}
    clock.now += 61
    assert rates(metrics) == {}


def test_the_worst_ports_have_series_and_the_others_are_counted() -> None:
    pauses = PauseRates(Clock(), max_ports=3)
    pauses.take(ports(0, [0] * 10))
    pauses.take(ports(1, [2 * n for n in range(10)]))
    rate_of, left_out = pauses.collect()
    assert [sample.labels["port_id"] for sample in rate_of.samples] == [f"leaf-1/Ethernet{n}" for n in (9, 8, 7)]
    assert left_out.samples[0].value == 6
    assert MAX_PORTS == 1024


# --- Decisions ----------------------------------------------------------------------------------------------------


def command(*findings: str) -> Command:
    return Command(
        command_id="cmd-1",
        site_id=SITE,
        kind="cordon_node",
        target=Target(level="node", node_id="node-1"),
        audience="actuators/test",
        cause=Cause(incident_id="inc-1", findings=findings),
        decided_at_ns=at(4),
        expires_at_ns=at(100),
        sequence=0,
        mode="observe",
    )


@pytest.mark.parametrize(
    ("causes", "latency_s"), [(("a", "b"), 8.0), (("a",), 9.0), (("a", "unknown"), 9.0), (("unknown",), 6.0)]
)
def test_decision_latency_counts_from_the_latest_finding_that_the_command_rests_on(
    causes: tuple[str, ...], latency_s: float
) -> None:
    clock = Clock()
    metrics = WorkerMetrics("decisions", clock=clock)
    for name, seconds in (("a", 1), ("b", 2), ("c", 3)):
        metrics.record_in("findings", finding("straggler", seconds, RANK, finding_id=name), 0)
    clock.now += 10
    metrics.record_out(command(*causes))
    assert value(metrics, "paceline_decision_latency_seconds_sum", kind="cordon_node") == pytest.approx(latency_s)
    assert value(metrics, "paceline_commands_total", kind="cordon_node", mode="observe") == 1


# --- Partitions ---------------------------------------------------------------------------------------------------


def test_lag_grows_while_unread_records_wait_and_nothing_is_processed() -> None:
    clock = Clock()
    metrics = WorkerMetrics("telemetry", clock=clock)
    metrics.follow_ends({("paceline.gpu-frames.v1", 2): 100}.__getitem__)
    metrics.taken("paceline.gpu-frames.v1", 2, 89)
    metrics.event_time(2, at(-5))
    place = {"role": "telemetry", "partition": "2"}
    assert value(metrics, "paceline_unread_records", family="gpu-frames", **place) == 10
    assert value(metrics, "paceline_event_time_lag_seconds", **place) == pytest.approx(5)
    clock.now += 2 * REST_S
    assert value(metrics, "paceline_event_time_lag_seconds", **place) == pytest.approx(5 + 2 * REST_S)


def test_a_partition_at_rest_is_not_behind() -> None:
    clock = Clock()
    metrics = WorkerMetrics("telemetry", clock=clock)
    metrics.follow_ends({("paceline.gpu-frames.v1", 0): 90}.__getitem__)
    metrics.taken("paceline.gpu-frames.v1", 0, 89)
    metrics.event_time(0, at(0))
    metrics.snapshot_taken(0, 0.01)
    clock.now += REST_S + 1
    assert of_name(metrics, "paceline_event_time_lag_seconds") == []
    assert of_name(metrics, "paceline_snapshot_age_seconds") == []
    assert value(metrics, "paceline_unread_records", role="telemetry", partition="0", family="gpu-frames") == 0


def test_a_client_that_cannot_say_where_a_partition_ends_costs_only_that_series() -> None:
    metrics = WorkerMetrics("telemetry")
    nothing: dict[tuple[str, int], int] = {}
    metrics.follow_ends(nothing.__getitem__)
    metrics.taken("paceline.gpu-frames.v1", 0, 89)
    metrics.taken("no.topic.of.ours", 0, 1)
    metrics.event_time(0, at(0))
    assert of_name(metrics, "paceline_unread_records") == []
    assert len(of_name(metrics, "paceline_event_time_lag_seconds")) == 1


def test_the_event_time_is_the_engine_s_and_without_one_that_of_the_marks() -> None:
    metrics, engine = WorkerMetrics("telemetry"), TelemetryEngine(SITE, 0, Roster())
    fed(metrics, engine, xid_event(7, 31))
    assert value(metrics, "paceline_event_time_seconds", role="telemetry", partition="0") == at(7) / 1e9
    decisions = WorkerMetrics("decisions")
    for seconds in (5, 3):
        mark = ProgressMark(site_id=SITE, role="jobs", partition=0, mark_ns=at(seconds))
        decisions.record_in("findings", mark, 1, object())
    assert value(decisions, "paceline_event_time_seconds", role="decisions", partition="1") == at(5) / 1e9


def test_the_age_of_a_snapshot_counts_from_the_last_whole_one() -> None:
    clock = Clock()
    metrics = WorkerMetrics("jobs", clock=clock)
    metrics.event_time(0, at(0))
    assert of_name(metrics, "paceline_snapshot_age_seconds") == []
    metrics.snapshot_taken(0, 0.01)
    clock.now += 20
    assert value(metrics, "paceline_snapshot_age_seconds", role="jobs", partition="0") == 20
    metrics.snapshot_written(0)
    clock.now += 3
    assert value(metrics, "paceline_snapshot_age_seconds", role="jobs", partition="0") == 3


def test_an_engine_made_anew_counts_no_repeats_twice() -> None:
    class Engine:
        repeats = 0

    metrics, engine = WorkerMetrics("telemetry"), Engine()
    for repeats in (0, 2, 2, 0, 1):
        engine.repeats = repeats
        metrics.record_in("kernel-events", xid_event(1, 31), 0, engine)
    assert value(metrics, "paceline_repeated_records_total", role="telemetry") == 3


def test_a_record_that_cannot_be_counted_costs_nothing_but_its_count() -> None:
    class Engine:
        repeats = "many"

    metrics = WorkerMetrics("telemetry")
    metrics.record_in("kernel-events", xid_event(1, 31), 0, Engine())
    assert value(metrics, "paceline_metrics_failures_total") == 1
    assert value(metrics, "paceline_records_in_total", role="telemetry", family="kernel-events") == 1


# --- The page -----------------------------------------------------------------------------------------------------


def test_the_page_is_served_and_nothing_else_is() -> None:
    metrics = WorkerMetrics("telemetry")
    port = metrics.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == PAGE_TYPE
        assert b'nvidia_xid_error_counter{code="79"} 0.0' in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)


def used(role: str) -> WorkerMetrics:
    """A worker that has seen one of everything, so that every metric has its series."""
    roster = Roster()
    metrics = WorkerMetrics(role, roster)
    metrics.follow_ends(lambda place: 100)
    metrics.taken("paceline.findings.v1", 0, 3)
    metrics.record_in("findings", finding("straggler", 1, RANK, finding_id="a"), 0)
    metrics.record_in("fabric-frames", nic_frame(0, 0, 0), 0)
    metrics.record_in("fabric-frames", nic_frame(1, 500, 0), 0)
    metrics.record_out(finding("straggler", 1, RANK))
    metrics.record_out(command("a"))
    metrics.record_out(step(1, mfu=0.5, hfu=0.5, wait_share_p50=0.1, wait_share_p99=0.2))
    metrics.late("gpu-frames")
    metrics.event_time(0, at(0))
    metrics.snapshot_taken(0, 0.1)
    metrics.snapshot_packed(0, 100, 10)
    metrics.snapshot_written(0)
    metrics.restored(0, 0.1)
    return metrics


def test_the_document_lists_every_metric_with_its_type_and_labels_and_no_other() -> None:
    row = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \|([^|]*)\| [^|]+ \| [^|]+ \|$")
    documented = {
        matched[1]: (matched[2], frozenset(re.findall(r"`(\w+)`", matched[3])))
        for line in re.sub(r"## The agent\n.*?(?=\n## )", "", DOCUMENT.read_text(), flags=re.DOTALL).splitlines()
        if (matched := row.match(line)) is not None
    }
    page = used("telemetry").page().decode()
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
    actual = {}
    for name, kind in types.items():
        if name.startswith("process_"):
            continue
        sample = name + ("_count" if kind == "histogram" else "")
        labels = re.search(rf"^{sample}(?:{{(.*)}})? ", page, re.MULTILINE)
        assert labels is not None, f"{name} has no series"
        actual[name] = (kind, frozenset(re.findall(r'(\w+)="', labels[1] or "")))
    assert documented == actual

"""Following trainers' logs: finding them, whose lines they are, when a step is whole, rotation, and hostile content."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.collectors.base import CollectorError
from agents.collectors.trainer_log import TrainerLogCollector
from agents.collectors.trainer_log_file import TrainerLogFile
from agents.identity import AgentIdentity
from agents.importers.step_logs import step_log_records
from agents.settings import AgentSettings, SettingsError, load
from agents.trainer_log_settings import TrainerLog, TrainerLogError, parse_trainer_log
from schemas.steps import CollectiveDigest, StepTiming

if TYPE_CHECKING:
    from collections.abc import Iterable

S = 10**9
T0 = 1_800_000_000 * S
IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")
TRAINER_SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "trainer"

LINES = {
    "megatron": " iteration {step:8d}/  500000 | consumed samples: 1 | elapsed time per iteration (ms): 250.0 | "
    "global batch size: 1 | lm loss: 2.5E+00 | loss scale: 1.0 | number of skipped iterations:   0 |",
    "torchtitan": "[rank0]:step: {step:2d}  loss:  7.62585  memory: 66.91GiB(37.51%)  tps: 10,050  mfu: 13.99%",
    "nemo": "Training epoch 0, iteration {step}/149 | lr: 3e-05 | global_batch_size: 32 | global_step: {step} | "
    "reduced_train_loss: 11.03 | train_step_timing in s: 0.25 | consumed_samples: 64",
    "deepspeed": "[2026-03-01 10:00:00,123] [INFO] [timer.py:215:stop] epoch=0/micro_step={step}/global_step={step}, "
    "RunningAvgSamplesPerSec=4.1, CurrSamplesPerSec=4.0, MemAllocated=1.0GB, MaxMemAllocated=2.0GB",
    "huggingface": "  8%|8         | {step}/24128 [1:52:09<20:27:23,  3.33s/it] {{'loss': 6.26, 'learning_rate': 0.001, 'epoch': 0.02}}",
    "nanotron": "[INFO|DP=0|PP=0|TP=0]: iteration: {step} / 4000 | consumed_tokens: 88.1M | "
    "elapsed_time_per_iteration_ms: 250 | tokens_per_sec: 367K | lm_loss: 5.5",
    "maxtext": "completed step: {step}, seconds: 0.25, TFLOP/s/device: 100.0, Tokens/s/device: 1000.0, loss: 2.5",
    "nanogpt": "iter {step}: loss 4.0863, time 250.0ms, mfu 14.20%",
}


class Node:
    """A collector, and the time at which it reads."""

    def __init__(self, *entries: str) -> None:
        self.now_ns = T0
        self.collector = TrainerLogCollector([parse_trainer_log(entry) for entry in entries], IDENTITY)

    def after(self, seconds: float = 1.0) -> list[StepTiming]:
        self.now_ns += round(seconds * S)
        records = self.collector.collect(self.now_ns).records
        assert all(isinstance(record, StepTiming) for record in records)
        return [record for record in records if isinstance(record, StepTiming)]


def megatron(step: int, ms: float = 250.0, head: str = "") -> str:
    return f"{head} iteration {step:8d}/  500000 | elapsed time per iteration (ms): {ms:.1f} | lm loss: 2.5E+00 |\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text)


def told(timings: Iterable[StepTiming]) -> list[tuple[int, tuple[int, ...], tuple[int | None, ...]]]:
    return [(timing.step, timing.rank, timing.step_us) for timing in timings]


# --- Settings -----------------------------------------------------------------------------------------------------


def test_an_entry_is_words() -> None:
    entry = parse_trainer_log(
        'path="/logs/a run/rank_*.log" job=j rank=3 epoch=2 framework=nemo zone=UTC from_start=yes'
    )
    assert entry == TrainerLog("/logs/a run/rank_*.log", "j", 3, 2, "nemo", "UTC", True)
    assert parse_trainer_log("path=/l job=j") == TrainerLog("/l", "j")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no path"),
        ("path=/l", "has no job"),
        ("path=l job=j", "not absolute"),
        ("path=/l job=j rank=x", "rank is 'x'"),
        ("path=/l job=j rank=-1", "rank is '-1'"),
        ("path=/l job=j framework=keras", "is none of megatron"),
        ("path=/l job=j zone=Mars/Base", "zone 'Mars/Base'"),
        ("path=/l job=j from_start=maybe", "give yes or no"),
        ("path=/l job=j job=k", "has job twice"),
        ("path=/l job=j colour=red", "known are path, job"),
        ("/l j", "known are path, job"),
        ("path='/l job=j", "No closing quotation"),
        (f"path=/l job={'x' * 254}", "253"),
    ],
)
def test_an_entry_that_does_not_hold_says_which_word(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TrainerLogError, match=says):
        parse_trainer_log(text)
    config = tmp_path / "agent.toml"
    config.write_text(f"[agent]\ntrainer_logs = ['''{text}''']\n")
    with pytest.raises(SettingsError, match="trainer_logs: "):
        load(config)


def test_settings_make_the_collector() -> None:
    found = load(None, {}, {"PACELINE_TRAINER_LOGS": "path=/a job=j, path=/b job=k"})
    assert TrainerLogCollector.from_settings(found, IDENTITY).is_supported() is None
    assert "trainer_logs" in (TrainerLogCollector.from_settings(AgentSettings(), IDENTITY).is_supported() or "")


# --- Steps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", LINES)
def test_steps_of_every_framework_are_followed(tmp_path: Path, framework: str) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1")
    assert node.after() == []  # nothing is there yet
    found = []
    for step in range(1, 25):
        write(log, LINES[framework].format(step=step) + "\n")
        found += node.after(1)
    found += node.after(3)
    assert node.collector.files == {str(log): (framework,)}
    steps = [timing.step for timing in found]
    assert steps == sorted(set(steps))
    # Files are looked for every ten seconds, so the first steps come in one reading and have no time of their own where
    # none is printed.
    assert set(range(12, 25)) <= set(steps)
    assert all(timing.job_id == "job-1" and timing.rank == (0,) and timing.node_id == "node-1" for timing in found)
    assert [timing.seq for timing in found] == list(range(len(found)))
    printed = framework in {"megatron", "nemo", "nanotron", "maxtext", "nanogpt"}
    assert {timing.step_us for timing in found[-5:]} == {(250_000,) if printed else (1_000_000,)}


def test_a_step_comes_with_the_timers_behind_its_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1")
    node.after()
    write(
        log, megatron(1) + "times across ranks (ms):\n  forward-compute:\n     rank  0: 100.00\n     rank  1: 90.00\n"
    )
    assert node.after(10) == []
    write(log, "  backward-compute:\n     rank  0: 120.00\n     rank  1: 130.00\n")
    assert node.after(1) == []
    write(log, megatron(2))
    (first,) = node.after(1)
    assert (first.rank, first.forward_us, first.backward_us, first.step_us) == (
        (0, 1),
        (100_000, 90_000),
        (120_000, 130_000),
        (250_000, 250_000),
    )
    assert told(node.after(2.5)) == [(2, (0, 1), (250_000, 250_000))]


def test_a_step_waits_for_the_other_ranks_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "all.log"
    node = Node(f"path={log} job=job-1")
    node.after()
    write(log, "".join(megatron(1, 200 + rank, f"[rank{rank}]:") for rank in range(3)))
    write(log, megatron(2, 300, "[rank0]:"))
    assert node.after(10) == []
    write(log, megatron(2, 301, "[rank1]:") + megatron(2, 302, "[rank2]:") + megatron(3, 400, "[rank0]:"))
    assert told(node.after(1)) == [(1, (0, 1, 2), (200_000, 201_000, 202_000))]
    assert told(node.after(3)) == [(2, (0, 1, 2), (300_000, 301_000, 302_000)), (3, (0,), (400_000,))]


def test_files_are_the_ranks_that_their_names_say_else_the_next_free_ones(tmp_path: Path) -> None:
    node = Node(f"path={tmp_path}/**/*.log job=job-1")
    node.after()
    for name in ("x/rank_5.log", "a.log", "b.log"):
        write(tmp_path / name, megatron(1))
    assert sorted(told([*node.after(10), *node.after(3)])) == [
        (1, (0,), (250_000,)),
        (1, (1,), (250_000,)),
        (1, (5,), (250_000,)),
    ]


def test_a_rank_that_was_given_holds_for_lines_that_name_none(tmp_path: Path) -> None:
    log = tmp_path / "rank_5.log"
    node = Node(f"path={log} job=job-1 rank=7 epoch=4")
    node.after()
    write(log, megatron(1) + megatron(2, head="[rank3]:"))
    found = [*node.after(10), *node.after(3)]
    assert [timing.rank for timing in found] == [(7,), (3,)]
    assert {timing.epoch for timing in found} == {4}


def test_lines_of_another_framework_are_left_out_where_one_is_named(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1 framework=nanogpt")
    node.after()
    write(log, megatron(1) + LINES["nanogpt"].format(step=9) + "\n")
    assert [timing.step for timing in [*node.after(10), *node.after(3)]] == [9]


def test_a_step_number_that_falls_begins_the_next_epoch(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1")
    node.after()
    write(log, "".join(megatron(step) for step in (100, 101, 102, 50, 51)))
    found = [*node.after(10), *node.after(3)]
    assert [(timing.epoch, timing.step) for timing in found] == [(0, 100), (0, 101), (0, 102), (1, 50), (1, 51)]


def test_what_a_log_held_before_gives_its_restarts_and_no_steps(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    write(log, "".join(megatron(step) for step in (100, 101, 50, 51)))
    node = Node(f"path={log} job=job-1")
    assert [*node.after(1), *node.after(3)] == []
    write(log, megatron(52))
    (timing,) = [*node.after(1), *node.after(3)]
    assert (timing.epoch, timing.step) == (1, 52)


def test_what_a_log_held_before_is_published_where_that_is_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    write(log, megatron(1, head="[2026-01-02 03:04:05]") + megatron(2))
    node = Node(f"path={log} job=job-1 from_start=yes zone=UTC")
    found = [*node.after(1), *node.after(3)]
    assert [timing.step for timing in found] == [1, 2]
    assert found[0].event_time_ns == int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * S


def test_a_printed_time_is_believed_near_the_present_and_in_the_zone_that_is_given(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1 zone=Asia/Kolkata")
    node.after()
    at = datetime.fromtimestamp(T0 // S + 8, UTC)
    there = datetime.fromtimestamp(T0 // S + 8 + 19_800, UTC)
    write(log, megatron(1, head=f"[{there:%Y-%m-%d %H:%M:%S}]"))
    write(log, megatron(2, head=f"[{at:%Y-%m-%d %H:%M:%S}]"))  # hours off: a clock or zone that is not ours
    first, second = [*node.after(10), *node.after(3)]
    assert first.event_time_ns == T0 + 8 * S
    assert second.event_time_ns == T0 + 11 * S  # when it was read
    assert first.event_time_ns <= node.now_ns


def test_a_step_of_which_no_time_is_known_is_counted_and_not_published(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1")
    node.after()
    write(log, LINES["torchtitan"].format(step=1) + "\n")
    assert [*node.after(10), *node.after(3)] == []
    log.unlink()
    node.after(11)
    node.after(11)
    assert node.collector.counters["without_time"] == 1


# --- Files --------------------------------------------------------------------------------------------------------


def test_rotation_loses_no_step_and_gives_none_twice(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1")
    write(log, "")
    found = node.after()
    for step in range(1, 31):
        if step % 10 == 0:
            log.rename(tmp_path / f"train.log.{step}")
        write(log, megatron(step))
        found += node.after(1)
    found += node.after(3)
    assert [timing.step for timing in found] == list(range(1, 31))


def test_a_log_that_is_cut_short_and_written_anew_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1")
    write(log, "")
    node.after()
    write(log, "".join(megatron(step) for step in range(1, 6)))
    found = node.after(1)
    os.truncate(log, 0)
    write(log, megatron(6))
    found += [*node.after(1), *node.after(3)]
    assert [timing.step for timing in found] == [1, 2, 3, 4, 5, 6]


def test_a_line_in_pieces_and_a_progress_bar_are_one_step_each(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    node = Node(f"path={log} job=job-1")
    write(log, "")
    node.after()
    text = "  0%|          | 0/10 [00:00<?, ?it/s]\r 10%|#         | 1/10 [00:01<00:09,  1.00s/it]\r" + megatron(7)
    for start in range(0, len(text), 11):
        write(log, text[start : start + 11])
        node.after(0.1)
    assert [timing.step for timing in node.after(3)] == [7]


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    node = Node(f"path={tmp_path}/*.log job=job-1")
    assert node.after() == []
    assert node.collector.files == {}


def test_a_log_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "train.log"
    write(log, "x\n")

    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(TrainerLogFile, "read", refuse)
    with pytest.raises(CollectorError, match="Permission denied"):
        Node(f"path={log} job=job-1").after()


def test_files_are_bounded(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path / f"{number}.log", "")
    node = Node(f"path={tmp_path}/*.log job=job-1", f"path={tmp_path}/*.log job=job-2")
    node.after()
    assert sum(len(group.files) for group in node.collector._groups) == 256


def test_every_log_has_its_turn_when_there_is_more_than_one_reading_takes(tmp_path: Path) -> None:
    node = Node(f"path={tmp_path}/*.log job=job-1")
    for number in range(3):
        write(tmp_path / f"rank_{number}.log", "")
    node.after()
    for number in range(3):
        write(tmp_path / f"rank_{number}.log", "".join(megatron(step) for step in range(1, 9_000)))
    ranks = {timing.rank for timing in (timing for _ in range(3) for timing in node.after(0.01))}
    assert ranks == {(0,), (1,), (2,)}


LINES_OF_A_LOG = st.lists(
    st.one_of(
        st.builds(megatron, st.integers(0, 2**64), st.floats(0, 1e12)),
        st.sampled_from([line.format(step=3) + "\n" for line in LINES.values()]),
        st.text(max_size=60),
        st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")),
        st.builds(lambda rank: megatron(3, head=f"[rank{rank}]:"), st.integers(0, 2**70)),
    ),
    max_size=30,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(LINES_OF_A_LOG, st.integers(1, 200))
def test_no_content_ends_the_collector(tmp_path: Path, lines: list[str], piece: int) -> None:
    log = tmp_path / "train.log"
    log.unlink(missing_ok=True)
    node = Node(f"path={log} job=job-1")
    log.touch()
    node.after()
    text = "".join(lines)
    for start in range(0, len(text), piece):
        write(log, text[start : start + piece].encode("utf-8", "replace").decode())
        node.after(1)
    node.after(3)


# --- One truth for logs that are followed and logs that are imported ----------------------------------------------


def imported(log: Path) -> list[tuple[Any, ...]]:
    records = [record for _, record in step_log_records([log]) if isinstance(record, StepTiming)]
    return [_facts(timing) for timing in records]


def _facts(timing: StepTiming) -> tuple[Any, ...]:
    return (
        timing.epoch,
        timing.step,
        timing.rank,
        timing.step_us,
        timing.forward_us,
        timing.backward_us,
        timing.optimizer_us,
        timing.data_us,
        timing.wait_us,
    )


def test_following_says_what_importing_says(tmp_path: Path) -> None:
    text = ""
    for step in (1, 2, 3, 2, 3):
        text += megatron(step, 100 + step, head=f"[2026-01-02 03:04:{step:02d}]")
        text += "times across ranks (ms):\n  forward-compute:\n     rank  0: 10.00\n     rank  1: 11.00\n"
        text += "  all-grads-sync:\n     rank  0: 3.00\n     rank  1: 2.00\n"
    log = tmp_path / "train.log"
    write(log, text)
    node = Node(f"path={log} job=job-1 from_start=yes")
    found = [*node.after(1), *node.after(3)]
    assert [_facts(timing) for timing in found] == imported(log)


@pytest.mark.skipif(not TRAINER_SAMPLES.is_dir(), reason=f"reference data absent: {TRAINER_SAMPLES}")
def test_following_says_of_recorded_logs_what_importing_says(tmp_path: Path) -> None:
    compared = 0
    for sample in sorted(TRAINER_SAMPLES.glob("*.txt")):
        node = Node(f"path={sample} job=job-1 from_start=yes zone=UTC")
        found = [*node.after(1), *node.after(3)]
        try:
            expected = imported(sample)
        except Exception:  # noqa: BLE001 - a log without any timed step is refused as a whole by the importer
            expected = []
        # The importer sorts by time, a follower takes them as they come.
        assert sorted(map(repr, map(_facts, found))) == sorted(map(repr, expected)), sample.name
        compared += len(expected)
    assert compared > 0


# --- Watchdogs ----------------------------------------------------------------------------------------------------


def timed_out(head: str, seq: int, enqueued: int) -> str:
    return (
        f"{head} failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, "
        f"last completed work: {seq - 1}\n"
    )


def test_what_a_watchdog_says_is_a_digest_of_its_rank(tmp_path: Path) -> None:
    log = tmp_path / "rank_5.log"
    write(log, timed_out("[rank5]:[E x] [PG ID 0 PG GUID 0(default_pg) Rank 5]", 3, 3))
    collector = TrainerLogCollector([parse_trainer_log(f"path={log} job=job-1 epoch=2")], IDENTITY)
    assert collector.collect(T0).records == ()  # what it held before is an old failure
    write(log, timed_out("\x1b[31m[rank5]:[E x] [PG ID 0 PG GUID 0(default_pg) Rank 5]", 9, 11))
    write(log, timed_out("[E x] [PG ID 2 PG GUID 7(TP) Rank 1]", 4, 4))  # a rank of the group: the file says whose
    (digest,) = collector.collect(T0 + S).records
    assert isinstance(digest, CollectiveDigest)
    assert (digest.job_id, digest.epoch, digest.rank, digest.event_time_ns) == ("job-1", 2, 5, T0 + S)
    assert [(table["desc"], table["enqueued"], table["completed"]) for table in digest.groups] == [
        ("default_pg", 11, 8),
        ("TP", 4, 3),
    ]
    assert (digest.dump_path, digest.pending_total, collector.counters["watchdog"]) == (str(log), 4, 1)
    assert collector.collect(T0 + 2 * S).records == ()


def test_a_digest_from_a_log_tells_of_one_attempt(tmp_path: Path) -> None:
    log = tmp_path / "all.log"
    collector = TrainerLogCollector([parse_trainer_log(f"path={log} job=job-1")], IDENTITY)
    collector.collect(T0)
    write(log, megatron(7) + timed_out("[rank1]:[E x] [PG ID 0 PG GUID 0(default_pg) Rank 1]", 9, 9))
    write(log, megatron(1) + timed_out("[rank2]:[E x] [PG ID 0 PG GUID 0(default_pg) Rank 2]", 4, 4))
    found = [record for record in collector.collect(T0 + 20 * S).records if isinstance(record, CollectiveDigest)]
    assert [(record.epoch, record.rank) for record in found] == [(0, 1), (1, 2)]

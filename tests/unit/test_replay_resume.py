"""A replay into a file that was interrupted goes on from its checkpoint: the same bytes and counts, and less to read."""

from __future__ import annotations

import errno
import io
import os
import random
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import interrupted_replays
import pytest
from factories import at, gpu_frame, job, placement, policy, step_timing, xid_event
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interrupted_replays import PER_DOT, interrupted_at

import paceline.replay_command
from paceline.replay_checkpoint import CheckpointPace, checkpoint_of
from paceline.replay_command import ReplayOptions, replay_command
from paceline.replay_output import OtherReplayError, ReplayOutput
from schemas.archive import ArchiveWriter
from schemas.archive_blocks import BlockWriter
from schemas.fleet import RulePolicy

if TYPE_CHECKING:
    from schemas.base import Record

SECONDS, NODES, PER_BLOCK = 100, 3, 50


def arriving() -> list[tuple[float, Record]]:
    """Three nodes with a slow rank and an Xid: frames late, twice or lost, and another policy half way."""
    chance = random.Random(7)
    due: list[tuple[float, Record]] = [(0, job(2 * NODES))]
    due += [(0, placement([2 * node, 2 * node + 1], node_id=f"node-{node}")) for node in range(NODES)]
    due.append((SECONDS / 2, policy({"straggler": RulePolicy(thresholds={"floor": 0.2})}, settle_ns=4_000_000_000)))
    for second in range(SECONDS):
        for node in range(NODES):
            name = f"node-{node}"
            records: list[Record] = [gpu_frame(second, node_id=name, gpus=2, seq=second, sku=("H100", "H100"))]
            if second % 2 == 0 and second > 20:
                slow = 60_000 if node == 1 and 30 < second < 80 else 0
                own = [200_000, 200_000 + slow]
                records.append(
                    step_timing(
                        second // 2, second + 0.2 * node, own, node_id=name, first_rank=2 * node, step_us=900_000
                    )
                )
            for record in records:
                if chance.random() > 0.02:
                    due.append((second + chance.choice([0.3, 0.3, 0.4, 0.4, 6.0, 14.0]), record))
                if chance.random() < 0.05:
                    due.append((second + 7, record))
    due.append((70, xid_event(70, 79, node_id="node-2")))
    return sorted(due, key=lambda entry: entry[0])


def recorded_from(plain: Path, path: Path) -> Path:
    """The lines of a plain archive as a recording has them, in small blocks."""
    with path.open("wb") as stream:
        writer = BlockWriter(stream, {"site_id": "site-1"})
        for number, line in enumerate(plain.read_bytes().splitlines(keepends=True)):
            writer.add(line, "lines", 0, number, number)
            if number % PER_BLOCK == PER_BLOCK - 1:
                writer.close_block()
        writer.end({})
    return path


class Told(NamedTuple):
    """What a replay said to whom, and how much it read."""

    status: int
    lines: int
    out: str
    err: str


class Case:
    """An archive, and what a replay makes of it that nobody interrupts."""

    def __init__(self, source: Path, directory: Path, is_readable: bool = False) -> None:
        self.source, self.directory, self._is_readable = source, directory, is_readable
        self.told = self.replayed("whole", has_summary=True)
        self.whole = self.output("whole")

    def replayed(self, name: str, cut: int | None = None, **options: Any) -> Told:
        out, err = io.StringIO(), io.StringIO()
        given = {"is_readable": self._is_readable, "checkpoint_every_s": 0.0, "is_resumed": True, **options}
        asked = ReplayOptions(str(self.source), output=self.directory / name, **given)
        with interrupted_at(cut) as reading, redirect_stdout(out), redirect_stderr(err):
            status = replay_command(asked)
        return Told(status, reading.lines, out.getvalue(), err.getvalue())

    def begun(self, name: str, cut: int, **options: Any) -> Path:
        """Interrupt a replay that nobody began before; its checkpoint."""
        (self.directory / name).unlink(missing_ok=True)
        checkpoint = checkpoint_of(self.directory / name)
        checkpoint.unlink(missing_ok=True)
        assert self.replayed(name, cut, **options).status == 130
        return checkpoint

    def output(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "run.jsonl"
    with ArchiveWriter.open(path) as archive:
        for second, record in arriving():
            archive.write(record, at(second))
    lines = path.read_bytes().splitlines(keepends=True)
    for number in (20, 300, len(lines) - 20):
        lines.insert(number, b'{"topic":"gpu-frames","value":{"record":"gpu_frame"}}\n')
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture(scope="module")
def recorded(plain: Path) -> Case:
    return Case(recorded_from(plain, plain.with_name("run.jsonl.zst")), plain.parent)


@pytest.fixture(scope="module", params=["plain", "recorded", "damaged"])
def case(request: pytest.FixtureRequest, plain: Path, recorded: Case, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param == "recorded":
        return recorded
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "plain":
        return Case(plain, directory)
    content = bytearray(recorded.source.read_bytes())
    content[len(content) // 3] ^= 1
    (directory / "run.jsonl.zst").write_bytes(content)
    return Case(directory / "run.jsonl.zst", directory, is_readable=True)


def test_the_archives_have_all_that_may_wait_or_be_counted(case: Case) -> None:
    assert case.told.status == 2
    assert case.told.lines > 350
    assert len(case.whole.splitlines()) > 30
    assert all(name in case.told.err for name in ("bad_lines=", "repeats=", "late="))


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.integers(1, 400), min_size=1, max_size=2))
def test_interrupted_at_any_lines_it_says_the_same_in_the_end(case: Case, cuts: list[int]) -> None:
    # Of the damaged archive a block cannot be read: it has fewer lines to be interrupted at.
    checkpoint = case.begun("out", min(cuts[0], case.told.lines))
    for cut in cuts[1:]:
        case.replayed("out", cut)
    was_there = checkpoint.exists()
    told = case.replayed("out", has_summary=True)
    assert case.output("out") == case.whole
    assert (told.status, told.out) == (case.told.status, case.told.out)
    assert [line for line in told.err.splitlines() if "goes on behind" not in line] == case.told.err.splitlines()
    assert not was_there or told.lines <= case.told.lines - 60
    assert not checkpoint.exists()


def test_killed_at_any_moment_it_goes_on_where_it_stood(recorded: Case) -> None:
    output = recorded.directory / "killed"
    command = [sys.executable, str(Path(interrupted_replays.__file__)), str(recorded.source), str(output)]
    chance = random.Random()
    for _ in range(2):
        # Two checkpoints are written by then, and it is killed within some lines of here, or at a third.
        least = chance.randint(13, 15)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            bound = threading.Timer(90, child.kill)
            bound.start()
            child.stdin.write(b"." * (least + chance.randint(0, 3)))
            child.stdin.flush()
            assert child.stdout.read(least) == b"." * least
            child.kill()
            bound.cancel()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=90, check=False)
    assert done.returncode == recorded.told.status, done.stderr
    assert b"goes on behind line" in done.stderr
    assert output.read_bytes() == recorded.whole
    assert len(done.stdout) * PER_DOT <= recorded.told.lines - 120


OTHER = {
    "site": {"site_id": "elsewhere"},
    "policy": {"policy_file": "other.toml"},
    "range": {"start": "1767225600"},
    "reading of damage": {"is_readable": True},
}


@pytest.mark.parametrize("name", OTHER)
def test_a_checkpoint_of_another_replay_is_named_and_not_used(recorded: Case, name: str, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[rules.straggler]\nthresholds = { floor = 0.5 }\n")
    options = {key: tmp_path / value if key == "policy_file" else value for key, value in OTHER[name].items()}
    recorded.begun("out", 400)
    told = recorded.replayed("out", **options)
    assert f"it is of another {name}; begins anew" in told.err
    # Where what was written is not what it says either, that is an error as ever.
    assert told.lines == recorded.told.lines or told.status == 2


def test_a_checkpoint_of_another_archive_or_code_is_not_used(recorded: Case) -> None:
    recorded.begun("out", 300)
    with mock.patch.object(paceline.replay_command, "code_sum", return_value="later"):
        told = recorded.replayed("out", 350)
        assert "it is of another code" in told.err
        assert told.lines == 349
    told = recorded.replayed("out")
    assert "it is of another code" in told.err
    assert recorded.output("out") == recorded.whole
    copied = Case(recorded_from(recorded.directory / "run.jsonl", recorded.directory / "copy.zst"), recorded.directory)
    recorded.begun("out", 300)
    assert "goes on behind line" in copied.replayed("out").err
    content = (recorded.directory / "run.jsonl").read_bytes().splitlines(keepends=True)
    (recorded.directory / "longer.jsonl").write_bytes(b"".join([*content, content[-1]]))
    other = Case(recorded_from(recorded.directory / "longer.jsonl", recorded.directory / "b.zst"), recorded.directory)
    recorded.begun("out", 300)
    assert "it is of another source" in other.replayed("out").err


@pytest.mark.parametrize("harm", ["flipped", "short", "empty", "text", "directory"])
def test_a_damaged_checkpoint_costs_time_alone(recorded: Case, harm: str) -> None:
    checkpoint = recorded.begun("out", 300)
    content = bytearray(checkpoint.read_bytes())
    if harm == "directory":
        checkpoint.unlink()
        checkpoint.mkdir()
    else:
        content[len(content) // 2] ^= 1
        left = {"flipped": content, "short": content[:-9], "empty": b"", "text": b"{}"}
        checkpoint.write_bytes(left[harm])
    told = recorded.replayed("out", 310)
    if harm == "directory":
        checkpoint.rmdir()
    assert "begins anew" in told.err
    assert told.lines == 309
    recorded.replayed("out")
    assert recorded.output("out") == recorded.whole


def test_outputs_that_were_changed_behind_its_back_are_found(recorded: Case) -> None:
    recorded.begun("out", 300)
    content = recorded.output("out")
    (recorded.directory / "out").write_bytes(content[:40])
    assert "does not begin with the outputs that it counts" in recorded.replayed("out").err
    assert recorded.output("out") == recorded.whole
    recorded.begun("out", 300)
    (recorded.directory / "out").write_bytes(content.replace(b'"step":1', b'"step":2'))
    told = recorded.replayed("out")
    assert (told.status, "is of another replay" in told.err) == (2, True)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("write_whole", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        ("pack", TypeError("Integer exceeds 64-bit range")),
    ],
)
def test_where_no_checkpoint_can_be_written_the_replay_goes_on(recorded: Case, step: str, error: Exception) -> None:
    with mock.patch(f"paceline.replay_checkpoint.{step}", side_effect=error):
        checkpoint = recorded.begun("out", 300)
        assert not checkpoint.exists()
        told = recorded.replayed("out")
    assert told.err.count(getattr(error, "strerror", None) or str(error)) == 1
    assert recorded.output("out") == recorded.whole


def test_what_begins_without_a_look_back_leaves_no_old_checkpoint(recorded: Case) -> None:
    checkpoint = recorded.begun("out", 300)
    (recorded.directory / "out").unlink()
    recorded.replayed("out", 10, is_resumed=False)
    assert not checkpoint.exists()


@pytest.mark.parametrize("there", [b'{"a": 1}', b"\x28\xb5\x2f\xfd\0\0"])
def test_a_line_that_is_no_torn_one_of_this_replay_stays(there: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(there)
    other = ReplayOutput(tmp_path / "other", is_resumed=True, to_stdout=False)
    with other, pytest.raises(OtherReplayError, match="line 1 is of another replay"):
        other.write(b'{"topic":"a"}\n')
    assert (tmp_path / "other").read_bytes() == there


@pytest.mark.parametrize("there", [b"", b'{"top', b'{"top\0\0\0\0\0\0\0\0\0\0'])
def test_a_torn_line_is_written_anew(there: bytes, tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(there)
    with ReplayOutput(tmp_path / "torn", is_resumed=True, to_stdout=False) as output:
        output.write(b'{"topic":"a"}\n')
    assert (tmp_path / "torn").read_bytes() == b'{"topic":"a"}\n'


def test_a_comparison_begins_anew_as_it_needs_all_that_was_recorded(recorded: Case) -> None:
    assert not recorded.begun("compared", 300, is_compared=True).exists()
    recorded.begun("compared", 300)
    assert recorded.replayed("compared", is_compared=True).lines == recorded.told.lines


def test_checkpoints_take_a_fiftieth_of_the_time_at_most() -> None:
    now_s, took_s, written = 0.0, 0.0, []
    pace = CheckpointPace(10.0, lambda: now_s)
    for second in range(200):
        now_s = max(now_s, float(second))
        for _ in range(64):
            if pace.is_due():
                written.append(now_s)
                now_s += 1.0 if len(written) == 2 else took_s
                pace.done()
    assert written[:3] == [10.0, 20.0, 71.0]

"""The reference job controller with workers that are only written down: orders, their ends, and an end at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from job_rig import NOW_NS, TERM_NS, Rig
from power_cut import Cut, PowerCutError

from agents.importers.job_file import load_job_file
from deploy.job_controller.checkpoints import Checkpoints
from deploy.job_controller.controller import CHECKPOINT_REQUEST, JobStateError
from deploy.job_controller.job_settings import JobSettings, JobSettingsError
from deploy.job_controller.workers import LeftoverWorkersError, Workers
from schemas.fleet import Job, RankPlacement
from streams.core.roster import Roster

HOLD = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_SH)
print(end=".", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a disk has is not what is tested here; the order of writes is."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


# --- Orders -----------------------------------------------------------------------------------------------------------


def test_a_swap_moves_the_nodes_ranks_to_a_spare_and_goes_on_from_the_checkpoint(rig: Rig) -> None:
    rig.start()
    rig.checkpoint(40)
    rig.order()
    rig.ticks()
    moved = [{"ranks": [2, 3], "from": "node-2", "to": "node-3"}]
    assert {name: rig.answer()[name] for name in ("state", "epoch", "moved", "checkpoint_step")} == {
        "state": "done",
        "epoch": 1,
        "moved": moved,
        "checkpoint_step": 40,
    }
    assert rig.workers.starts[1:] == [(1, {"node-1": [0, 1], "node-3": [2, 3]}, 40)]
    assert (rig.sheet()["spares"], rig.sheet()["out"], rig.sheet()["epoch"]) == (["node-4"], ["node-2"], 1)


def test_a_second_order_of_the_same_id_changes_nothing(rig: Rig) -> None:
    rig.start()
    rig.order()
    rig.ticks()
    before = rig.answer()
    rig.order(node_id="node-1", expected_epoch=1)
    rig.ticks()
    assert rig.answer() == before
    assert len(rig.workers.starts) == 2
    rig.start()
    rig.order()
    rig.ticks()
    assert rig.answer() == before
    assert rig.sheet()["seats"] == {"node-1": [0, 1], "node-3": [2, 3]}


def test_a_restart_keeps_everybodys_seat(rig: Rig) -> None:
    rig.start()
    rig.order(kind="restart_job", node_id=None)
    rig.ticks()
    assert (rig.answer()["state"], rig.answer()["moved"], rig.answer()["checkpoint_step"]) == ("done", [], None)
    assert rig.workers.starts[1][:2] == (1, {"node-1": [0, 1], "node-2": [2, 3]})


def test_a_drain_waits_for_a_checkpoint_that_was_not_there_before(rig: Rig) -> None:
    rig.start()
    rig.checkpoint(40)
    rig.order(kind="drain_node", when="after_checkpoint")
    rig.ticks()
    assert rig.answer()["state"] == "checkpointing"
    assert len(rig.workers.starts) == 1
    request = rig.settings.run_dir / CHECKPOINT_REQUEST
    assert request.read_text() == "cmd-1"
    rig.checkpoint(47)
    rig.ticks()
    assert (rig.answer()["state"], rig.answer()["checkpoint_step"]) == ("done", 47)
    assert not request.exists()


def test_a_drain_without_a_checkpoint_in_time_is_refused_and_one_of_failed_workers_waits_for_none(rig: Rig) -> None:
    rig.start()
    rig.order(kind="drain_node", when="after_checkpoint")
    rig.ticks()
    rig.now_ns += 601 * 10**9
    rig.ticks()
    assert (rig.answer()["state"], rig.answer()["code"]) == ("refused", "no_checkpoint")
    rig.order("cmd-2", kind="drain_node", when="after_checkpoint")
    rig.ticks(1)
    rig.workers.how = "failed"
    rig.ticks(1)
    assert rig.answer("cmd-2")["state"] == "done"
    assert [start[0] for start in rig.workers.starts] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"node_id": "node-9"}, "not_here"),
        ({"node_id": None}, "not_here"),
        ({"expected_epoch": 3}, "stale_epoch"),
        ({"expires_at_ns": NOW_NS - 1}, "expired"),
        ({"job_id": "other"}, "wrong_job"),
        ({"kind": "reset_gpu"}, "malformed"),
        ({"contract": 2}, "malformed"),
        ({"command_id": "cmd-2"}, "malformed"),
        ({"expires_at_ns": "soon"}, "malformed"),
        ({"kind": "uncordon_node"}, "not_here"),
    ],
)
def test_what_does_not_hold_is_refused_and_the_job_goes_on(rig: Rig, fields: dict[str, Any], code: str) -> None:
    rig.start()
    rig.order()
    path = rig.settings.spool / "orders" / "cmd-1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    rig.ticks()
    assert (rig.answer()["state"], rig.answer()["code"]) == ("refused", code)
    assert len(rig.workers.starts) == 1


def test_without_a_spare_the_job_stays_where_it_is(tmp_path: Path) -> None:
    rig = Rig(tmp_path, spares=())
    rig.start()
    rig.order()
    rig.ticks()
    assert (rig.answer()["state"], rig.answer()["code"]) == ("refused", "no_spare")
    assert rig.sheet()["seats"] == {"node-1": [0, 1], "node-2": [2, 3]}
    assert len(rig.workers.starts) == 1


def test_a_node_that_is_given_back_is_the_last_of_the_spares(rig: Rig) -> None:
    rig.start()
    rig.order()
    rig.ticks()
    rig.order("cmd-2", kind="uncordon_node", expected_epoch=1)
    rig.ticks()
    assert rig.answer("cmd-2")["state"] == "done"
    assert (rig.sheet()["spares"], rig.sheet()["out"]) == (["node-4", "node-2"], [])
    assert len(rig.workers.starts) == 2, "nobody was restarted for it"


def test_dumps_are_asked_for_and_those_who_wrote_none_are_named(rig: Rig) -> None:
    rig.start()
    dumps = rig.settings.run_dir / "dumps"
    (dumps / "old_rank_3").write_text("of an earlier hang")
    rig.order(kind="collect_evidence", node_id=None)
    rig.ticks()
    assert rig.answer()["state"] == "accepted"
    for rank in (0, 1, 2):
        (dumps / f"trace_rank_{rank}").write_text("{}")
    rig.ticks()
    assert rig.answer()["state"] == "accepted"
    rig.now_ns += 31 * 10**9
    rig.ticks()
    assert rig.answer()["collected"] == {"directory": str(dumps), "ranks": [0, 1, 2], "missing": [3]}
    assert (rig.workers.asked, len(rig.workers.starts)) == (1, 1)


def test_ranks_are_asked_by_their_pipes_and_one_that_does_not_read_is_passed_over(tmp_path: Path) -> None:
    settings = Rig(tmp_path, dump_pipe=str(tmp_path / "rank_{rank}.pipe")).settings
    for rank in (0, 2):
        os.mkfifo(tmp_path / f"rank_{rank}.pipe")
    reader = os.open(tmp_path / "rank_2.pipe", os.O_RDONLY | os.O_NONBLOCK)
    Workers(settings).ask_for_evidence()
    assert os.read(reader, 10) == b"1"
    os.close(reader)


def test_workers_are_not_started_beside_one_that_holds_their_lock(tmp_path: Path) -> None:
    rig = Rig(tmp_path, command=(sys.executable, "-c", "import time; time.sleep(600)"), end_s=90.0)
    rig.settings.run_dir.mkdir()
    killed, after = Workers(rig.settings), Workers(rig.settings)
    killed.start(0, {"node-1": [0]}, None)
    # A process that inherited nothing, as a rank under torchrun.
    apart = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(rig.settings.run_dir / "workers.lock")],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert apart.stdout is not None
    assert apart.stdout.read(1) == b"."
    with pytest.raises(LeftoverWorkersError):
        after.start(1, {"node-1": [0]}, None)
    after.end_all()
    assert apart.wait(90) == -signal.SIGTERM
    after.start(1, {"node-1": [0]}, None)
    assert after.fate() == "running"
    after.end_all()
    assert killed.fate() == "failed"
    apart.stdout.close()


# --- Ends -------------------------------------------------------------------------------------------------------------


def test_workers_that_fail_start_again_from_the_checkpoint_but_not_for_ever(rig: Rig) -> None:
    rig.start()
    rig.checkpoint(40)
    for _ in range(3):
        rig.workers.how = "failed"
        rig.ticks(1)
    assert [start[::2] for start in rig.workers.starts] == [(0, None), (1, 40), (2, 40), (3, 40)]
    rig.checkpoint(60)
    for _ in range(4):
        rig.workers.how = "failed"
        rig.ticks(1)
    assert rig.sheet()["state"] == "failed"
    assert len(rig.workers.starts) == 7


def test_the_end_of_the_job_is_told_and_later_orders_are_refused(rig: Rig) -> None:
    rig.start()
    rig.order("cmd-0", kind="drain_node", when="after_checkpoint")
    rig.ticks()
    rig.workers.how = "ended"
    rig.order()
    while rig.controller.tick():
        pass
    assert rig.sheet()["state"] == "ended"
    assert [rig.answer(name)["code"] for name in ("cmd-0", "cmd-1")] == ["ended", "ended"]
    rig.order("cmd-2")
    assert not rig.start().tick()
    assert rig.answer("cmd-2")["code"] == "ended"
    assert len(rig.workers.starts) == 1


def test_a_state_that_cannot_be_read_is_no_beginning(rig: Rig) -> None:
    rig.start()
    (rig.settings.run_dir / "controller-state.json").write_text("{")
    with pytest.raises(JobStateError):
        rig.start()


@pytest.mark.parametrize("when", ["now", "after_checkpoint"])
@pytest.mark.parametrize("kind", ["swap_spare", "restart_job"])
def test_an_end_at_any_moment_carries_an_order_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, when: str
) -> None:
    cuts = 0
    for calls in range(1, 200):
        cut = Cut()
        rig = Rig(tmp_path / f"{calls}", cut)
        rig.start()
        rig.checkpoint(40)
        with monkeypatch.context() as patched:
            for name in ("rename", "replace", "unlink"):
                patched.setattr(Path, name, cut.around(getattr(Path, name)))
            cut.left = calls
            with contextlib.suppress(PowerCutError):
                rig.order(kind=kind, when=when)
                rig.ticks(2)
                if when == "after_checkpoint":
                    rig.checkpoint(47)
                rig.ticks(2)
        was_cut, cut.is_off, cut.left = cut.is_off, False, -1
        if was_cut:
            rig.start()
            rig.ticks(2)
            if rig.answer()["state"] == "checkpointing":
                rig.checkpoint(53)
            rig.ticks(2)
        answer, sheet = rig.answer(), rig.sheet()
        assert answer["state"] == "done", calls
        assert answer["epoch"] <= sheet["epoch"]
        assert rig.workers.running == {node: tuple(ranks) for node, ranks in sheet["seats"].items()}
        if kind == "swap_spare":
            assert (sheet["seats"], sheet["spares"]) == ({"node-1": [0, 1], "node-3": [2, 3]}, ["node-4"])
            assert answer["moved"] == [{"ranks": [2, 3], "from": "node-2", "to": "node-3"}]
        assert list((rig.settings.spool / "taken").iterdir()) == []
        epochs = [start[0] for start in rig.workers.starts]
        assert epochs == sorted(set(epochs)), "an epoch is started once"
        cuts += was_cut
        if not was_cut:
            break
    else:
        pytest.fail("the run has more calls than were cut")
    assert cuts > 15


# --- Checkpoints ------------------------------------------------------------------------------------------------------


def test_an_end_at_any_moment_of_a_checkpoint_leaves_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for calls in range(1, 50):
        cut, checkpoints = Cut(), Checkpoints(tmp_path / f"{calls}")
        checkpoints.write(10, "rank-0", b"a")
        checkpoints.complete(10, ["rank-0"])
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", cut.around(Path.replace))
            cut.left = calls
            with contextlib.suppress(PowerCutError):
                for rank in range(2):
                    checkpoints.write(20, f"rank-{rank}", b"b")
                checkpoints.complete(20, ["rank-0", "rank-1"])
        latest = checkpoints.latest()
        assert latest == 20 if calls >= 6 else latest == 10
        assert checkpoints.read(latest, "rank-0") == (b"b" if latest == 20 else b"a")
        if not cut.is_off:
            break


def test_a_checkpoint_whose_shards_are_not_as_its_marker_says_is_passed_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    for step in (10, 20, 30):
        checkpoints.write(step, "rank-0", b"weights")
        checkpoints.complete(step, ["rank-0"])
    (tmp_path / "step-00000030" / "rank-0").write_bytes(b"wei")
    assert checkpoints.latest() == 20
    (tmp_path / "step-00000020" / "rank-0").unlink()
    assert checkpoints.latest() == 10
    checkpoints.drop_behind(10)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_old_checkpoints_go_and_what_is_being_written_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (10, 20, 30, 40):
        checkpoints.write(step, "rank-0", b"weights")
        if step != 10:
            checkpoints.complete(step, ["rank-0"])
    checkpoints.write(50, "rank-0", b"weights")
    checkpoints.keep(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-000000{step}" for step in (30, 40, 50)]


# --- What the pipeline is told ----------------------------------------------------------------------------------------


def test_each_epoch_is_a_job_file_by_which_the_diagnosis_follows(tmp_path: Path) -> None:
    devices = {node: tuple(f"GPU-{node}-{i}" for i in range(2)) for node in ("node-1", "node-2", "node-3")}
    rig = Rig(tmp_path, devices=devices, job={"sku": "H100", "model": {"parameters": 7.0e10}})
    rig.start()
    rig.now_ns += 60 * 10**9
    rig.order(expires_at_ns=rig.now_ns + TERM_NS)
    rig.ticks()
    roster = Roster()
    files = sorted((rig.settings.run_dir / "epochs").iterdir())
    assert [path.name for path in files] == ["epoch-000000-began.toml", "epoch-000001-began.toml"]
    for path in files:
        for record in load_job_file(path, 5):
            assert isinstance(record, Job | RankPlacement)
            roster.take(record)
    assert roster.jobs_on("node-2") == []
    assert roster.jobs_on("node-3") == [("llama", 1)]
    assert roster.rank_of("node-3", "GPU-node-3-1", None) == ("llama", 1, 3)
    job = roster.job("llama", 1).job
    assert job is not None
    assert (job.effective_from_ns, job.sku, job.world_size) == (rig.now_ns, "H100", 4)
    rig.workers.how = "ended"
    rig.ticks(1)
    [job, *_] = load_job_file(rig.settings.run_dir / "epochs" / "epoch-000001-ended.toml", 5)
    assert isinstance(job, Job)
    assert roster.take(job)
    assert roster.jobs_on("node-3") == []


# --- Settings ---------------------------------------------------------------------------------------------------------


SETTINGS = """
job_id = "llama"
run_dir = "/shared/llama"
spool = "/shared/spool/llama"
command = ["{python}", "train.py", "--ranks={ranks}", "--node={node_index}/{nodes}", "{other}", "{step}"]
[[nodes]]
node_id = "node-1"
ranks = [0, 1]
[[nodes]]
node_id = "node-2"
ranks = [2]
gpu_uuid = ["GPU-1"]
[[spares]]
node_id = "node-3"
"""


def test_a_workers_command_is_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(SETTINGS)
    settings = JobSettings.load(path)
    arguments, environment = settings.command_of(4, settings.seats, "node-2", 1, None)
    assert arguments[1:] == ["train.py", "--ranks=2", "--node=1/2", "{other}", "0"]
    assert environment["TORCHELASTIC_RESTART_COUNT"] == "4"
    assert (settings.spares, settings.devices, settings.world_size) == (("node-3",), {"node-2": ("GPU-1",)}, 3)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("ranks = [2]", "ranks = [1]", "not each from 0 on once"),
        ('"node-3"', '"node-1"', "a node stands twice"),
        ('"node-3"', '"../node-3"', "a name is not plain"),
        ("job_id", "job_name", "no key 'job_name'"),
        ('job_id = "llama"', "", "no job_id"),
        ("[[nodes]]", "[nodes", "job.toml"),
    ],
)
def test_settings_that_do_not_hold_are_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(SETTINGS.replace(old, new, 1))
    with pytest.raises(JobSettingsError, match=reason.replace("[", r"\[")):
        JobSettings.load(path)

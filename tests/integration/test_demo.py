"""`paceline demo` as a user runs it: what it prints, how it ends, and that nothing of it stays behind."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from deploy.brokers.jars import missing_tools
from paceline.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

READY = "workers are ready"
END_S = 60.0
"""A demo that was told to end has this long: a stop of the workers alone may take 15 s."""


def status_of(demo: Any) -> int:
    """The demo's exit status, once it and all that it started have ended."""
    try:
        status: int = demo.process.wait(END_S)
    finally:
        deadline = time.monotonic() + END_S
        while (left := demo.family()) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert left == [], [process.cmdline() for process in left]
    return status


# --- A whole run ------------------------------------------------------------------------------------------------------


@pytest.mark.needs_broker
def test_a_demo_ends_well_with_its_result_as_the_last_line(start_paceline: Callable[..., Any], tmp_path: Path) -> None:
    truth_file = tmp_path / "truth.ndjson"
    demo = start_paceline("demo", "--duration", "20", "--json", "--truth-file", str(truth_file))
    stdout, stderr = demo.process.communicate(timeout=240)
    assert demo.process.returncode == 0, stderr[-3000:]
    assert status_of(demo) == 0

    result = json.loads(stdout.splitlines()[-1])
    for name in ("injected", "found", "commands", "steps"):
        assert isinstance(result[name], int), name
    assert result["injected"] == result["found"] == 4
    assert result["missed"] == result["blamed_healthy"] == []
    assert result["commands"] >= 4
    assert result["steps"] > 40
    assert isinstance(result["gpu_hours_lost"], float)
    assert 0 < result["gpu_hours_lost"] < 64 * 60 / 3600
    assert [truth["truth_id"] for truth in result["truth"]] == ["T0001", "T0002", "T0003", "T0004"]
    assert {finding["kind"] for finding in result["findings"]} >= {"straggler", "xid", "pfc_pause"}
    assert {action["kind"] for action in result["actions"]} >= {"drain_node", "cordon_node", "network_action"}

    injected = [json.loads(line) for line in truth_file.read_text().splitlines()]
    assert [truth["truth_id"] for truth in injected] == [truth["truth_id"] for truth in result["truth"]]
    assert "4 of 4 faults found, 0 healthy blamed" in stderr


# --- A run that is ended ----------------------------------------------------------------------------------------------


@pytest.mark.needs_broker
def test_a_running_demo_that_is_interrupted_leaves_no_process_and_says_130(start_paceline: Callable[..., Any]) -> None:
    demo = start_paceline("demo", "--duration", "60", "--json")
    demo.read_until(READY)
    time.sleep(2.0)  # into the run: the fleet publishes and the workers work
    assert len(demo.family()) >= 5, "the demo, its broker and three workers"
    demo.process.send_signal(signal.SIGINT)
    assert status_of(demo) == 130
    assert demo.process.stdout.read() == ""


@pytest.mark.needs_broker
@pytest.mark.parametrize(("broker", "number"), [("embedded", signal.SIGTERM), ("apache", signal.SIGINT)])
def test_a_starting_demo_that_is_told_to_end_leaves_no_process(
    broker: str, number: int, start_paceline: Callable[..., Any]
) -> None:
    if broker == "apache" and (lacks := missing_tools()):
        pytest.skip(f"needs_kafka: {'; '.join(lacks)}")
    demo = start_paceline("demo", "--duration", "60", "--broker", broker)
    demo.read_until(f"{broker} broker on ")
    demo.process.send_signal(number)
    assert status_of(demo) == 130


@pytest.mark.needs_broker
def test_an_impatient_user_who_interrupts_twice_leaves_no_process(start_paceline: Callable[..., Any]) -> None:
    demo = start_paceline("demo", "--duration", "60")
    demo.read_until(READY)
    demo.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    demo.process.send_signal(signal.SIGINT)
    assert status_of(demo) == 130


@pytest.mark.needs_broker
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_demo_that_is_killed_takes_its_processes_with_it(start_paceline: Callable[..., Any]) -> None:
    demo = start_paceline("demo", "--duration", "60")
    demo.read_until(READY)
    demo.process.kill()
    assert status_of(demo) == -signal.SIGKILL


# --- A run that is refused --------------------------------------------------------------------------------------------


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The demo takes SIGTERM for itself; the tests' process gets it back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nodes", "4000"), "4000 nodes for 75 s are more than the embedded broker holds in memory; take at most"),
        (("--nodes", "3"), "at least 4 nodes, not 3"),
        (("--duration", "5"), "--duration 5 is too short; take at least 20 s"),
        (("--duration", "nan"), "duration_s"),
        (("--duration", "soon"), "--duration"),
        (("--scenario", "nosuch"), "no scenario 'nosuch'; there are cpu-contention, healthy, mixed"),
        (("--scenario", "no/such.toml"), "scenario no/such.toml: No such file"),
        (("--broker", "nosuch"), "broker kind 'nosuch' is unknown; choose one of: embedded, apache"),
        (("--seed", "-1"), "seed"),
        (("--truth-file", "no/such/place"), "--truth-file no/such/place: No such file"),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, tuple) else "",
)
def test_a_demo_that_cannot_be_is_refused_at_once_with_a_reason(
    options: tuple[str, ...], said: str, own_signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    begun = time.monotonic()
    result = CliRunner().invoke(app, ["demo", *options])
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    assert time.monotonic() - begun < 20


def test_a_refusal_is_a_status_of_the_process(run_paceline: Any) -> None:
    done = run_paceline("demo", "--scenario", "nosuch", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("paceline demo: no scenario 'nosuch'; ")
    assert len(done.stderr.splitlines()) == 1

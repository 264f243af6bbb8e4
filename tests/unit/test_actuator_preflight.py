"""The pre-flight's hands: what a program must say to be believed, and what is no word about a node."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at
from signed_commands import RING, command, signed
from typer.testing import CliRunner

from agents.actuators.actuator import Actuator, ActuatorSettings
from agents.actuators.memory import ActuatorMemory
from agents.actuators.preflight_program import PreflightHands
from paceline.cli import app
from schemas.findings import Evidence
from schemas.remediation import ActionResult, Target

if TYPE_CHECKING:
    from collections.abc import Callable

NODE = "node-1.dc1.example"


def says(fit: bool | None, node: str = "node-1", record: str = "preflight") -> str:
    return json.dumps({"record": record, "node": node, "fit": fit, "summary": "8 GPUs, 10 checks"})


class Site:
    """An actuator with a program that a test writes."""

    def __init__(self, home: Path) -> None:
        self.home, self.program = home, home / "check-node"
        self.memory = ActuatorMemory(home / "memory", "preflight", at(-1))
        self.wait: Callable[[float], bool] = lambda _: bool(time.sleep(0.01))
        self.clock_s: Callable[[], float] = time.monotonic

    def actuator(self) -> Actuator:
        hands = PreflightHands(self.program, 60.0, self.wait, self.clock_s)
        settings = ActuatorSettings("preflight", SITE)
        return Actuator(settings, hands, self.memory, lambda _: None, lambda: RING, lambda: at(1), lambda _: None)

    def write(self, *lines: str) -> None:
        self.program.write_text("\n".join(("#!/bin/sh", *lines, "")), encoding="utf-8")
        self.program.chmod(0o755)

    def take(self, **fields: Any) -> ActionResult:
        wire = signed(command(**{"kind": "run_preflight", "node_id": NODE, **fields}))
        place = Evidence(topic="paceline.actions.v1", partition=0, offset=7)
        self.actuator().on_message(wire.value, wire.headers, place)
        return self.memory.outbox()[-1][1]


@pytest.fixture
def site(tmp_path: Path) -> Any:
    site = Site(tmp_path)
    yield site
    site.memory.close()


def words(result: ActionResult) -> tuple[str, str | None]:
    return result.outcome, result.code


@pytest.mark.parametrize(("fit", "status", "code"), [(True, 0, "fit"), (False, 1, "unfit")])
def test_what_the_program_says_in_words_and_by_its_status_is_the_result(
    site: Site, fit: bool, status: int, code: str
) -> None:
    site.write(
        'printf "%s" "$#:$1" > ' + str(site.home / "asked"),
        "echo '" + says(None, record="preflight_check") + "'",
        f"echo '{says(fit)}'",
        f"exit {status}",
    )
    result = site.take()
    assert words(result) == ("applied", code)
    assert result.reason == "8 GPUs, 10 checks"
    assert (site.home / "asked").read_text() == f"1:{NODE}"


@pytest.mark.parametrize(
    "lines",
    [
        [f"echo '{says(True)}'", "exit 1"],
        [f"echo '{says(False)}'", "exit 0"],
        [f"echo '{says(None)}'", "exit 2"],
        [f"echo '{says(True)}'", "exit 255"],
        [f"echo '{says(True)}'", "kill -9 $$"],
        [f"echo '{says(True, node='node-2')}'"],
        [f"echo '{says(True, node='node-1.dc2.example')}'"],
        [f"echo '{says(True)}'", "echo Traceback"],
        [f"echo '{says(True, record='preflight_check')}'"],
        ["echo '[]'"],
        ["echo 'node-1 is fit'"],
        ["exit 0"],
        ["exit 1"],
    ],
)
def test_all_else_is_no_word_about_the_node(site: Site, lines: list[str]) -> None:
    site.write(*lines)
    assert words(site.take()) == ("failed", "act_failed")


def test_a_program_that_is_not_there_is_told(site: Site) -> None:
    result = site.take()
    assert words(result) == ("failed", "act_failed")
    assert "No such file" in (result.reason or "")


@pytest.mark.parametrize("name", ["-oProxyCommand=sh", "node-1 node-2", "n[1-9]", "", "a/b"])
def test_a_name_that_could_mean_something_else_reaches_no_program(site: Site, name: str) -> None:
    site.write(f"touch {site.home / 'ran'}")
    target = Target(level="node", node_id=name) if name else Target(level="job", job_id="llama")
    assert words(site.take(target=target)) == ("refused", "not_permitted")
    assert not (site.home / "ran").exists()


def ended(pid_file: Path) -> bool:
    pid = int(pid_file.read_text())
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return state.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("why", ["did not end", "told to stop"])
def test_a_program_that_does_not_end_is_ended_with_all_that_it_started(site: Site, why: str) -> None:
    child = site.home / "child"
    site.write("sleep 600 &", f"echo $! > {child}.tmp", f"mv {child}.tmp {child}", "wait")

    def wait(_: float) -> bool:
        # The test's own signal: the child is there.
        deadline_s = time.monotonic() + 60
        while not child.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return why == "told to stop"

    moments = iter([0.0, 0.0])
    site.wait, site.clock_s = wait, lambda: next(moments, 100.0)
    result = site.take()
    assert words(result) == ("failed", "act_failed")
    assert why in (result.reason or "")
    deadline_s = time.monotonic() + 60
    while not ended(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_pre_flight_whose_actuator_was_killed_is_made_again(site: Site) -> None:
    site.write(f"echo x >> {site.home / 'runs'}", f"echo '{says(True)}'")
    keep = site.memory.finish
    site.memory.finish = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        site.take()
    site.memory.finish = keep  # type: ignore[method-assign]
    site.actuator().resume()
    assert [words(result) for _, result in site.memory.outbox()] == [("applied", "fit")]
    assert (site.home / "runs").read_text() == "x\nx\n"


def test_only_pre_flights_are_its_business(site: Site) -> None:
    site.write("exit 0")
    wire = signed(command(node_id=NODE))
    place = Evidence(topic="paceline.actions.v1", partition=0, offset=7)
    assert site.actuator().on_message(wire.value, wire.headers, place) == "passed_over"


def test_the_command_refuses_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    options = ["--keyring", str(tmp_path / "ring"), "--state-dir", str(tmp_path), "--program", str(plain)]
    told = CliRunner().invoke(app, ["act", "preflight", *options])
    assert told.exit_code == 2
    assert "no program that can be run" in told.output

"""`paceline agent --print-config`, `collect` and the node's part of `doctor`: what they print, and with which status."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from typer.testing import CliRunner

from agents.collectors.base import CollectorError, Dump, Readings
from agents.settings import AgentSettings, load
from agents.source_registry import Source, known_sources
from agents.testing import ScriptedCollector
from paceline import collect_command, doctor_node
from paceline.cli import app
from schemas.events import KernelEvent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

GPU = {"gpu_uuid": "GPU-1", "gpu_index": 0, "power_w": 650.5, "mem_temp_c": None, "other": {"DCGM_X": 1}}
PORT = {"kind": "port", "device": "eth0", "port": None, "counters": {"rx_bytes": 7}}
EVENT = KernelEvent(
    node_id="n", agent_session="s", boot_id="b", kmsg_seq=7, event_time_ns=1, source="xid", code=79, raw="NVRM: Xid"
)


def paceline(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=env)


# --- agent --------------------------------------------------------------------------------------------------------


def test_the_settings_that_hold_are_printed_with_where_they_came_from(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text('[agent]\nnode_id = "n1"\ntick_s = 2\n')
    done = paceline(
        "agent", "--config", str(config), "--metrics-port", "9465", "--print-config", PACELINE_TICK_S="3"
    )  # fmt: skip
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert f'node_id = "n1"  # {config}' in lines
    assert "tick_s = 3.0  # PACELINE_TICK_S" in lines
    assert "metrics_port = 9465  # --metrics-port" in lines
    assert 'sources = ["auto"]  # default' in lines
    again = tmp_path / "again.toml"
    again.write_text(done.stdout)
    assert load(again).metrics_port == 9465


@pytest.mark.parametrize(
    ("arguments", "env", "says"),
    [
        (["--sources", "tea-leaves"], {}, "sources names 'tea-leaves'"),
        (["--disable", "tea-leaves"], {}, "disable names 'tea-leaves'"),
        ([], {"PACELINE_TICK_S": "0"}, "tick_s is 0"),
        ([], {"PACELINE_KAFKA_ACKS": "1"}, "acks cannot be set"),
        ([], {"PACELINE_KAFKA_SECURITY_PROTOCOL": "tea"}, "the Kafka client refuses"),
        (["--config", "/none/agent.toml"], {}, "cannot be read"),
    ],
)
@pytest.mark.parametrize("mode", ["--check", "--print-config"])
def test_settings_that_do_not_hold_are_one_line_and_status_2(
    mode: str, arguments: list[str], env: dict[str, str], says: str
) -> None:
    done = paceline("agent", mode, *arguments, **env)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_settings_that_hold_pass_the_check_and_say_nothing() -> None:
    done = paceline("agent", "--check", "--sources", "nvml,nic")
    assert (done.exit_code, done.stdout) == (0, "")


# --- collect ------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a scripted source in the place of all."""

    def put(script: Any, unsupported: str | None = None) -> None:
        class Scripted(ScriptedCollector):
            @classmethod
            def from_settings(cls, settings: AgentSettings, identity: Any) -> Scripted:
                return cls("door", [script], unsupported)

        monkeypatch.setattr(
            collect_command,
            "chosen",
            lambda names: [Source("door", cast("Any", Scripted), 50, False, "here", "A door.")],
        )

    return put


def test_a_reading_is_a_line_of_json_a_gpu_a_port_and_an_event(source: Callable[..., None]) -> None:
    source(Readings(gpus=(GPU,), ports=(PORT,), events=(EVENT,), driver_version="570.1"))
    done = paceline("collect", "door", "--json")
    assert done.exit_code == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["driver", "gpu", "port", "kernel_event"]
    assert lines[1] == {"kind": "gpu", **GPU}
    assert (lines[2]["device"], lines[2]["counters"]) == ("eth0", {"rx_bytes": 7})
    assert (lines[3]["code"], lines[3]["kmsg_seq"]) == (79, 7)


def test_a_reading_for_people_leaves_out_what_is_not_known(source: Callable[..., None]) -> None:
    source(Readings(gpus=(GPU,)))
    assert paceline("collect", "door").stdout.splitlines() == [
        "gpu",
        "  gpu_uuid: GPU-1",
        "  gpu_index: 0",
        "  power_w: 650.5",
        "  other.DCGM_X: 1",
    ]


def test_the_load_of_the_host_is_a_line_of_its_own(source: Callable[..., None]) -> None:
    source(Readings(host={"observed_ns": 5, "cpu_count": 8}))
    assert json.loads(paceline("collect", "door", "--json").stdout) == {
        "kind": "host", "observed_ns": 5, "cpu_count": 8,
    }  # fmt: skip


def test_a_source_that_is_here_and_has_no_news_says_so(source: Callable[..., None]) -> None:
    source(Readings())
    done = paceline("collect", "door", "--json")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "paceline: door: can be read here, and has nothing to say now\n"


def test_a_dump_is_a_line_of_its_own(source: Callable[..., None]) -> None:
    source(Readings(dumps=(Dump("/tmp/d_3", 3, 9, 5, "ab", "pickle", True),)))
    shown = json.loads(paceline("collect", "door", "--json").stdout)
    assert (shown["kind"], shown["path"], shown["complete"]) == ("dump", "/tmp/d_3", True)


@pytest.mark.parametrize(
    ("script", "unsupported", "says"),
    [
        (Readings(), "no such card: buy one", "door: no such card: buy one"),
        (CollectorError("the driver is away"), None, "door: the driver is away"),
        (KeyError("a bug"), None, "door: KeyError: 'a bug'"),
    ],
)
def test_a_source_that_gives_nothing_says_why_with_status_1(
    source: Callable[..., None], script: Any, unsupported: str | None, says: str
) -> None:
    source(script, unsupported)
    done = paceline("collect", "door", "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"paceline: {says}\n"


def test_a_source_that_hangs_does_not_hold_the_command(source: Callable[..., None]) -> None:
    hang = threading.Event()

    def hanging() -> Readings:
        hang.wait(20)
        return Readings()

    source(hanging)
    done = paceline("collect", "door", "--timeout", "0.1")
    hang.set()
    assert done.exit_code == 1
    assert "no answer within 0.1 s" in done.stderr


@pytest.mark.parametrize("name", ["tea-leaves", "auto"])
def test_a_source_that_there_is_not_is_status_2(name: str) -> None:
    done = paceline("collect", name)
    assert done.exit_code == 2
    assert name in done.stderr


def test_without_a_name_all_sources_are_listed() -> None:
    names = [json.loads(line)["name"] for line in paceline("collect", "--json").stdout.splitlines()]
    assert names == [source.name for source in known_sources()]
    shown = paceline("collect").stdout
    assert all(source.summary in shown for source in known_sources())


# --- doctor -------------------------------------------------------------------------------------------------------


def checks(*arguments: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = paceline("doctor", "--json", *arguments, **env)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return done.exit_code, {check["name"]: check for check in found}


def test_every_source_has_a_check_that_says_why_it_is_not_here(tmp_path: Path) -> None:
    status, found = checks(PACELINE_SYSFS_ROOT=str(tmp_path), PACELINE_KERNEL_LOG=str(tmp_path / "none"))
    assert status == 0
    for source in known_sources():
        check = found[f"source {source.name}"]
        assert check["note"]
        assert not check["needed"]
    assert not found["source kernel-log"]["ok"]
    assert "does not exist" in found["source kernel-log"]["note"]
    assert "not read unless `sources` names it" in found["source dcgmi-dmon"]["note"]


def test_a_source_that_is_disabled_says_so() -> None:
    _, found = checks(PACELINE_DISABLE="nvml")
    assert "left out by `disable`" in found["source nvml"]["note"]


def test_a_source_that_hangs_does_not_hold_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()

    class Hanging(ScriptedCollector):
        def is_supported(self) -> str | None:
            hang.wait(20)
            return None

    monkeypatch.setattr(doctor_node, "_SOURCE_TIMEOUT_S", 0.05)
    reason = doctor_node._asked(Hanging("nvml", []))
    hang.set()
    assert reason is not None
    assert "hangs" in reason


def test_brokers_that_do_not_answer_are_a_failure_with_what_to_look_at(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f'[agent]\nbootstrap_servers = "127.0.0.1:9"\nsocket = ""\nstate_dir = "{tmp_path}"\n')
    monkey = pytest.MonkeyPatch()
    monkey.setattr("paceline.doctor_command._TIMEOUT_S", 0.5)
    try:
        status, found = checks("--config", str(config))
    finally:
        monkey.undo()
    assert status == 1
    assert not found["brokers"]["ok"]
    assert "127.0.0.1:9" in found["brokers"]["note"]
    assert "topics" not in found


def test_settings_that_do_not_hold_are_status_2_for_the_doctor_too(tmp_path: Path) -> None:
    assert paceline("doctor", "--config", str(tmp_path / "none.toml")).exit_code == 2


def test_the_socket_of_an_agent_that_runs_is_well_and_a_file_in_its_place_is_not(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        (check,) = doctor_node.place_checks(AgentSettings(socket=str(path), state_dir=""), needed=True)
        assert check.ok
        assert "an agent serves" in check.note
    (check,) = doctor_node.place_checks(AgentSettings(socket=str(path), state_dir=""), needed=True)
    assert (check.ok, "can be made" in check.note) == (True, True)  # left behind: the next agent replaces it
    path.unlink()
    path.write_text("")
    (check,) = doctor_node.place_checks(AgentSettings(socket=str(path), state_dir=""), needed=True)
    assert not check.ok
    assert "no socket" in check.note


def test_a_socket_path_that_no_address_holds_is_told(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120) / "t.sock"
    (check,) = doctor_node.place_checks(AgentSettings(socket=str(long), state_dir=""), needed=True)
    assert not check.ok
    assert "107 bytes" in check.note


def test_a_spool_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = AgentSettings(socket="", spool_dir=str(tmp_path / "file" / "spool"))
    (check,) = doctor_node.place_checks(settings, needed=True)
    assert (check.ok, check.needed) == (False, True)
    settings = AgentSettings(socket="", state_dir=str(tmp_path / "state"))
    (check,) = doctor_node.place_checks(settings, needed=True)
    assert check.ok
    assert not (tmp_path / "state").exists()


def test_a_spool_that_is_named_needs_its_parent(tmp_path: Path) -> None:
    settings = AgentSettings(socket="", spool_dir=str(tmp_path / "none" / "spool"))
    (check,) = doctor_node.place_checks(settings, needed=True)
    assert not check.ok
    assert "does not exist" in check.note


@pytest.mark.parametrize(("mask", "held"), [(0, [False, False]), (1 << 34, [True, False]), (1 << 2, [False, True])])
def test_capabilities_are_read_from_the_kernel_s_mask(tmp_path: Path, mask: int, held: list[bool]) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nCapEff:\t{mask:016x}\n")
    assert [check.ok for check in doctor_node.capability_checks(status)] == held
    assert doctor_node.capability_checks(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("kernel", "ok", "says"),
    [
        ((0, 1500), True, "estimated error 1.5 ms"),
        ((0x40, 16_000_000), False, "run chrony"),
        (None, True, "does not tell"),
    ],
)
def test_a_clock_that_nothing_keeps_in_step_is_told(
    monkeypatch: pytest.MonkeyPatch, kernel: tuple[int, int] | None, ok: bool, says: str
) -> None:
    monkeypatch.setattr(doctor_node, "_kernel_clock", lambda: kernel)
    check = doctor_node.clock_check()
    assert check.ok is ok
    assert says in check.note


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="adjtimex is Linux's")
def test_the_kernel_of_this_machine_tells_its_clock_s_state() -> None:
    found = doctor_node._kernel_clock()
    assert found is None or (0 <= found[0] < 1 << 16 and found[1] >= 0)

"""The collector of a SONiC switch and the frames that it publishes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.collectors.base import CollectorError
from agents.collectors.program import ProgramError
from agents.collectors.switch import DEFAULT_COMMANDS, SonicCollector
from agents.identity import AgentIdentity
from agents.settings import AgentSettings
from schemas.frames import FabricFrame

if TYPE_CHECKING:
    from pathlib import Path

COUNTERS = """       Port Rx    PFC0    PFC3
--------------  ------  ------
     Ethernet0       0   1,201
     Ethernet8       0     N/A

       Port Tx    PFC0    PFC3
--------------  ------  ------
     Ethernet0       0      22
     Ethernet8       0   9,876
"""

WATCHDOG = """      QUEUE       STATUS    STORM DETECTED/RESTORED    TX OK/DROP    RX OK/DROP    TX LAST OK/DROP    RX LAST OK/DROP
-----------  -----------  -------------------------  ------------  ------------  -----------------  -----------------
Ethernet8:3      stormed                        2/1       100/300         50/7              0/200              0/200
Ethernet8:4  operational                        1/1          10/1          5/1                0/0                0/0
"""

DATABASE: dict[str, Any] = {
    "COUNTERS_PORT_NAME_MAP": {"type": "hash", "value": {"Ethernet0": "oid:0x1000000000012"}},
    "COUNTERS:oid:0x1000000000012": {
        "type": "hash",
        "value": {
            "SAI_PORT_STAT_PFC_3_RX_PKTS": "203",
            "SAI_PORT_STAT_PFC_3_TX_PKTS": "213",
            "SAI_PORT_STAT_IF_IN_OCTETS": "4096",
            "SAI_PORT_STAT_IF_OUT_DISCARDS": "9",
            "SAI_PORT_STAT_ECN_MARKED_PACKETS": "12",
            "SAI_PORT_STAT_ETHER_IN_PKTS_64_OCTETS": "1",
        },
    },
    "COUNTERS:oid:0x15000000000036": {"PFC_WD_STATUS": "stormed", "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "1"},
}


def printed(command: Sequence[str], timeout_s: float) -> bytes:
    return {"pfc": COUNTERS, "pfcwd": WATCHDOG}[command[1]].encode()


def frame(source: SonicCollector, now_ns: int = 1) -> FabricFrame:
    (found,) = source.collect(now_ns).records
    assert isinstance(found, FabricFrame)
    return found


def by_commands(**changes: Any) -> SonicCollector:
    commands = [command.split() for command in DEFAULT_COMMANDS]
    return SonicCollector("leaf-1", "s", **{"commands": commands, "run": printed, **changes})


def test_who_transmits_pause_is_known_from_the_switchs_side() -> None:
    source = by_commands()
    found = frame(source, 7)
    assert (found.view, found.switch_id, found.node_id, found.event_time_ns) == ("switch", "leaf-1", None, 7)
    rows = dict(
        zip(
            zip((found.port[index] for index in found.pfc_port), found.pfc_priority, strict=True),
            zip(found.rx_pause_frames, found.tx_pause_frames, strict=True),
            strict=True,
        )
    )
    assert rows["Ethernet0", 3] == (1201, 22)
    assert rows["Ethernet8", 3] == (None, 9876)


def test_frames_are_numbered_without_gaps() -> None:
    source = by_commands()
    assert [frame(source).seq for _ in range(3)] == [0, 1, 2]


def test_storms_of_a_ports_queues_add_up() -> None:
    found = frame(by_commands())
    position = found.port.index("Ethernet8")
    told = {name: column[position] for name, column in found.counters.items()}
    assert told == {
        "pfcwd_storms_detected": 3,
        "pfcwd_storms_restored": 2,
        "pfcwd_rx_dropped_packets": 8,
        "pfcwd_tx_dropped_packets": 301,
    }


def test_an_export_of_the_database_is_read_from_a_file_with_its_names(tmp_path: Path) -> None:
    (tmp_path / "counters.json").write_text(json.dumps(DATABASE))
    found = frame(SonicCollector("leaf-1", "s", paths=[tmp_path / "counters.json"]))
    assert found.port == ("Ethernet0",)  # the queue without a name is no port
    assert (found.rx_pause_frames, found.tx_pause_frames) == ((203,), (213,))
    assert found.rx_data_bytes == (4096,)
    assert found.counters == {"SAI_PORT_STAT_ECN_MARKED_PACKETS": (12,), "SAI_PORT_STAT_IF_OUT_DISCARDS": (9,)}


def test_files_of_a_directory_explain_each_other(tmp_path: Path) -> None:
    names = {"COUNTERS_PORT_NAME_MAP": DATABASE["COUNTERS_PORT_NAME_MAP"]}
    (tmp_path / "names.json").write_text(json.dumps(names))
    (tmp_path / "counters.json").write_text(json.dumps({k: v for k, v in DATABASE.items() if k not in names}))
    (tmp_path / "watchdog.txt").write_text(WATCHDOG)
    found = frame(SonicCollector("leaf-1", "s", paths=[tmp_path]))
    assert set(found.port) == {"Ethernet0", "Ethernet8"}


def test_files_that_have_not_changed_are_not_published_again(tmp_path: Path) -> None:
    path = tmp_path / "pfc.txt"
    path.write_text(COUNTERS)
    source = SonicCollector("leaf-1", "s", paths=[path])
    assert frame(source).seq == 0
    assert source.collect(2).records == ()
    path.write_text(COUNTERS.replace("1,201", "1,301"))
    os.utime(path, ns=(5, 5))
    assert 1301 in frame(source, 3).rx_pause_frames


def test_a_file_that_is_half_written_is_an_error_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "counters.json"
    whole = json.dumps(DATABASE)
    path.write_text(whole[: len(whole) // 2])
    source = SonicCollector("leaf-1", "s", paths=[path])
    with pytest.raises(CollectorError, match="leaf-1"):
        source.collect(1)
    path.write_text(whole)
    assert frame(source, 2).rx_pause_frames == (203,)


def test_a_command_that_fails_does_not_cost_the_others() -> None:
    def run(command: Sequence[str], timeout_s: float) -> bytes:
        if command[1] == "pfcwd":
            raise ProgramError("show pfcwd stats did not end within 5 s")
        return printed(command, timeout_s)

    source = by_commands(run=run)
    assert frame(source).counters == {}
    assert list(source.failed) == ["show pfcwd stats"]


def test_when_nothing_can_be_read_it_is_an_error() -> None:
    def run(command: Sequence[str], timeout_s: float) -> bytes:
        raise ProgramError("show cannot be run")

    with pytest.raises(CollectorError, match="show cannot be run"):
        by_commands(run=run).collect(1)


def test_a_port_that_leaves_the_table_keeps_its_place_without_values() -> None:
    texts = [COUNTERS, "\n".join(line for line in COUNTERS.splitlines() if "Ethernet8" not in line)]

    def run(command: Sequence[str], timeout_s: float) -> bytes:
        return texts.pop(0).encode()

    source = by_commands(commands=[["show", "pfc", "counters"]], run=run)
    frame(source)
    found = frame(source)
    assert found.port == ("Ethernet0", "Ethernet8")
    assert found.tx_pause_frames == (0, 22, None, None)


def test_without_a_switch_it_is_unsupported_and_says_what_to_set() -> None:
    identity = AgentIdentity("n", "b", "s")
    assert "switch_id" in str(SonicCollector.from_settings(AgentSettings(), identity).is_supported())
    named = AgentSettings(switch_id="leaf-1", switch_commands=("no-such-program --json",))
    assert "no-such-program is not on PATH" in str(SonicCollector.from_settings(named, identity).is_supported())
    unclosed = AgentSettings(switch_id="leaf-1", switch_commands=("show 'pfc",))
    assert "quotes" in str(SonicCollector.from_settings(unclosed, identity).is_supported())


def test_the_settings_name_commands_that_are_really_run(tmp_path: Path) -> None:
    (tmp_path / "pfc.txt").write_text(COUNTERS)
    named = AgentSettings(switch_id="leaf-1", switch_commands=(f"cat '{tmp_path}/pfc.txt'",))
    source = SonicCollector.from_settings(named, AgentIdentity("n", "b", "session-1"))
    assert source.is_supported() is None
    found = frame(source)
    assert (found.switch_id, found.agent_session, found.port) == ("leaf-1", "session-1", ("Ethernet0", "Ethernet8"))


@settings(max_examples=80, deadline=None)
@given(content=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_whatever_a_switch_prints_there_is_a_frame_or_an_error(content: bytes) -> None:
    source = by_commands(run=lambda command, timeout_s: content)
    try:
        readings = source.collect(1)
    except CollectorError:
        return
    assert all(isinstance(record, FabricFrame) for record in readings.records)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.dictionaries(
        st.sampled_from(["SAI_PORT_STAT_PFC_3_RX_PKTS", "SAI_PORT_STAT_PFC_99_TX_PKTS", "PFC_WD_STATUS", "odd"]),
        st.one_of(st.integers(), st.text(max_size=8), st.none(), st.floats(), st.lists(st.none(), max_size=2)),
    )
)
def test_whatever_the_database_holds_there_is_a_frame_or_an_error(tmp_path: Path, values: dict[str, Any]) -> None:
    path = tmp_path / "counters.json"
    path.write_text(json.dumps({"COUNTERS:oid:0x1": values}))
    try:
        SonicCollector("leaf-1", "s", paths=[path]).collect(1)
    except CollectorError:
        return

"""Lost packets: counters of damage, repetition and discards, of NICs and switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at, policy, position_of, without

from schemas.findings import Finding
from schemas.fleet import RulePolicy
from schemas.frames import FabricFrame
from streams.core.roster import Roster
from streams.detectors.port_loss import PortLoss
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

WARNINGS = ("rx_crc_errors_phy", "rx_crc_errors", "rx_symbol_err_phy", "SAI_PORT_STAT_IF_IN_ERRORS")
OBSERVED = (
    *("out_of_sequence", "packet_seq_err", "oos_drop_count", "seq_err_naks_rcvd"),
    *("rx_discards_phy", "tx_discards_phy", "rx_out_of_buffer", "rx_missed_errors"),
    *("SAI_PORT_STAT_IF_IN_DISCARDS", "SAI_PORT_STAT_IF_OUT_DISCARDS"),
)


def frame(second: float, *, view: str = "host", session: str = "s1", **counters: int | None) -> FabricFrame:
    return FabricFrame(
        view=view,
        node_id="node-1" if view == "host" else None,
        switch_id="leaf-1" if view == "switch" else None,
        agent_session=session,
        seq=round(second),
        event_time_ns=at(second),
        device=("mlx5_0",),
        port=("1",),
        peer=("other-end",),
        counters={name: (count,) for name, count in counters.items()},
    )


def counting(second: float, name: str, count: int | None, session: str = "s1") -> FabricFrame:
    given: dict[str, Any] = {name: count}
    return frame(second, session=session, **given)


def heard(frames: Sequence[FabricFrame], roster: Roster | None = None) -> list[Finding]:
    rule = PortLoss(SITE)
    return [finding for one in frames for finding in rule.on_frame(one, roster or Roster())]


@pytest.mark.parametrize("name", [*WARNINGS, *OBSERVED])
def test_a_counter_above_its_rate_fires_at_the_third_sample_and_is_the_kind(name: str) -> None:
    (finding,) = heard([counting(s, name, 7_000 + 11 * s) for s in range(8)])
    assert (finding.kind, finding.rule, finding.state) == (name, "port_loss", "open")
    assert finding.severity == ("warning" if name in WARNINGS else "info")
    assert (finding.event_time_ns, finding.onset_ns) == (at(3), at(1))
    assert (finding.values[f"{name}_per_s"], finding.values["limit_per_s"]) == (11, 10)
    assert (finding.values["view"], finding.values["peer"]) == ("host", "other-end")


@pytest.mark.parametrize("name", [*WARNINGS, *OBSERVED])
def test_its_limit_a_burst_an_old_count_a_reset_and_a_restart_say_nothing(name: str) -> None:
    assert heard([counting(s, name, 10 * s) for s in range(60)]) == []
    assert heard([counting(s, name, 40_000 * (s > 3)) for s in range(20)]) == []
    assert heard([counting(s, name, 60_000) for s in range(20)]) == []
    assert heard([counting(s, name, 60_000 if s < 9 else 0) for s in range(20)]) == []
    assert heard([counting(s, name, 1000 * s, f"s{s}") for s in range(20)]) == []
    assert heard([counting(s, name, None) for s in range(20)]) == []


@pytest.mark.parametrize("every_s", [2, 5, 15, 30])
def test_a_source_that_is_read_seldom_is_told_at_its_third_sample_too(every_s: int) -> None:
    (finding,) = heard([counting(every_s * n, "out_of_sequence", 90 * every_s * n) for n in range(8)])
    assert finding.event_time_ns == at(3 * every_s)


def test_it_is_cleared_a_minute_after_the_last_hit() -> None:
    opened, cleared = heard([frame(s, rx_crc_errors_phy=150 * min(s, 8)) for s in range(90)])
    assert (cleared.state, cleared.finding_id) == ("cleared", opened.finding_id)
    assert at(68) <= cleared.event_time_ns <= at(73)


def test_what_driver_and_kernel_count_alike_is_said_once_under_the_drivers_name() -> None:
    frames = [
        frame(s, rx_crc_errors=50 * s, rx_crc_errors_phy=50 * s, rx_missed_errors=50 * s, rx_out_of_buffer=50 * s)
        for s in range(8)
    ]
    assert [finding.kind for finding in heard(frames)] == ["rx_crc_errors_phy", "rx_out_of_buffer"]


def test_a_port_without_the_drivers_counter_is_told_by_the_kernels() -> None:
    frames = [
        FabricFrame(
            view="host",
            node_id="node-1",
            agent_session="s1",
            seq=s,
            event_time_ns=at(s),
            device=("eth0", "eth1"),
            port=(None, None),
            counters={"rx_crc_errors_phy": (50 * s, None), "rx_crc_errors": (50 * s, 50 * s)},
        )
        for s in range(8)
    ]
    assert [(f.kind, f.subject.device) for f in heard(frames)] == [
        ("rx_crc_errors_phy", "eth0"),
        ("rx_crc_errors", "eth1"),
    ]


def test_a_switchs_port_is_told_by_the_switch() -> None:
    (finding,) = heard([frame(s, view="switch", SAI_PORT_STAT_IF_OUT_DISCARDS=25 * s) for s in range(8)])
    assert (finding.subject.switch_id, finding.subject.node_id, finding.values["view"]) == ("leaf-1", None, "switch")


def test_a_site_sets_the_limits() -> None:
    roster = Roster()
    roster.policy = policy({"port_loss": RulePolicy(thresholds={"discards_per_s": 100, "retransmits_per_s": 100})})
    assert heard([frame(s, rx_discards_phy=90 * s, packet_seq_err=90 * s) for s in range(9)], roster) == []


def test_the_engine_runs_it_unless_it_is_switched_off() -> None:
    off = Roster()
    off.policy = without("port_loss")
    for roster, expected in ((Roster(), ["out_of_sequence"]), (off, [])):
        engine = TelemetryEngine(SITE, 0, roster)
        told = [frame(s, out_of_sequence=90 * s) for s in range(8)]
        records = [record for one in told for record in engine.on_record(one, position_of(one))]
        assert [record.kind for record in records if isinstance(record, Finding)] == expected


def test_a_snapshot_of_before_there_was_the_rule_is_taken() -> None:
    engine, older = TelemetryEngine(SITE, 0, Roster()), TelemetryEngine(SITE, 0, Roster()).snapshot()
    del older["port_rules"]["port_loss"]
    engine.restore(older, {})
    told = [frame(s, out_of_sequence=90 * s) for s in range(8)]
    records = [record for one in told for record in engine.on_record(one, position_of(one))]
    assert [record.kind for record in records if isinstance(record, Finding)] == ["out_of_sequence"]

"""Who stops the fabric: one source a cable, whichever end tells of it first."""

from __future__ import annotations

from typing import Any

from factories import at, finding

from schemas.findings import Finding, Subject
from streams.decisions.pause import PauseJudge

TOLERANCE_NS = 5_000_000_000
HOST = Subject(level="port", node_id="node-3", device="mlx5_6", port="1")
SWITCH = Subject(level="port", switch_id="leaf-0", port="Ethernet30")


def host_sends(seconds: float, subject: Subject = HOST, **values: Any) -> Finding:
    told = {"tx_pause_frames_per_s": 9000, "rx_pause_frames_per_s": 0, "limit_frames_per_s": 100, **values}
    return finding("pfc_pause_transmit", seconds, subject, values=told)


def switch_receives(seconds: float, peer: str | None = "node-3/mlx5_6/1") -> Finding:
    told = {"rx_pause_frames_per_s": 9000, "tx_pause_frames_per_s": 0, "limit_frames_per_s": 100, "peer": peer}
    return finding("pfc_pause", seconds, SWITCH, values=told)


def sources(*findings: Finding) -> list[tuple[str, str]]:
    """(component, level of who is named) of each verdict, taken one finding after the other."""
    judge, verdicts = PauseJudge(TOLERANCE_NS), []
    for one in findings:
        verdicts += judge.decide(one.event_time_ns)
        judge.take(one)
    verdicts += judge.decide(at(10_000))
    return [
        (verdict.component, "nobody" if verdict.culprit is None else "host" if verdict.culprit.node_id else "switch")
        for verdict in verdicts
    ]


def test_a_switch_that_is_read_seldom_adds_no_second_source_to_its_hosts() -> None:
    assert sources(host_sends(10), switch_receives(12)) == [("port:node-3/mlx5_6/1", "host")]
    assert sources(host_sends(10), switch_receives(60)) == [("port:node-3/mlx5_6/1", "host")]


def test_a_host_that_tells_later_than_its_switch_has_the_same_component() -> None:
    found = sources(switch_receives(10), host_sends(60))
    assert found == [("port:node-3/mlx5_6/1", "switch"), ("port:node-3/mlx5_6/1", "host")]


def test_another_cable_a_minute_later_is_another_source() -> None:
    other = switch_receives(70, peer="node-4/mlx5_0/1")
    assert sources(host_sends(10), other) == [("port:node-3/mlx5_6/1", "host"), ("port:node-4/mlx5_0/1", "switch")]


def test_a_switch_that_does_not_know_its_peer_is_named_by_its_own_port() -> None:
    assert sources(switch_receives(10, peer=None)) == [("port:leaf-0/None/Ethernet30", "switch")]


def test_a_port_that_is_stopped_itself_is_no_source() -> None:
    found = sources(host_sends(10, rx_pause_frames_per_s=5000))
    assert found == []

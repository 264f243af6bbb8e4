"""PCIe links of NICs: lanes that are missing, and what only looks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at, policy, position_of, without

from schemas.findings import Finding
from schemas.fleet import RulePolicy
from schemas.frames import FabricFrame
from streams.core.roster import Roster
from streams.detectors.nic_pcie_link import NicPcieLink
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Iterable


def frame(second: float, width: int | None, session: str = "s1", **columns: Any) -> FabricFrame:
    given = {"pcie_link_gen": (5,), "pcie_max_link_gen": (5,), "pcie_max_link_width": (16,)} | columns
    return FabricFrame(
        view="host",
        node_id="node-1",
        agent_session=session,
        seq=round(second),
        event_time_ns=at(second),
        device=("mlx5_0",),
        port=("1",),
        pcie_link_width=(width,),
        **given,
    )


def heard(frames: Iterable[FabricFrame], roster: Roster | None = None) -> list[Finding]:
    rule = NicPcieLink(SITE)
    return [finding for one in frames for finding in rule.on_frame(one, roster or Roster())]


def test_lost_lanes_are_told_at_the_second_sample_with_what_they_carried() -> None:
    more: dict[str, Any] = {"pci_bus_id": ("0000:1a:00.0",), "rate_gbps": (400.0,), "peer": ("leaf-3/Ethernet5",)}
    (finding,) = heard(frame(s, 16 if s < 5 else 8, **more) for s in range(20))
    assert (finding.kind, finding.severity, finding.state) == ("nic_pcie_link", "info", "open")
    assert (finding.event_time_ns, finding.onset_ns) == (at(6), at(5))
    assert (finding.subject.level, finding.subject.node_id, finding.subject.device) == ("port", "node-1", "mlx5_0")
    assert finding.values == {
        "link_width": 8,
        "max_link_width": 16,
        "link_gen": 5,
        "max_link_gen": 5,
        "gb_per_s": 31.504,
        "max_gb_per_s": 63.008,
        "gb_per_s_lost": 31.504,
        "rate_gbps": 400.0,
        "found_at_start": False,
        "pci_bus_id": "0000:1a:00.0",
        "view": "host",
        "peer": "leaf-3/Ethernet5",
    }
    assert "31.5 GB/s lost" in finding.explanation


@pytest.mark.parametrize("every_s", [1, 10, 60, 300])
def test_how_often_a_source_is_read_does_not_matter(every_s: int) -> None:
    (finding,) = heard(frame(every_s * n, 16 if n < 5 else 8) for n in range(10))
    assert finding.event_time_ns == at(6 * every_s)


def test_what_was_narrow_from_the_start_is_said_so_and_once() -> None:
    (finding,) = heard(frame(s, 8, "s1" if s < 50 else "s2") for s in range(100))
    assert finding.values["found_at_start"] is True


def test_it_is_cleared_a_minute_after_the_lanes_are_back() -> None:
    opened, cleared = heard(frame(s, 8 if 5 <= s < 20 else 16) for s in range(100))
    assert (cleared.state, cleared.finding_id, cleared.event_time_ns) == ("cleared", opened.finding_id, at(79))


@pytest.mark.parametrize("width", [63, 0, None])
def test_a_card_that_is_gone_or_not_read_changes_nothing(width: int | None) -> None:
    assert heard(frame(s, 16 if s < 5 else width) for s in range(100)) == []
    assert [f.state for f in heard(frame(s, 8 if s < 5 else width) for s in range(100))] == ["open"]


def test_one_misread_a_low_generation_and_an_unknown_maximum_are_no_missing_lanes() -> None:
    assert heard(frame(s, 8 if s % 3 == 0 else 16) for s in range(100)) == []
    assert heard(frame(s, 16, pcie_link_gen=(1,)) for s in range(20)) == []
    assert heard(frame(s, 8, pcie_max_link_width=(None,)) for s in range(20)) == []
    assert heard(frame(s, 8, pcie_max_link_width=None) for s in range(20)) == []
    assert heard(frame(s, 8, pcie_max_link_width=(8,)) for s in range(20)) == []


def test_without_a_generation_lanes_are_told_and_no_loss_is_made_up() -> None:
    (finding,) = heard(frame(s, 8, pcie_link_gen=None, pcie_max_link_gen=None) for s in range(20))
    assert (finding.values["link_width"], finding.values["gb_per_s_lost"]) == (8, None)


def test_a_site_sets_the_limit() -> None:
    roster = Roster()
    roster.policy = policy({"nic_pcie_link": RulePolicy(thresholds={"width_hits": 10})})
    (finding,) = heard((frame(s, 16 if s < 5 else 8) for s in range(20)), roster)
    assert finding.event_time_ns == at(14)


def test_the_engine_runs_it_unless_it_is_switched_off() -> None:
    off = Roster()
    off.policy = without("nic_pcie_link")
    for roster, expected in ((Roster(), ["nic_pcie_link"]), (off, [])):
        engine = TelemetryEngine(SITE, 0, roster)
        told = [frame(s, 8) for s in range(8)]
        records = [record for one in told for record in engine.on_record(one, position_of(one))]
        assert [record.kind for record in records if isinstance(record, Finding)] == expected

"""Xid and SXid codes: severity by catalogue, urgent where fatal at once, observed where not trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from factories import SITE, pci_of, xid_event

from streams.core.roster import Roster
from streams.detectors.xid import XidCodes

if TYPE_CHECKING:
    from schemas.events import KernelEvent
    from schemas.findings import Finding


def said(*events: KernelEvent) -> list[Finding]:
    rule = XidCodes(SITE)
    return [finding for event in events for finding in rule.on_event(event, Roster())]


@pytest.mark.parametrize(
    ("code", "severity", "urgent"),
    [
        (48, "critical", True),
        (79, "critical", True),
        (64, "critical", True),
        (63, "info", False),
        (92, "warning", False),
        (31, "info", False),
    ],
)
def test_the_catalogue_says_how_bad_a_code_is(code: int, severity: str, urgent: bool) -> None:
    (finding,) = said(xid_event(1, code))
    assert (finding.severity, finding.urgent, finding.values["code"]) == (severity, urgent, code)
    assert (finding.subject.level, finding.subject.pci_bus_id) == ("gpu", pci_of(0))


def test_an_unknown_code_is_only_observed() -> None:
    (finding,) = said(xid_event(1, 4242))
    assert (finding.severity, finding.urgent) == ("info", False)
    assert (finding.values["catalogue_severity"], finding.values["suggested_action"]) == ("unknown", "observe")


def test_a_line_that_a_process_may_have_written_is_only_observed() -> None:
    (finding,) = said(xid_event(1, 79, trusted=False))
    assert (finding.severity, finding.urgent, finding.values["trusted"]) == ("info", False, False)
    assert "user process" in finding.explanation


def test_an_untrusted_line_does_not_hide_the_trusted_one_that_follows() -> None:
    findings = said(xid_event(1, 79, trusted=False), xid_event(2, 79))
    assert [finding.urgent for finding in findings] == [False, True]


def test_equal_codes_within_a_minute_are_one_episode_and_it_lasts_while_they_come() -> None:
    assert len(said(*(xid_event(second, 94) for second in range(0, 300, 50)))) == 1
    assert len(said(xid_event(0, 94), xid_event(61, 94))) == 2


def test_another_code_another_gpu_and_another_node_are_episodes_of_their_own() -> None:
    events = [xid_event(1, 94), xid_event(1, 95), xid_event(1, 94, gpu=1), xid_event(1, 94, node_id="node-2")]
    assert len(said(*events)) == 4


def test_an_address_that_is_not_known_makes_it_the_nodes_matter() -> None:
    (finding,) = said(xid_event(1, 79, gpu=None))
    assert (finding.subject.level, finding.subject.node_id) == ("node", "node-1")


@pytest.mark.parametrize(("code", "urgent"), [(22013, False), (10003, True)])
def test_an_sxid_is_the_switchs_and_urgent_where_it_is_fatal(code: int, urgent: bool) -> None:
    (finding,) = said(xid_event(1, code, source="sxid", link=44))
    assert (finding.kind, finding.subject.level, finding.subject.link) == ("sxid", "switch", 44)
    assert finding.urgent is urgent


def test_lines_without_a_code_and_of_other_sources_are_not_its_business() -> None:
    assert said(xid_event(1, None), xid_event(2, 7, source="nic"), xid_event(3, 7, source="aer")) == []


def test_a_raw_line_is_kept_short() -> None:
    (finding,) = said(xid_event(1, 79, raw="x" * 2000))
    assert len(str(finding.values["raw"])) == 300


def test_the_id_of_an_episode_depends_on_what_happened_alone() -> None:
    (first,), (second,), (later,) = said(xid_event(1, 79)), said(xid_event(1, 79, seq=77)), said(xid_event(2, 79))
    assert first.finding_id == second.finding_id != later.finding_id

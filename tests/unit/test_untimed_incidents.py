"""Nodes of jobs without step timings: one incident each, never a command, and one that a device's code takes over."""

from __future__ import annotations

from typing import Any

import pytest
from factories import JOB, SITE, at, finding, job, pci_of, placement, uuid_of

from schemas.findings import Finding, ProgressMark, Subject
from schemas.remediation import Command, Incident
from streams.core.roster import Roster
from streams.core.snapshot_codec import pack, unpack
from streams.core.untimed import UntimedJobs
from streams.engines.decisions import DecisionsEngine

ODD = Subject(level="node", node_id="node-1")


def roster_of(*, step_timings: bool = False, **fields: Any) -> Roster:
    roster = Roster()
    roster.take(job(8, step_timings=step_timings, **fields))
    for node in range(4):
        roster.take(placement([2 * node, 2 * node + 1], node_id=f"node-{node}"))
    return roster


def peers(seconds: float, cause_class: str = "host", state: str = "open") -> Finding:
    values = {"metric": "cpu_busy_ratio", "cause_class": cause_class}
    return finding("device_peers", seconds, ODD, state=state, onset_s=10.0, values=values, explanation="busy")


def xid(seconds: float, code: int, *, urgent: bool = False) -> Finding:
    subject = Subject(level="gpu", node_id="node-1", pci_bus_id=pci_of(0))
    return finding("xid", seconds, subject, urgent=urgent, values={"code": code, "trusted": True})


def decided(roster: Roster, *findings: Finding) -> tuple[list[Incident], list[Command]]:
    """What is decided, with a restart after each finding."""
    engine, said = DecisionsEngine(SITE, roster), []
    for one in findings:
        said += engine.on_record(one)
        said += engine.on_record(
            ProgressMark(site_id=SITE, role="telemetry", partition=0, mark_ns=one.event_time_ns + 20_000_000_000)
        )
        packed = pack(engine.snapshot())
        engine = DecisionsEngine(SITE, roster)
        engine.restore(unpack(packed.chunks, packed.digest), {})
    said += engine.flush()
    return [r for r in said if isinstance(r, Incident)], [r for r in said if isinstance(r, Command)]


def test_a_node_that_is_out_is_an_incident_of_its_class_without_a_command_until_it_is_like_the_others() -> None:
    (opened, resolved), commands = decided(roster_of(), peers(130), peers(300, state="cleared"))
    assert (opened.state, opened.cause_class, opened.job_id) == ("open", "host", JOB)
    assert opened.culprit is not None
    assert (opened.culprit.level, opened.culprit.node_id) == ("node", "node-1")
    assert (resolved.state, resolved.incident_id) == ("resolved", opened.incident_id)
    assert commands == []


def test_heartbeats_that_stay_away_alone_are_no_incident() -> None:
    assert decided(roster_of(), finding("node_silent", 40, ODD, onset_s=10.0)) == ([], [])


def test_a_class_that_nobody_knows_is_a_slow_node() -> None:
    (opened,), _ = decided(roster_of(), peers(130, "something newer"))
    assert opened.cause_class == "compute"


def test_a_job_that_reports_its_steps_or_has_ended_makes_no_incident_of_counters() -> None:
    assert decided(roster_of(step_timings=True), peers(130)) == ([], [])
    assert decided(roster_of(state="ended"), peers(130)) == ([], [])


def test_what_comes_later_of_the_node_joins_and_the_last_to_clear_ends_it() -> None:
    first = peers(40, "node_lost").model_copy(update={"finding_id": "first"})
    over = first.model_copy(update={"state": "cleared", "event_time_ns": at(140)})
    told, _ = decided(roster_of(), first, peers(130), over, peers(300, state="cleared"))
    assert [(incident.state, incident.event_time_ns) for incident in told] == [("open", at(40)), ("resolved", at(300))]


def test_a_code_that_came_first_has_the_only_incident() -> None:
    told, commands = decided(roster_of(), xid(20, 79, urgent=True), peers(130, "gpu_stalled"))
    assert {incident.cause_class for incident in told} == {"gpu_lost"}
    assert len({incident.incident_id for incident in told}) == 1
    assert [command.kind for command in commands] == ["cordon_node", "restart_job"]


def test_a_code_that_comes_later_takes_the_incident_over_and_names_the_gpu() -> None:
    (counters, code), commands = decided(roster_of(), peers(130, "gpu_stalled"), xid(160, 79, urgent=True))
    assert counters.incident_id == code.incident_id
    assert (counters.cause_class, code.cause_class) == ("gpu_stalled", "gpu_lost")
    assert code.culprit is not None
    assert (code.culprit.level, code.culprit.gpu_uuid) == ("gpu", uuid_of("node-1", 0))
    assert [command.kind for command in commands] == ["cordon_node", "restart_job"]


@pytest.mark.parametrize("code", [13, 31])
def test_a_code_of_the_application_adds_no_command(code: int) -> None:
    told, commands = decided(roster_of(), peers(130, "gpu_stalled"), xid(160, code))
    assert ([incident.cause_class for incident in told], commands) == (["gpu_stalled"], [])


def test_seats_are_of_the_newest_epoch_and_name_the_jobs_devices() -> None:
    roster, jobs = roster_of(), UntimedJobs()
    seats = jobs.on("node-1", roster)
    assert seats is not None
    assert (seats.job_id, seats.holds(uuid_of("node-1", 0)), seats.holds(uuid_of("node-1", 7))) == (JOB, True, False)
    roster.take(job(2, epoch=1, step_timings=False))
    roster.take(placement([0, 1], node_id="node-0", epoch=1))
    assert (jobs.on("node-1", roster), jobs.on(None, roster)) == (None, None)
    assert jobs.on("node-0", roster) is not None

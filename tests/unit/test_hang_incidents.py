"""A job that hangs becomes one incident: nobody's at first, then whoever the dumps or the evidence around them name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factories import JOB, SITE, at, finding, job, pci_of, placement, uuid_of

from schemas.codec import encode
from schemas.findings import Finding, ProgressMark, Subject
from schemas.remediation import Command, Incident
from streams.core.roster import Roster
from streams.core.snapshot_codec import pack, unpack
from streams.engines.decisions import DecisionsEngine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.base import Record

ONSET_S = 100.0
SUSPECTED_S = 117.0
VERDICT_S = 120.0
JOB_SUBJECT = Subject(level="job", job_id=JOB)


@pytest.fixture
def roster() -> Roster:
    roster = Roster()
    roster.take(job(8))
    for node in range(2):
        roster.take(placement(range(4 * node, 4 * node + 4), node_id=f"node-{node}"))
    return roster


def of_job(kind: str, seconds: float, subject: Subject = JOB_SUBJECT, **fields: Any) -> Finding:
    return finding(kind, seconds, subject, onset_s=ONSET_S, job_id=JOB, epoch=0, explanation=kind, **fields)


SUSPICION = of_job("hang_suspected", SUSPECTED_S, urgent=True)
OVER = of_job("hang_suspected", 200.0, urgent=True, state="cleared")


def named(rank: int, cause: str = "not_entered") -> Finding:
    subject = Subject(
        level="rank",
        job_id=JOB,
        rank=rank,
        node_id=f"node-{rank // 4}",
        gpu_uuid=uuid_of(f"node-{rank // 4}", rank % 4),
        pci_bus_id=pci_of(rank % 4),
    )
    return of_job("hang", VERDICT_S, subject, values={"cause": cause, "stuck_ranks": [0, 1, 2, 3]})


def unplaced(ranks: list[int], cause: str = "transport") -> Finding:
    return of_job("hang_unplaced", VERDICT_S, values={"cause": cause, "stuck_ranks": ranks})


def xid(seconds: float, rank: int, code: int = 79, *, urgent: bool = True) -> Finding:
    subject = Subject(level="gpu", node_id=f"node-{rank // 4}", pci_bus_id=pci_of(rank % 4))
    return finding("xid", seconds, subject, urgent=urgent, values={"code": code, "trusted": True})


def port(seconds: float, node_id: str) -> Finding:
    subject = Subject(level="port", node_id=node_id, device="mlx5_0", port="1")
    return finding("symbol_error", seconds, subject)


def decided(roster: Roster, findings: Iterable[Finding], until_s: float = 400.0) -> list[Record]:
    engine = DecisionsEngine(SITE, roster)
    said: list[Record] = []
    for one in findings:
        said += engine.on_record(one)
        # A restart between any two changes nothing; what is held comes again.
        again = DecisionsEngine(SITE, roster)
        packed = pack(engine.snapshot())
        again.restore(unpack(packed.chunks, packed.digest), {})
        for held in engine._settled.held():
            again.on_record(held.record)
        engine = again
    said += engine.on_record(ProgressMark(site_id=SITE, role="jobs", partition=0, mark_ns=at(until_s)))
    return said


def incidents(said: list[Record]) -> list[Incident]:
    return [record for record in said if isinstance(record, Incident)]


def commands(said: list[Record]) -> list[tuple[str, str, str]]:
    return [(c.kind, c.target.level, c.target.key()) for c in said if isinstance(c, Command)]


def test_a_suspicion_asks_for_evidence_at_once_and_blames_nobody(roster: Roster) -> None:
    said = DecisionsEngine(SITE, roster).on_record(SUSPICION)
    (incident,) = incidents(said)
    assert (incident.state, incident.cause_class, incident.culprit) == ("open", "hang", None)
    assert commands(said) == [("collect_evidence", "job", JOB)]
    (command,) = (record for record in said if isinstance(record, Command))
    assert command.mode == "observe"
    assert command.decided_at_ns == at(SUSPECTED_S)


@pytest.mark.parametrize(
    ("cause", "cause_class", "kind"),
    [("not_entered", "hang_rank", "collect_evidence"), ("hardware", "hang_device", "run_preflight")],
)
def test_a_named_rank_makes_it_the_incident_of_its_device(
    roster: Roster, cause: str, cause_class: str, kind: str
) -> None:
    said = decided(roster, [SUSPICION, named(5, cause)])
    first, last = incidents(said)
    assert first.incident_id == last.incident_id
    assert last.cause_class == cause_class
    assert last.culprit is not None
    assert (last.culprit.level, last.culprit.rank, last.culprit.gpu_uuid) == ("gpu", 5, "GPU-node-1-1")
    assert set(last.findings) == {SUSPICION.finding_id, named(5).finding_id}
    assert (kind, "node", "node-1") in commands(said) or cause == "not_entered"


def test_a_mismatch_costs_nobody_anything(roster: Roster) -> None:
    said = decided(roster, [SUSPICION, named(5, "inconsistent")])
    assert incidents(said)[-1].cause_class == "hang_mismatch"
    assert commands(said) == [("collect_evidence", "job", JOB)]


def test_several_ranks_are_one_culprit(roster: Roster) -> None:
    both = of_job(
        "hang",
        VERDICT_S,
        Subject(level="rank_group", job_id=JOB, ranks=(1, 6)),
        values={"cause": "not_entered"},
    )
    last = incidents(decided(roster, [SUSPICION, both]))[-1]
    assert last.culprit is not None
    assert last.culprit.ranks == (1, 6)


def test_a_device_that_has_an_incident_explains_the_hang_of_its_rank(roster: Roster) -> None:
    said = decided(roster, [xid(99, 5), SUSPICION, named(5, "hardware")])
    device, hang, hang_over, device_again = incidents(said)
    assert (device.cause_class, hang.cause_class) == ("gpu_lost", "hang")
    assert (hang_over.incident_id, hang_over.state) == (hang.incident_id, "resolved")
    assert device.incident_id in hang_over.summary
    assert device_again.incident_id == device.incident_id
    assert set(device_again.suppressed) == {SUSPICION.finding_id, named(5).finding_id}
    assert [kind for kind, _, _ in commands(said)] == ["cordon_node", "restart_job", "collect_evidence"]


def test_a_fatal_code_that_comes_after_the_verdict_joins_its_incident(roster: Roster) -> None:
    engine = DecisionsEngine(SITE, roster)
    said = [*engine.on_record(SUSPICION), *engine.on_record(named(5))]
    said += engine.on_record(ProgressMark(site_id=SITE, role="jobs", partition=0, mark_ns=at(140)))
    said += engine.on_record(xid(141, 5))
    assert len({incident.incident_id for incident in incidents(said)}) == 1
    last = incidents(said)[-1]
    assert last.cause_class == "gpu_lost"
    assert last.culprit is not None
    assert last.culprit.rank == 5
    # The job was to be restarted for its hang already.
    assert commands(said)[-2:] == [("restart_job", "job", JOB), ("cordon_node", "node", "node-1")]


def test_one_broken_device_among_the_stuck_ranks_explains_what_the_dumps_do_not(roster: Roster) -> None:
    said = decided(roster, [xid(99, 5), SUSPICION, unplaced([4, 5, 6, 7])])
    assert [i.state for i in incidents(said)] == ["open", "open", "resolved", "open"]
    assert incidents(said)[-1].cause_class == "gpu_lost"


def test_two_broken_devices_explain_nothing(roster: Roster) -> None:
    said = decided(roster, [xid(99, 5), xid(99, 6), SUSPICION, unplaced([4, 5, 6, 7])])
    last = incidents(said)[-1]
    assert (last.cause_class, last.culprit, last.state) == ("hang_network", None, "open")


def test_one_cable_in_trouble_between_the_stuck_ranks_is_the_culprit(roster: Roster) -> None:
    said = decided(roster, [port(98, "node-1"), SUSPICION, unplaced([1, 5])])
    last = incidents(said)[-1]
    assert last.cause_class == "link"
    assert last.culprit is not None
    assert (last.culprit.level, last.culprit.node_id, last.culprit.device) == ("port", "node-1", "mlx5_0")
    assert commands(said)[-1] == ("network_action", "port", "node-1")
    assert len({incident.incident_id for incident in incidents(said)}) == 1


def test_a_node_that_fell_silent_is_the_culprit_where_the_dumps_name_nobody(roster: Roster) -> None:
    silent = finding("node_silent", 110, Subject(level="node", node_id="node-0"))
    last = incidents(decided(roster, [silent, SUSPICION, unplaced([0, 4])]))[-1]
    assert last.culprit is not None
    assert last.culprit.node_id == "node-0"


def test_evidence_of_other_nodes_and_other_times_names_nobody(roster: Roster) -> None:
    silent = finding("node_silent", 110, Subject(level="node", node_id="node-7"))
    early = finding("node_silent", 10, Subject(level="node", node_id="node-0"), finding_id="early")
    last = incidents(decided(roster, [early, silent, SUSPICION, unplaced([0, 4])]))[-1]
    assert (last.cause_class, last.culprit) == ("hang_network", None)


def test_what_cannot_be_decided_stays_nobodys(roster: Roster) -> None:
    undecided = of_job("hang_undecided", VERDICT_S, severity="info", values={"cause": "insufficient"})
    last = incidents(decided(roster, [SUSPICION, undecided]))[-1]
    assert (last.cause_class, last.culprit, last.state) == ("hang", None, "open")
    assert undecided.finding_id in last.findings


def test_a_verdict_that_is_taken_back_names_nobody_until_the_next(roster: Roster) -> None:
    first = named(5)
    back = first.model_copy(update={"state": "cleared", "event_time_ns": at(VERDICT_S + 1)})
    second = named(2).model_copy(update={"event_time_ns": at(VERDICT_S + 2)})
    last = incidents(decided(roster, [SUSPICION, first, back, second]))[-1]
    assert last.culprit is not None
    assert last.culprit.rank == 2


def test_the_incident_is_over_when_the_job_goes_on(roster: Roster) -> None:
    said = decided(roster, [SUSPICION, named(5), OVER])
    states = [(i.state, i.cause_class) for i in incidents(said)]
    assert states[-1][0] == "resolved"
    assert len({i.incident_id for i in incidents(said)}) == 1


def test_a_broken_device_is_not_well_again_because_the_job_goes_on(roster: Roster) -> None:
    engine = DecisionsEngine(SITE, roster)
    said: list[Record] = []
    for one in (xid(99, 5), SUSPICION, named(5)):
        said += engine.on_record(one)
    said += engine.on_record(ProgressMark(site_id=SITE, role="jobs", partition=0, mark_ns=at(190)))
    said += engine.on_record(OVER)
    assert [i.state for i in incidents(said) if i.cause_class == "gpu_lost"] == ["open", "open"]


def test_the_same_findings_give_the_same_bytes(roster: Roster) -> None:
    stream = [port(98, "node-1"), SUSPICION, unplaced([1, 5]), OVER]
    assert [encode(r) for r in decided(roster, stream)] == [encode(r) for r in decided(roster, stream)]

"""NVSentinel's health events: which become kernel events, which findings, what clears them, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, START_NS
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from agents.importers.nvsentinel import HealthEvents, Refused
from paceline.cli import app
from schemas.archive import ArchiveLine, read_archive
from schemas.archive_blocks import BlockWriter
from schemas.codec import encode
from schemas.events import KernelEvent
from schemas.findings import Finding
from schemas.remediation import Command, Incident
from streams.core.roster import Roster
from streams.decisions.signs import Signs
from streams.detectors.xid import XidCodes
from streams.replay import Problems, replay

if TYPE_CHECKING:
    from pathlib import Path

    from schemas.base import Record

UUID = "GPU-455d8f70-2051-db6c-0430-ffc457bff834"
GPU = [{"entityType": "PCI", "entityValue": "0000:1B:00.0"}, {"entityType": "GPU_UUID", "entityValue": UUID}]
FALLEN = "NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, name=python, GPU has fallen off the bus."
TIME = "2025-10-09T08:53:20.123456789Z"
TIME_NS = START_NS + 123_456_789


def event(**fields: Any) -> dict[str, Any]:
    """An unhealthy event of Xid 79, as the syslog monitor says it."""
    return {
        "version": 1,
        "agent": "syslog-health-monitor",
        "componentClass": "GPU",
        "checkName": "SysLogsXIDError",
        "isFatal": True,
        "isHealthy": False,
        "message": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS; Resolution: RESTART_BM",
        "recommendedAction": 24,
        "errorCode": ["79"],
        "entitiesImpacted": GPU,
        "metadata": {"JOURNAL_MESSAGE": FALLEN},
        "generatedTimestamp": TIME,
        "nodeName": "node-1",
        **fields,
    }


def thermal(**fields: Any) -> dict[str, Any]:
    """An unhealthy event of DCGM's thermal watch."""
    named = [{"entityType": "GPU", "entityValue": "0"}, *GPU]
    return event(
        **{
            "agent": "gpu-health-monitor",
            "checkName": "GpuThermalWatch",
            "errorCode": ["DCGM_FR_CLOCK_THROTTLE_THERMAL"],
            "isFatal": False,
            "recommendedAction": "NONE",
            "metadata": {},
            "entitiesImpacted": named,
            **fields,
        }
    )


def reader() -> HealthEvents:
    return HealthEvents(SITE, START_NS + 10**12)


def taken(*values: Any, events: HealthEvents | None = None) -> list[Record | Refused]:
    events = events or reader()
    return [got for value in values for got in events.feed(value if isinstance(value, str) else json.dumps(value))]


def kernel_events(*values: Any) -> list[KernelEvent]:
    return [record for record in taken(*values) if isinstance(record, KernelEvent)]


def findings(*values: Any) -> list[Finding]:
    return [record for record in taken(*values) if isinstance(record, Finding)]


def reason(value: Any) -> str:
    [refused] = taken(value)
    assert isinstance(refused, Refused)
    return refused.reason


# --- Codes ------------------------------------------------------------------------------------------------------------


def test_a_code_becomes_the_event_that_the_nodes_own_agent_would_publish() -> None:
    [record] = kernel_events(event())
    assert (record.node_id, record.source, record.code, record.event_time_ns) == ("node-1", "xid", 79, TIME_NS)
    assert (record.pci_bus_id, record.gpu_uuid, record.severity) == ("0000:1b:00", UUID, "fatal")
    assert (record.pid, record.process, record.trusted, record.inferred) == (4242, "python", True, False)
    assert record.raw == FALLEN


def test_a_fatal_code_is_evidence_that_suffices_and_what_nvsentinel_thinks_of_another_is_none() -> None:
    def signs_of(value: dict[str, Any]) -> Signs:
        signs = Signs()
        codes = XidCodes(SITE)
        for record in kernel_events(value):
            for finding in codes.on_event(record, Roster()):
                signs.take(finding)
        return signs

    assert signs_of(event()).is_fatal
    # A code of the application, which the monitor calls fatal and wants the machine rebooted for.
    application = event(errorCode=["31"], metadata={}, isFatal=True, recommendedAction="RESTART_BM")
    assert signs_of(application).kinds == {"xid"}
    assert not signs_of(application).is_fatal


def test_the_switchs_codes_and_the_gpus_are_told_apart_by_the_check() -> None:
    entities = [
        {"entityType": kind, "entityValue": value}
        for kind, value in (("NVSWITCH", "2"), ("PCI", "0000:c1:00.0"), ("NVLINK", "30"), ("GPU", "1"))
    ]
    [switch] = kernel_events(
        event(checkName="SysLogsSXIDError", errorCode=["12028"], isFatal=False, entitiesImpacted=entities, metadata={})
    )
    assert (switch.source, switch.code, switch.reported_severity) == ("sxid", 12028, "non_fatal")
    assert (switch.switch_index, switch.link, switch.pci_bus_id, switch.gpu_uuid) == (2, 30, "0000:c1:00", None)
    for check in ("SysLogsXIDError", "GpuXidError", "XIDError"):
        assert [record.source for record in kernel_events(event(checkName=check))] == ["xid"], check


def test_a_gpu_that_fell_off_the_bus_without_a_code_has_that_code() -> None:
    line = "NVRM: The NVIDIA GPU 0000:b3:00.0 fell off the bus"
    [record] = kernel_events(
        event(checkName="SysLogsGPUFallenOff", errorCode=["GPU_FALLEN_OFF_BUS"], metadata={"JOURNAL_MESSAGE": line})
    )
    assert (record.code, record.inferred, record.trusted) == (79, True, True)


def test_what_somebody_made_of_several_lines_is_no_line_of_the_kernel() -> None:
    derived = event(agent="health-events-analyzer", checkName="RepeatedXIDErrorOnSameGPU", metadata={})
    assert kernel_events(derived) == []
    assert [finding.kind for finding in findings(derived)] == ["health_event"]


def test_parts_of_codes_are_read_and_several_codes_are_several_events() -> None:
    records = kernel_events(event(errorCode=["145.RLW_SRC_TRACK", "48"], metadata={}))
    assert [record.code for record in records] == [145, 48]
    assert records[0].kmsg_seq < records[1].kmsg_seq


@pytest.mark.parametrize(
    "line",
    ["[6085126.134786] NVRM: Xid (PCI:0000:1b:00): 79, pid=1", "user said: NVRM: Xid (PCI:0000:1b:00): 79, pid=1"],
)
def test_a_line_that_the_kernel_does_not_write_like_that_is_not_trusted(line: str) -> None:
    [record] = kernel_events(event(metadata={"JOURNAL_MESSAGE": line}))
    assert not record.trusted


@pytest.mark.parametrize(
    "fields",
    [
        {"processingStrategy": "STORE_ONLY"},
        {"processingStrategy": 2},
        {"quarantineOverrides": {"force": False, "skip": True}},
    ],
)
def test_what_the_site_has_put_aside_there_acts_on_nothing_here(fields: dict[str, Any]) -> None:
    [record] = kernel_events(event(**fields))
    assert not record.trusted
    assert [finding.severity for finding in findings(event(**fields))] == ["info"]
    [other] = kernel_events(event(processingStrategy=1, quarantineOverrides={"force": True, "skip": False}))
    assert other.trusted


def test_the_same_events_have_the_same_records_again() -> None:
    def bytes_of(values: list[Any]) -> list[bytes]:
        return [encode(record) for record in taken(*values) if not isinstance(record, Refused)]

    values = [event(), thermal(), event(errorCode=["48"], metadata={})]
    assert bytes_of(values) == bytes_of(values)
    first, second = kernel_events(event(), event(errorCode=["48"], metadata={}))
    assert first.kmsg_seq != second.kmsg_seq, "of one microsecond"


# --- Findings ---------------------------------------------------------------------------------------------------------


def test_everything_that_is_unhealthy_is_a_finding_that_nothing_counts_as_evidence() -> None:
    [finding] = findings(thermal())
    assert (finding.kind, finding.rule, finding.state, finding.urgent) == ("health_event", "nvsentinel", "open", False)
    assert (finding.subject.level, finding.subject.gpu_uuid, finding.severity) == ("gpu", UUID, "info")
    assert finding.values["error_code"] == "DCGM_FR_CLOCK_THROTTLE_THERMAL"
    assert finding.values["recommended_action"] == "NONE"
    [with_code] = findings(event())
    assert (with_code.severity, with_code.urgent, with_code.values["recommended_action"]) == (
        "warning",
        False,
        "RESTART_BM",
    )


def test_healthy_clears_its_own_check_and_device_and_nothing_else() -> None:
    other_gpu = [{"entityType": "GPU", "entityValue": "1"}]
    opened = [thermal(), thermal(entitiesImpacted=other_gpu), thermal(checkName="GpuPcieWatch"), thermal(nodeName="n2")]
    healthy = thermal(isHealthy=True, errorCode=[], generatedTimestamp="2025-10-09T08:54:00Z")
    stated = findings(*opened, healthy)
    assert [finding.state for finding in stated] == ["open"] * 4 + ["cleared"]
    assert stated[-1].finding_id == stated[0].finding_id
    assert stated[-1].event_time_ns > stated[0].event_time_ns
    assert findings(*opened, {**healthy, "entitiesImpacted": []})[-2:] != [], "without entities: the check on the node"
    assert len(findings(*opened, {**healthy, "entitiesImpacted": []})) == 6


def test_healthy_of_one_code_leaves_the_others_and_a_device_does_not_clear_its_node() -> None:
    two = thermal(errorCode=["A", "B"])
    assert [f.values["error_code"] for f in findings(two, thermal(isHealthy=True, errorCode=["B"]))] == ["A", "B", "B"]
    of_node = thermal(entitiesImpacted=[], errorCode=["A"])
    assert len(findings(of_node, thermal(isHealthy=True, errorCode=[]))) == 1


def test_healthy_of_what_was_never_unhealthy_says_nothing_and_a_repeat_neither() -> None:
    events = reader()
    assert taken(thermal(isHealthy=True), thermal(), thermal(), events=events)[1:] == []
    assert (events.counts["healthy"], events.counts["opened"], events.counts["repeated"]) == (1, 1, 1)


def test_an_index_is_no_device() -> None:
    [finding] = findings(thermal(entitiesImpacted=[{"entityType": "GPU", "entityValue": "3"}]))
    assert (finding.subject.level, finding.subject.gpu_uuid) == ("node", None)
    [older] = findings(thermal(entitiesImpacted=[{"entityType": "GPU", "entityValue": UUID}]))
    assert older.subject.gpu_uuid == UUID


# --- Wrappings and refusals -------------------------------------------------------------------------------------------


def test_an_event_is_taken_in_every_wrapping() -> None:
    cloud = {
        "specversion": "1.0",
        "type": "com.nvidia.nvsentinel.health.v1",
        "source": "nvsentinel://c/healthevents",
        "id": "1",
        "time": TIME,
        "data": {"metadata": {"cluster": "c"}, "healthEvent": event()},
    }
    lowered = {name.lower(): value for name, value in event().items()}
    lowered["entitiesimpacted"] = [{name.lower(): value for name, value in entity.items()} for entity in GPU]
    lowered["generatedtimestamp"] = {"seconds": TIME_NS // 10**9, "nanos": TIME_NS % 10**9}
    plain = kernel_events(event())
    for wrapped in (cloud, {"version": 1, "events": [event()]}, {"_id": "x", "healthevent": lowered}):
        assert kernel_events(wrapped) == plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("not json", "no JSON"),
        ("[1]", "no object"),
        ({"a": 1}, "no checkName"),
        (event(nodeName=""), "no nodeName"),
        (event(version=2), "version '2' of the health event is not known"),
        (event(generatedTimestamp=None), "generatedTimestamp: 'None' is no time"),
        (event(generatedTimestamp="2025-13-01T00:00:00Z"), "is no time"),
        (event(generatedTimestamp="2099-01-01T00:00:00Z"), "ahead of this clock"),
        (event(isFatal="yes"), "isfatal"),
        (event(errorCode=["ROW_REMAP"]), "'ROW_REMAP' is no code of the kernel"),
        (event(errorCode=[]), "without an errorCode"),
        (event(errorCode=["31"]), "errorCode says 31, and the line from the journal Xid 79"),
        (event(recommendedAction=[1]), "recommendedAction"),
        (event(entitiesImpacted=["GPU"]), "entitiesimpacted"),
        ({"specversion": "1.0", "type": "com.example", "data": {}}, "a CloudEvent of type 'com.example'"),
        ({"specversion": "1.0", "type": "com.nvidia.nvsentinel.health.v1", "data": {}}, "without data.healthEvent"),
    ],
)
def test_what_is_not_understood_is_refused_with_a_reason(value: Any, expected: str) -> None:
    assert expected in reason(value)


def test_one_bad_event_of_a_batch_costs_itself_alone() -> None:
    got = taken({"events": [event(nodeName=""), event()]})
    assert [type(one).__name__ for one in got] == ["Refused", "KernelEvent", "Finding"]


def test_an_action_that_is_new_there_stays_a_number_here() -> None:
    assert findings(event(recommendedAction=77))[0].values["recommended_action"] == "77"


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(event())),
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.lists(st.text(max_size=5))),
    )
)
def test_nothing_that_can_be_said_ends_the_reader(fields: dict[str, Any]) -> None:
    for got in taken({**event(), **fields}):
        if not isinstance(got, Refused):
            encode(got)


# --- The command ------------------------------------------------------------------------------------------------------


def test_a_file_becomes_an_archive_and_what_is_refused_is_kept_with_its_reason(tmp_path: Path) -> None:
    source, archive, dead = tmp_path / "events.jsonl", tmp_path / "a.jsonl.zst", tmp_path / "dead.jsonl"
    source.write_text("\n".join(json.dumps(value) for value in (event(), {"a": 1}, thermal())) + "\n")
    run = CliRunner().invoke(
        app, ["import", "nvsentinel", str(source), "-o", str(archive), "--site", SITE, "--dead-letters", str(dead)]
    )
    assert run.exit_code == 0, run.output
    assert "events=2 kernel_events=1 opened=2 refused=1" in run.output
    topics = [line.topic for line in read_archive(archive) if isinstance(line, ArchiveLine)]
    assert topics == ["paceline.kernel-events.v1", "paceline.findings.v1", "paceline.findings.v1"]
    assert json.loads(dead.read_text()) == {"line": 2, "reason": "no checkName", "value": {"a": 1}}


def test_a_replay_of_the_archive_answers_the_fatal_code_and_nothing_else(tmp_path: Path) -> None:
    def said(*values: dict[str, Any]) -> list[Record]:
        source, archive = tmp_path / "events.jsonl", tmp_path / "a.jsonl"
        source.write_text("\n".join(json.dumps(value) for value in values))
        CliRunner().invoke(app, ["import", "nvsentinel", str(source), "-o", str(archive), "--site", SITE])
        return list(replay(read_archive(archive), SITE, Problems()))

    fatal = said(event())
    assert [record.cause_class for record in fatal if isinstance(record, Incident)] == ["gpu_lost"]
    assert [(record.kind, record.mode) for record in fatal if isinstance(record, Command)][:1] == [
        ("cordon_node", "observe")
    ]
    forged = event(metadata={"JOURNAL_MESSAGE": "logger: NVRM: Xid (PCI:0000:1b:00): 79"})
    wanted = thermal(isFatal=True, recommendedAction="REPLACE_VM")
    for quiet in (forged, wanted, event(processingStrategy="STORE_ONLY")):
        assert [record for record in said(quiet) if isinstance(record, Incident | Command)] == []


@pytest.mark.parametrize("text", ["", '{"a": 1}\n'])
def test_an_archive_is_not_replaced_by_one_of_no_event(tmp_path: Path, text: str) -> None:
    source, archive = tmp_path / "events.jsonl", tmp_path / "a.jsonl"
    source.write_text(text)
    archive.write_text('{"topic": "what was there"}')
    run = CliRunner().invoke(app, ["import", "nvsentinel", str(source), "-o", str(archive)])
    assert (run.exit_code, f"{archive} is not written" in run.output) == (2, True)
    assert archive.read_text() == '{"topic": "what was there"}'


@pytest.mark.parametrize(
    "command", ["nvsentinel in", "steps other in", "op-trace in --layout x", "op-trace x --layout in"]
)
def test_an_archive_does_not_replace_what_it_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps(event())
    (tmp_path / "in").write_text(text)
    run = CliRunner().invoke(app, ["import", *command.split(), "-o", "./in"])
    assert (run.exit_code, "is what is to be imported" in run.output) == (2, True)
    assert (tmp_path / "in").read_text() == text


@pytest.mark.parametrize(
    "command",
    [
        "nvsentinel in -o rec",
        "nvsentinel in -o new --dead-letters rec",
        "steps in -o rec",
        "op-trace in --layout x -o rec",
    ],
)
def test_what_was_recorded_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text(json.dumps(event()))
    with (tmp_path / "rec").open("wb") as stream:
        BlockWriter(stream, {}).end({})
    before = (tmp_path / "rec").read_bytes()
    run = CliRunner().invoke(app, ["import", *command.split()])
    assert (run.exit_code, "rec is there already, and was recorded" in run.output) == (2, True)
    assert (tmp_path / "rec").read_bytes() == before


def test_what_is_no_archive_is_not_written_over(tmp_path: Path) -> None:
    source, notes = tmp_path / "events.jsonl", tmp_path / "notes.txt"
    source.write_text(json.dumps(event()) + "\n")
    notes.write_text("look at node-7")
    run = CliRunner().invoke(app, ["import", "nvsentinel", str(source), "-o", str(notes)])
    assert (run.exit_code, "is there already, and is no archive" in run.output) == (2, True)
    assert notes.read_text() == "look at node-7"
    for _ in range(2):
        archive = tmp_path / "a.jsonl.zst"
        assert CliRunner().invoke(app, ["import", "nvsentinel", str(source), "-o", str(archive)]).exit_code == 0


def test_a_file_of_which_nothing_is_taken_is_bad_input(tmp_path: Path) -> None:
    source = tmp_path / "events.jsonl"
    source.write_text('{"a": 1}\n')
    run = CliRunner().invoke(app, ["import", "nvsentinel", str(source), "-o", str(tmp_path / "a.jsonl")])
    assert run.exit_code == 2
    assert "line 1: no checkName" in run.output
    assert not (tmp_path / "a.jsonl").exists()
    both = CliRunner().invoke(app, ["import", "nvsentinel", str(source)])
    assert both.exit_code == 2
    assert "either --output or --bootstrap" in both.output
    nameless = CliRunner().invoke(app, ["import", "nvsentinel", "x", "-o", "y", "--site", ""])
    assert (nameless.exit_code, "--site is a name" in nameless.output) == (2, True)

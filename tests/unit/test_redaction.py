"""Redacted archives: no name is left in them, and a replay of one says what a replay of the original says, renamed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from factories import at, placement, xid_event
from filled_records import filled
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_runner import load
from signed_commands import command

from paceline import redact_command as redact_module
from paceline.record_command import RecordOptions, record_command
from paceline.redact_command import record_redacted, redact_command
from schemas.archive import ArchiveLine, ArchiveWriter, read_archive
from schemas.archive_blocks import Block, BlockWriter, marks_of, read_blocks
from schemas.base import Record
from schemas.codec import decode_value, message
from schemas.events import KernelEvent
from schemas.findings import Finding, Subject
from schemas.fleet import FailurePolicy, ModeScope, Node, Policy
from schemas.remediation import Command, Incident
from schemas.topics import TOPICS, topic_named
from streams.decisions.advice import ADVICE
from streams.recording.recorder import Recorder
from streams.recording.selection import Selection
from streams.recording.taken import Taken, archive_line
from streams.redaction.names import Names
from streams.redaction.redactor import Redactor
from streams.redaction.table import LEFT_OUT, TABLE, Entries, How, Inner
from streams.redaction.text import line, said
from streams.redaction.words import is_usual
from streams.replay import Problems, replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

KEY = b"a key of tests, thirty-two bytes"
FAMILIES = [family for topic in TOPICS if topic.family not in LEFT_OUT for family in topic.records]
SECRET = "acme"


def line_of(record: Record, offset: int = 0, append_ms: int = 0, number: int = 0) -> ArchiveLine:
    wire = message(record)
    headers = {name: value.decode() for name, value in wire.headers}
    return ArchiveLine(wire.topic, 0, offset, append_ms, wire.key.decode(), orjson.loads(wire.value), headers, number)


def redactor_of(lines: Iterable[ArchiveLine]) -> Redactor:
    redactor = Redactor(KEY)
    for each in lines:
        redactor.learn(each)
    redactor.learnt()
    return redactor


def redacted(record: Record, *others: Record) -> Record:
    taken = redactor_of(map(line_of, (record, *others))).redacted(line_of(record))
    assert taken is not None
    assert taken.value is not None
    return decode_value(taken.topic, orjson.loads(taken.value))


# --- The table --------------------------------------------------------------------------------------------------------


def test_every_field_of_every_family_is_kept_renamed_or_cleared_by_name() -> None:
    """A new field belongs in `streams/redaction/table.py`: it is dropped from redacted archives until it has a class there."""
    inner = {
        of.family
        for treatments in TABLE.values()
        for treatment in treatments.values()
        for of in (treatment, getattr(treatment, "values", None))
        if isinstance(of, Inner)
    }
    assert set(TABLE) == {*FAMILIES, *inner}
    for family, treatments in TABLE.items():
        assert set(treatments) == set(family.model_fields), family.__name__


def secret(family: type[Record], path: tuple[str, ...]) -> Any:
    """The secret, where the table says that a text may hold one."""
    how: Any = Inner(family)
    for name in path:
        if isinstance(how, Inner):
            how = TABLE[how.family][name]
        elif isinstance(how, Entries):
            how = how.keys if name == "{}" else how.values
    if isinstance(how, Entries):
        return {**dict.fromkeys(how.by_key, f"{SECRET} 1"), "new": SECRET}
    return "0000:1b:00" if how is How.KEPT else f"{SECRET}-node 7"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_a_record_full_of_names_is_written_without_any(family: type[Record]) -> None:
    value = filled(family, partial(secret, family))
    topic = next(topic for topic in TOPICS if family in topic.records)
    record = decode_value(topic.name, value)
    assert isinstance(record, family)
    if family.__name__ not in {"GpuFrame", "ProgressMark"}:
        assert SECRET in str(value)
    written = redactor_of([line_of(record)]).redacted(line_of(record))
    assert written is not None
    told = b" ".join([written.key or b"", written.value or b"", *(raw or b"" for _, raw in written.headers)])
    assert SECRET.encode() not in told.lower()
    assert written.key == topic.key(decode_value(topic.name, orjson.loads(written.value or b""))).encode()


# --- The law ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def incident(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recorded archive of a simulated fleet with what was said of it, and its redacted copy."""
    directory = tmp_path_factory.mktemp("incident")
    inputs = list(read_archive(request.config.rootpath / "tests/golden/mixed.jsonl.zst"))
    original, copy = directory / "incident.jsonl.zst", directory / "redacted.jsonl.zst"
    recorded(original, (*inputs, *outputs_of(inputs, "acme-east")))
    assert redact_command(original, copy, None, is_tolerant=False) == 0
    return original, copy


def recorded(path: Path, lines: Iterable[Any]) -> Path:
    """A recorded archive of these lines."""
    head = {"site_id": "acme-east", "asked": {"jobs": ["pretrain-70b"], "nodes": [], "start": "-2h"}, "cluster_id": "c"}
    with path.open("xb") as stream:
        writer = BlockWriter(stream, head)
        recorder = Recorder(writer, Selection())
        for each in lines:
            headers = tuple((name, value.encode()) for name, value in each.headers.items())
            place = each.topic, each.partition, each.offset, each.timestamp_ms
            recorder.take(Taken(*place, each.key.encode(), orjson.dumps(each.value), headers))
        writer.end({**head, "is_whole": True})
    return path


def outputs_of(lines: Iterable[Any], site_id: str) -> Iterator[ArchiveLine]:
    for number, record in enumerate(replay(lines, site_id, Problems())):
        yield line_of(record, number, 1_767_225_700_000)


def test_a_replay_of_the_redacted_archive_says_what_the_renamed_original_says(incident: tuple[Path, Path]) -> None:
    """Findings, incidents and commands with their ids, texts and evidence; only outputs of one time may change places."""
    _, copy = incident
    kept = [each for each in read_archive(copy) if isinstance(each, ArchiveLine)]
    families = ("step-results", "job-performance", "findings", "incidents", "actions")
    said_topics = {topic_named(family).name for family in families}
    stated = Counter(orjson.dumps(each.value) for each in kept if each.topic in said_topics)
    site_id = (marks_of(copy).head or {})["site_id"]
    again = Counter(
        orjson.dumps(each.value) for each in outputs_of((e for e in kept if e.topic not in said_topics), site_id)
    )
    assert again == stated
    assert sum("command" in orjson.loads(each)["record"] for each in stated) >= 3


@pytest.mark.parametrize("name", ["teaching_example", "pfc_pause_storm", "node_silence_mass"])
def test_the_law_holds_for_scenarios_of_rules(name: str, request: pytest.FixtureRequest) -> None:
    scenario = load(request.config.rootpath / "tests/scenarios" / f"{name}.toml")
    lines = [line_of(scenario.policy)] if scenario.policy is not None else []
    lines += [
        dataclasses.replace(line_of(record, at.offset, at.append_ms), partition=at.partition)
        for record, at in scenario.records
    ]
    told = list(outputs_of(lines, "site-1"))
    redactor = redactor_of((*lines, *told))

    def renamed(of: list[ArchiveLine]) -> list[ArchiveLine]:
        return [archive_line(taken) for each in of if (taken := redactor.redacted(each)) is not None]

    again = outputs_of(renamed(lines), redactor.names.of("site-1"))
    assert Counter(orjson.dumps(each.value) for each in again) == Counter(
        orjson.dumps(each.value) for each in renamed(told)
    )


def test_no_name_of_the_original_is_anywhere_in_the_redacted_archive(incident: tuple[Path, Path]) -> None:
    original, copy = incident
    redactor = redactor_of(each for each in read_archive(original) if isinstance(each, ArchiveLine))
    names = {name for name in redactor.names._known if len(name) > 3} | {"acme-east", "node-0001", "pretrain-70b"}
    assert len(names) > 100
    with copy.open("rb") as stream:
        told = [orjson.dumps(item if isinstance(item, dict) else item.note) for item in parts(stream)]
        stream.seek(0)
        content = b"".join(item.content for item in parts(stream) if isinstance(item, Block))
    assert content
    said_in_all = content + b"".join(told) + copy.read_bytes()
    assert [name for name in names if name.encode() in said_in_all] == []


def parts(stream: Any) -> Iterator[Any]:
    return read_blocks(stream, "copy")


def test_partitions_offsets_and_times_are_kept(incident: tuple[Path, Path]) -> None:
    def places(path: Path) -> list[tuple[Any, ...]]:
        lines = (each for each in read_archive(path) if isinstance(each, ArchiveLine))
        return [(each.topic, each.partition, each.offset, each.timestamp_ms) for each in lines]

    original, copy = incident
    assert places(copy) == places(original)


# --- What is left out -------------------------------------------------------------------------------------------------


def written_archive(path: Path, lines: list[dict[str, Any]], tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in lines) + tail)
    return path


def test_what_is_no_record_and_what_nobody_knows_goes_and_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wire = line_of(xid_event(1, code=79))
    good = {"topic": wire.topic, "offset": 1, "key": wire.key, "value": {**wire.value, "acme_owner": "alice"}}
    archive = written_archive(
        tmp_path / "a.jsonl",
        [
            good,
            {**good, "offset": 2, "value": {"record": "kernel_event", "node_id": "acme-7"}},
            {**good, "offset": 3, "key": "acme-8"},
            {**good, "offset": 4, "value": None, "value_base64": "YWNtZQ=="},
            {"topic": "paceline.dead-letter.v1", "value": {"node_id": "acme-9"}},
            {"topic": "paceline.decisions.v1", "value": {"subject_id": "acme-10"}},
            {"topic": "acme.private.v1", "value": {}},
        ],
        b"acme: not a line\n",
    )
    copy = tmp_path / "b.jsonl.zst"
    assert redact_command(archive, copy, None, is_tolerant=False) == 2
    said_so = (marks_of(copy).end or {})["redacted"]
    assert said_so["left_out"] == {
        "damaged": 1, "dead-letter": 1, "decisions": 1, "no record": 2, "refused": 1, "unknown topic": 1
    }  # fmt: skip
    assert said_so["unknown_fields"] == {"KernelEvent": 1}
    assert [each.offset for each in read_archive(copy) if isinstance(each, ArchiveLine)] == [1]
    with copy.open("rb") as stream:
        assert b"acme" not in b"".join(item.content for item in parts(stream) if isinstance(item, Block))
    assert b"acme" not in copy.read_bytes()
    assert "left out: 1 (decisions)" in capsys.readouterr().err


def test_a_copy_does_not_replace_a_file_and_is_not_gone_on_with(
    incident: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    original, copy = incident
    before = copy.read_bytes()
    assert redact_command(original, copy, None, is_tolerant=False) == 2
    assert record_command(copy, "nowhere:1", RecordOptions("east"), None, is_resumed=True) == 2
    assert "has no names any more" in capsys.readouterr().err
    assert copy.read_bytes() == before


@pytest.mark.parametrize("has_own_id", [True, False])
def test_two_at_once_to_one_copy_leave_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_own_id: bool
) -> None:
    """The other one runs from beginning to end while the first has written half of its copy."""
    archive, copy = recorded(tmp_path / "run.jsonl.zst", [line_of(xid_event(1, code=79))]), tmp_path / "copy.jsonl.zst"
    keep_gaps, others = redact_module._keep_gaps, []

    def meanwhile(*given: Any) -> None:
        monkeypatch.setattr(redact_module, "_keep_gaps", keep_gaps)
        if has_own_id:
            monkeypatch.setattr("paceline.redact_command.os.getpid", lambda: 1)
        others.append(redact_command(archive, copy, None, is_tolerant=False))
        keep_gaps(*given)

    monkeypatch.setattr(redact_module, "_keep_gaps", meanwhile)
    first = redact_command(archive, copy, None, is_tolerant=False)
    assert sorted([first, *others]) == [0, 2]
    assert f"{copy}{' is there already' if has_own_id else '.'}" in capsys.readouterr().err
    assert (marks_of(copy).damages, len(list(read_archive(copy)))) == ([], 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.jsonl.zst", "run.jsonl.zst"]


def test_a_damaged_archive_is_refused_until_it_is_asked_for(tmp_path: Path) -> None:
    torn = recorded(tmp_path / "torn.jsonl.zst", [line_of(xid_event(1, code=79))])
    copy = tmp_path / "copy.jsonl.zst"
    torn.write_bytes(torn.read_bytes()[:-30])
    assert redact_command(torn, copy, None, is_tolerant=False) == 2
    assert not copy.exists()
    assert redact_command(torn, copy, None, is_tolerant=True) == 2
    assert (marks_of(copy).end or {})["is_whole"] is False
    assert not list(tmp_path.glob("*.partial"))


# --- Keys -------------------------------------------------------------------------------------------------------------


def test_of_what_holds_no_record_there_is_no_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would replay as a recording in which nothing was found."""
    (tmp_path / "notes.txt").write_text("no archive\n")
    assert redact_command(tmp_path / "notes.txt", tmp_path / "copy.jsonl.zst", None, is_tolerant=False) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert "there is no record in it" in capsys.readouterr().err


def test_no_key_is_made_for_a_copy_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, there = tmp_path / "site.key", tmp_path / "a.jsonl"
    assert redact_command(there, tmp_path / "copy.jsonl.zst", key, is_tolerant=False) == 2
    there.write_text("{}\n")
    assert redact_command(there, tmp_path / "no" / "copy.jsonl.zst", key, is_tolerant=False) == 2
    assert redact_command(there, tmp_path / "copy.jsonl.zst", tmp_path / "copy.jsonl.zst", is_tolerant=False) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert "--output and --redact-key are both" in capsys.readouterr().err


def test_archives_of_one_key_map_alike_and_a_drawn_key_is_another_each_time(tmp_path: Path) -> None:
    archive = tmp_path / "a.jsonl"
    with ArchiveWriter.open(archive) as writer:
        writer.write(placement([0]), at(0))
    copies = [tmp_path / f"{number}.jsonl.zst" for number in range(4)]
    key = tmp_path / "site.key"
    for copy, file in zip(copies, (key, key, None, None), strict=True):
        assert redact_command(archive, copy, file, is_tolerant=False) == 0
    keys = [next(each.key for each in read_archive(copy) if isinstance(each, ArchiveLine)) for copy in copies]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert key.stat().st_mode & 0o077 == 0
    key.write_text("short")
    assert redact_command(archive, tmp_path / "5.jsonl.zst", key, is_tolerant=False) == 2


def test_record_redact_leaves_the_redacted_archive_alone(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl.zst"

    def record(path: Path) -> int:
        recorded(path, [line_of(xid_event(1, code=79))])
        return 0

    assert record_redacted(output, None, record) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.zst"]
    assert "redacted" in (marks_of(output).end or {})


# --- Texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "NVRM: Xid (PCI:0000:9d:00): 43, pid=856355, name=acme_train, Ch 00000018",
            "NVRM: Xid (PCI:0000:9d:00): 43, pid=<pid>, name=<name>, Ch 00000018",
        ),
        (
            "3,3389,3420459033109,-;NVRM: Xid (PCI:0000:52:00): 79, GPU has fallen off the bus.",
            "3,3389,3420459033109,-;NVRM: Xid (PCI:0000:52:00): 79, GPU has fallen off the bus.",
        ),
        (
            "mlx5_core 0000:3b:00.0 ens1f0np0: Link down",
            "mlx5_core 0000:3b:00.0 ens1f0np0: Link down",
        ),
        (
            "pcieport 0000:00:03.1: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
            "pcieport 0000:00:03.1: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
        ),
        ("ssh alice@10.0.3.7 /home/alice/x failed", "<word> <address> <path> failed"),
        (
            "from 2001:0db8:85a3:0000:0000:8a2e:0370:7334 to [2001:db8::17]: fe80::1%ens1f0np0 ::ffff:10.0.3.7 2001:db8::/32",
            "from <address> to [<address>]: <address> <address> <address>",
        ),
        ("port 1070:fd03:0012:3456 of 10.0.3.0/255.255.255.0 at 03:00:00", "port <address> of <address> at 03:00:00"),
        ("serial 1324521087654 mac 0c:42:a1:7e:10:9f", "<word> <word> <word> <address>"),
        ("Nov 30 03:00:00 athena kernel: error", "<word> 30 03:00:00 <word> kernel: error"),
    ],
)
def test_a_line_of_others_keeps_what_drivers_print(given: str, told: str) -> None:
    assert line(given, Names(KEY)) == told


def test_a_text_of_our_own_is_searched_for_every_name_of_the_archive() -> None:
    names = Names(KEY)
    node, switch, job = names.of("gpu1.rack7.example.org"), names.of("leaf-001"), names.of("184467")
    rack, short, spaced = names.of("12"), names.of("a"), names.of("my job (2)")
    text = "gpu1 port mlx5_0 of leaf-001/Ethernet4, job 184467: 12 GPUs of rack 12, a pause of node a; my job (2)."
    assert said(text, names) == (
        f"{node} port mlx5_0 of {switch}/Ethernet4, job {job}: 12 GPUs of rack {rack}, a pause of node {short}; {spaced}."
    )


@pytest.mark.parametrize("name", ["athena&west", "athena!", "athe`na", "athe\u0301na", "athena west", "athena=west"])
def test_a_name_of_signs_that_are_in_no_word_is_in_no_text(name: str) -> None:
    names = Names(KEY)
    told = names.of(name)
    assert said(f"slower on {name}, busy", names) == f"slower on {told}, busy"
    assert line(f"pause of {name}", names) == f"<word> of {told}"


def test_a_name_that_is_a_common_word_is_told_by_no_sentence_around_it() -> None:
    names = Names(KEY)
    for name in ("gpu", "rank", "slower", "heat.example.org"):
        names.of(name)
    for text in (
        "rank 5 is slower than its peers by a factor of 1.54",
        ADVICE["thermal"],
        "Xid 79 (GPU has fallen off the bus)",
    ):
        assert said(text, names) == text
    assert said("job slower waits for node gpu", names) == f"job {names.of('slower')} waits for node {names.of('gpu')}"
    raw = "NVRM: Xid (PCI:0000:52:00): 79, GPU has fallen off the bus."
    assert line(raw, names) == raw


def test_names_that_stayed_in_texts_as_words_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fallen = xid_event(1, code=79, node_id="gpu", text="GPU has fallen off the bus.")
    other = xid_event(2, code=13, node_id="rank", text="Graphics Exception")
    archive = recorded(tmp_path / "run.jsonl.zst", [line_of(fallen), line_of(other, 1)])
    assert redact_command(archive, tmp_path / "copy.jsonl.zst", None, is_tolerant=False) == 0
    assert "left in texts, where they are words like any other: names gpu\n" in capsys.readouterr().err


@settings(max_examples=25)
@given(
    st.from_regex(r"zq[a-z]{1,6}[0-9]{0,4}(?:[-_][a-z0-9]{1,5}){0,2}(?:\.zq[a-z]{2,5}\.[a-z]{2,3})?", fullmatch=True),
    st.sampled_from(
        ("job {} waits", "{}/mlx5_0 port 1", "rank 3 ({})", "{}'s GPU", "at {}: 3", "{}_gpu of {}-1.", "a={},b")
    ),
)
def test_a_name_of_a_field_is_in_no_text(name: str, text: str) -> None:
    told_of = text.format(*2 * (name,))
    names = Names(KEY)
    names.of(name)
    assert name not in said(told_of, names)
    assert name.partition(".")[0] not in said(told_of.replace(name, name.partition(".")[0]), names)
    event = xid_event(1, 79, node_id=name, raw=told_of, text=told_of, process=name)
    assert name not in str(redacted(event).model_dump())


def test_advice_of_a_site_is_one_pseudonym_and_what_was_seen_stays() -> None:
    policy = Policy(
        policy_version="default", site_id="s", effective_from_ns=1,
        failures={"pause_storm": FailurePolicy(advice="Call Bob at Acme")},
    )  # fmt: skip
    incident = Incident(
        incident_id="inc-0123456789abcdef0123", site_id="s", state="open", cause_class="pause_storm", event_time_ns=1,
        onset_ns=1, advice="Call Bob at Acme Seen: 3 ports stopped.",
    )  # fmt: skip
    told, rule = redacted(incident, policy), redacted(policy)
    assert isinstance(told, Incident)
    assert isinstance(rule, Policy)
    assert told.advice == f"{rule.failures['pause_storm'].advice} Seen: 3 ports stopped."
    shipped = incident.model_copy(update={"advice": ADVICE["thermal"]})
    told = redacted(shipped)
    assert isinstance(told, Incident)
    assert told.advice == ADVICE["thermal"]


def test_a_line_that_grows_is_cut_and_its_record_is_kept() -> None:
    event = xid_event(1, 79, raw="q " * 1000, text="q " * 1000, pci_bus_id="acme-slot")
    told = redacted(event)
    assert isinstance(told, KernelEvent)
    assert told.raw.startswith("<word> <word>")
    assert told.pci_bus_id == Names(KEY).of("acme-slot")


def test_a_finding_of_other_tools_is_read_as_a_text_of_others() -> None:
    finding = Finding(
        finding_id="find-0123456789abcdef0123", site_id="s", rule="nvsentinel", kind="gpu_health", severity="info",
        state="open", subject=Subject(level="node", node_id="n-1"), event_time_ns=1, onset_ns=1,
        explanation="monitor of athena: Xid 79", values={"message": "athena lost a GPU"},
    )  # fmt: skip
    told = redacted(finding)
    assert isinstance(told, Finding)
    assert told.explanation == "<word> of <word>: Xid 79"
    assert told.values == {"message": "<word> lost a GPU"}


def test_a_command_for_a_node_with_a_line_break_in_its_name_is_redacted() -> None:
    told = redacted(command(1, node_id="node\n1"))
    assert isinstance(told, Command)
    assert told.target.node_id == Names(KEY).of("node\n1")


def test_scopes_of_a_mode_name_the_nodes_that_their_patterns_fit() -> None:
    nodes = [Node(node_id=f"gpu-{number:02d}", effective_from_ns=1) for number in range(3)]
    policy = Policy(
        policy_version="acme-3", site_id="s", effective_from_ns=1,
        scopes=(ModeScope(mode="observe", nodes=("gpu-0[12]", "cpu-*"), racks=("r1",)),),
    )  # fmt: skip
    told = redacted(policy, *nodes)
    names = redactor_of(map(line_of, (policy, *nodes))).names
    assert isinstance(told, Policy)
    assert set(told.scopes[0].nodes) == {names.of("gpu-01"), names.of("gpu-02"), names.of("cpu-*")}
    assert told.scopes[0].racks == (names.of("r1"),)


@pytest.mark.parametrize(
    "word", ["dp", "mesh_dp", "tp-cp", "6N+12LHQT", "nccl:_all_gather_base", "send_recv", "3", "0/1", "bf16"]
)
def test_usual_words_stay(word: str) -> None:
    assert is_usual(word)


@pytest.mark.parametrize("word", ["acme", "dp_acme", "acme-dp", "projectx", "10 acme"])
def test_words_of_a_site_do_not(word: str) -> None:
    assert not is_usual(word)


def test_a_line_reads_back_as_it_was_taken() -> None:
    taken = redactor_of([line_of(xid_event(1, code=79))]).redacted(line_of(xid_event(1, code=79)))
    assert taken is not None
    assert archive_line(taken).value["code"] == 79

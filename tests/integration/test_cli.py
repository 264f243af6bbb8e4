"""The command line: help and exit statuses, what `decode` loads, and what registration puts on the topics."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from agents.decode.driver import DECODERS
from deploy.brokers import open_broker
from deploy.topics import apply_topics
from paceline.cli import app
from schemas.archive import ArchiveWriter
from schemas.codec import decode
from schemas.fleet import Job, Node, RankPlacement
from schemas.topics import topic_named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAVY = ("faust", "mode", "aiokafka", "confluent_kafka", "pyarrow", "pydantic", "numpy", "streams")
XID_LINE = "[ 1234.567890] NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, GPU has fallen off the bus.\n"


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands and groups, as the words that call them."""
    group = typer.main.get_command(app) if group is None else group
    yield path
    for name, command in sorted(getattr(group, "commands", {}).items()):
        yield from commands(command, (*path, name))


@pytest.fixture
def kernel_log(tmp_path: Path) -> Path:
    path = tmp_path / "dmesg.txt"
    path.write_text(XID_LINE)
    return path


# --- Help and usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: " ".join(("paceline", *words)))
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.stdout
    assert all(word in result.stdout for word in words)


def test_the_commands_of_the_demo_and_of_daily_work_are_there() -> None:
    wanted = {"demo", "worker", "agent", "decode", "replay", "simulate", "doctor", "jobs put", "nodes import"}
    assert wanted | {"topics apply", "topics check", "broker start"} <= {" ".join(words) for words in commands()}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "nosuch"),
        (["worker", "--role", "nosuch"], "no role 'nosuch'; there are telemetry, jobs, decisions and all"),
        (["decode", "nosuch", "file"], "no kind 'nosuch'"),
        (["decode", "kernel-log"], "Missing argument"),
        (["replay", "no/such.jsonl"], "no/such.jsonl: No such file"),
        (["replay", "no/such.jsonl", "--json", "--summary"], "no/such.jsonl: No such file"),
        (["simulate", "--output", "no/such/place.jsonl", "--duration", "20"], "no/such is no directory"),
        (["simulate", "--output", "x.jsonl", "--scenario", "nosuch"], "no scenario 'nosuch'"),
        (["jobs", "put", "no/such.toml"], "no/such.toml: No such file"),
        (["nodes", "import", "no/such.csv"], "no/such.csv: No such file"),
        (["broker", "start", "--kind", "nosuch"], "nosuch"),
        (["import", "steps", "no/such.log", "--output", "x.jsonl"], "no/such.log"),
        (["import", "steps", "log", "--output", "no/such/place.jsonl"], "no/such is no directory"),
        (["import", "steps", "log", "--output", "x.jsonl", "--zone", "/etc"], "--zone: there is no zone '/etc'"),
        (["import", "nvsentinel", "no/such", "--output", "x.jsonl"], "paceline: no/such: No such file"),
        (["export", "run.jsonl", "--parquet", "no/such/place"], "no/such is no directory"),
        (["evaluate", "--limit", "1", "--out", "."], "--out: . is a directory: name a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_and_input_is_one_message_and_status_2(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert isinstance(result.exception, SystemExit)
    assert list(tmp_path.iterdir()) == []


# --- decode -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_decode_loads_nothing_of_the_pipeline(kind: str, kernel_log: Path) -> None:
    arguments = ["paceline", "decode", kind, str(kernel_log), "--json"]
    program = f"""
import sys
sys.argv = {arguments!r}
from paceline.cli import main
try:
    main()
except SystemExit:
    print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert told.stderr.splitlines()[-1] == "[]"


def test_decode_of_a_readable_file_is_ndjson_and_status_0(kernel_log: Path, run_paceline: Any) -> None:
    done = run_paceline("decode", "kernel-log", str(kernel_log))
    assert done.returncode == 0
    (record,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (record["kind"], record["code"], record["pci_bus_id"]) == ("xid", 79, "0000:1a:00")
    assert done.stderr == "records=1 malformed=0 skipped=0\n"


def test_decode_reads_standard_input(kernel_log: Path, run_paceline: Any) -> None:
    with kernel_log.open() as stream:
        done = run_paceline("decode", "kernel-log", "-", "--json", stdin=stream)
    assert done.returncode == 0
    assert json.loads(done.stdout)["code"] == 79


@pytest.mark.parametrize("arguments", [("kernel-log", "no/such"), ("nosuch", "no/such"), ("steps", sys.executable)])
def test_decode_of_what_it_cannot_read_is_status_2(arguments: tuple[str, str], run_paceline: Any) -> None:
    done = run_paceline("decode", *arguments)
    assert done.returncode == 2
    assert "paceline: " in done.stderr
    assert "Traceback" not in done.stderr


# --- replay -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "fleet.jsonl.zst"
    made = CliRunner().invoke(app, ["simulate", "--output", str(path), "--duration", "40", "--scenario", "xid79"])
    assert made.exit_code == 0, made.output
    return path


def test_replay_of_a_whole_archive_is_ndjson_and_status_0(archive: Path, run_paceline: Any) -> None:
    done = run_paceline("replay", str(archive), "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = {line["value"]["kind"] for line in lines if line["topic"] == topic_named("actions").name}
    assert kinds == {"cordon_node", "restart_job", "collect_evidence"}
    assert all(line["value"] == decode_again(line) for line in lines)
    again = run_paceline("replay", str(archive), "--json")
    assert again.stdout == done.stdout


def decode_again(line: dict[str, Any]) -> Any:
    """The value of an output line as its topic's record writes it."""
    record = decode(line["topic"], json.dumps(line["value"]).encode())
    return record.model_dump(mode="json", exclude_none=True)


def test_replay_of_a_torn_archive_gives_what_could_be_read_and_status_2(
    archive: Path, tmp_path: Path, run_paceline: Any
) -> None:
    torn = tmp_path / "torn.jsonl.zst"
    torn.write_bytes(archive.read_bytes()[: archive.stat().st_size * 2 // 3])
    done = run_paceline("replay", str(torn), "--json")
    assert done.returncode == 2
    assert "compressed stream ends before its end" in done.stderr
    assert "Traceback" not in done.stderr
    assert all(json.loads(line)["topic"].startswith("paceline.") for line in done.stdout.splitlines())
    assert done.stdout


def test_replay_of_an_archive_that_was_torn_before_its_first_whole_line_is_status_2(
    archive: Path, tmp_path: Path
) -> None:
    torn = tmp_path / "torn.jsonl.zst"
    torn.write_bytes(archive.read_bytes()[:1000])
    result = CliRunner().invoke(app, ["replay", str(torn)])
    assert result.exit_code == 2


def test_replay_names_lines_that_are_no_records_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    with ArchiveWriter.open(path) as writer:
        writer.write(Job(job_id="job-1", effective_from_ns=1, world_size=1), 1)
    path.write_bytes(path.read_bytes() + b'{"topic":"paceline.nosuch.v1","value":{}}\n{"torn":\n')
    result = CliRunner().invoke(app, ["replay", str(path)])
    assert result.exit_code == 2
    assert "line 2: " in result.stderr
    assert "line 3: " in result.stderr
    assert "bad_lines=2" in result.stderr


# --- Registration -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with open_broker("embedded") as broker:
        apply_topics(broker.bootstrap_servers, 4, 1, has_admin=False)
        yield broker.bootstrap_servers


JOB_FILE = """
job_id = "pretrain"
world_size = 4
tokens_per_step = 4096

[model]
parameters = 7e9

[layout]
tensor = 2

[[nodes]]
node_id = "node-a"
ranks = "0-1"
gpu_uuid = ["GPU-a0", "GPU-a1"]

[[nodes]]
node_id = "node-b"
ranks = [2, 3]
pci_bus_id = ["00000000:1A:00.0", "00000000:43:00.0"]
"""


@pytest.mark.needs_broker
def test_a_job_file_arrives_on_the_jobs_topic(
    servers: str, tmp_path: Path, run_paceline: Any, read_topics: Any
) -> None:
    (tmp_path / "job.toml").write_text(JOB_FILE)
    done = run_paceline("jobs", "put", str(tmp_path / "job.toml"), "--bootstrap", servers)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "3 records published\n")
    sent = read_topics(servers, topic_named("jobs").name)
    assert {message.key() for message in sent} == {b"pretrain"}
    job, *placements = [decode(message.topic(), message.value()) for message in sent]
    assert isinstance(job, Job)
    assert (job.world_size, job.layout.tensor, job.layout.data, job.tokens_per_step) == (4, 2, 2, 4096)
    assert [isinstance(placement, RankPlacement) for placement in placements] == [True, True]
    assert [(p.node_id, p.rank, p.gpu_uuid, p.pci_bus_id) for p in placements] == [  # type: ignore[attr-defined]
        ("node-a", (0, 1), ("GPU-a0", "GPU-a1"), None),
        ("node-b", (2, 3), (None, None), ("0000:1a:00", "0000:43:00")),
    ]


@pytest.mark.needs_broker
@pytest.mark.parametrize(
    ("name", "text", "leaf"),
    [
        ("places.csv", "node_id,rack,leaf,zone\nnode-1,rack-1,leaf-1,hall-a\nnode-2,rack-2,leaf-1,hall-a\n", "leaf-1"),
        ("topology.conf", "SwitchName=leaf-9 Nodes=node-[3-4]\nSwitchName=spine Switches=leaf-9\n", "leaf-9"),
    ],
)
def test_places_arrive_on_the_nodes_topic(
    name: str, text: str, leaf: str, servers: str, tmp_path: Path, run_paceline: Any, read_topics: Any
) -> None:
    before = len(read_topics(servers, topic_named("nodes").name))
    (tmp_path / name).write_text(text)
    done = run_paceline("nodes", "import", str(tmp_path / name), "--bootstrap", servers)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "2 records published\n")
    sent = read_topics(servers, topic_named("nodes").name)
    assert len(sent) == before + 2
    nodes = [decode(message.topic(), message.value()) for message in sent]
    here = [node for node in nodes if isinstance(node, Node) and node.leaf == leaf]
    assert len(here) == 2
    assert {message.key() for message in sent} >= {node.node_id.encode() for node in here}


@pytest.mark.needs_broker
@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        (("jobs", "put"), JOB_FILE.replace('"0-1"', '"0-2"'), "nodes[1].gpu_uuid"),
        (("jobs", "put"), "job_id = ", "no TOML"),
        (("nodes", "import"), "node_id,colour\nnode-1,red\n", "colour"),
    ],
)
def test_a_file_that_cannot_be_registered_puts_nothing_on_the_topics(
    command: tuple[str, ...], text: str, said: str, servers: str, tmp_path: Path, read_topics: Any
) -> None:
    topics = [topic_named("jobs").name, topic_named("nodes").name]
    before = len(read_topics(servers, *topics))
    (tmp_path / "file").write_text(text)
    result = CliRunner().invoke(app, [*command, str(tmp_path / "file"), "--bootstrap", servers])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(read_topics(servers, *topics)) == before

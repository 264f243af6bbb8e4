"""Replay of an archive against the decoding of the same bytes with pydantic: times real time on one core, and memory over the length.

Archives are of one job of 1,024 GPUs: frames of GPUs and ports once a second, a step every 4 s. Every measurement is a
process of its own; processor time, not wall time, the lowest of several rounds in which all kinds take turns: what else
runs on the machine takes its caches too, and only adds.
Two more readings are measured beside them: `schemas.codec.decode`, as workers use it, which asks pydantic only where strict reading
does not take a payload; and a trusted one, which parses and believes, so that the rules could not be run on what it makes of damage.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson
from report import Section, Table, count, figure, options, publish, ratio

from agents.simulation import JobPlan, Scenario, deliver, simulate
from paceline.rare_collection import rare_collection
from schemas.archive import ArchiveLine, ArchiveWriter, read_archive
from schemas.base import Record
from schemas.codec import _reader, decode, decode_value
from schemas.fleet import Model
from schemas.topics import TOPICS
from streams.replay import Problems, decoded, replay

NODES, STEP_MS = 128, 4_000.0
SPANS_S = (60.0, 3600.0)
ROUNDS = 2
_CHILD = "--measure"
_KINDS = ("decode", "replay", "read", "worker", "trusted")
_FAMILIES: dict[str, type[Record]] = {
    family.model_fields["record"].default: family for topic in TOPICS for family in topic.records
}
_NULLS = {family: {name: field.default for name, field in family.model_fields.items()} for family in _FAMILIES.values()}
"""What a record holds that is not told of."""


def main() -> None:
    """Measure all, or, as a child, one."""
    if len(sys.argv) > 2 and sys.argv[1] == _CHILD:
        print(json.dumps(_measured(sys.argv[2], Path(sys.argv[3]))))
        return
    asked = options(__doc__ or "")
    load = os.getloadavg()[0]
    spans = SPANS_S if not asked.quick else (5.0, 10.0)
    table = Table(
        "",
        (
            "length",
            "records",
            "MB",
            "decode us",
            "replay us",
            "replay / decode",
            "times real time",
            "of that reading us",
            "workers' decode us",
            "trusted reading us",
            "replay / decode with it",
            "times real time with it",
            "one of several at once / alone",
            "peak MiB, decode",
            "replay",
        ),
    )
    with tempfile.TemporaryDirectory() as directory:
        paths = {span_s: Path(directory) / f"{span_s:.0f}.jsonl" for span_s in spans}
        for span_s, path in paths.items():
            _write(path, span_s)
        lowest = _lowest(paths, ROUNDS if not asked.quick else 1)
        for span_s, path in paths.items():
            found = lowest[span_s]
            records = found["decode"]["records"]
            cpu_s = {kind: of_kind["cpu_s"] for kind, of_kind in found.items()}
            decoded_s, replayed_s = cpu_s["decode"], cpu_s["replay"]
            trusted_s = replayed_s - cpu_s["read"] + cpu_s["trusted"]
            at_once = _children("replay", path, os.cpu_count() or 1)
            table.rows.append(
                (
                    f"{span_s:.0f} s",
                    count(records),
                    figure(path.stat().st_size / 1e6),
                    figure(decoded_s / records * 1e6),
                    figure(replayed_s / records * 1e6),
                    ratio(replayed_s / decoded_s),
                    figure(span_s / replayed_s),
                    figure(cpu_s["read"] / records * 1e6),
                    figure(cpu_s["worker"] / records * 1e6),
                    figure(cpu_s["trusted"] / records * 1e6),
                    ratio(trusted_s / decoded_s),
                    figure(span_s / trusted_s),
                    ratio(sum(one["cpu_s"] for one in at_once) / len(at_once) / replayed_s),
                    count(found["decode"]["peak_mib"]),
                    count(found["replay"]["peak_mib"]),
                )
            )
    publish(_section(table), asked, load)


def _section(table: Table) -> Section:
    return Section(
        "replay",
        "Replay of an archive",
        "One job of 1,024 GPUs on 128 nodes, frames of GPUs and ports at 1 Hz, a step every 4 s, healthy. Both read the same "
        "archive; decode validates every payload in full with pydantic and does nothing with it, replay reads, validates and judges it. "
        f"The start of Python and the making of the archive are not counted. Lowest of {ROUNDS} rounds in which all kinds take turns.",
        (table,),
        (
            (
                "`reading` is what replay does before its rules: lines, validation, keys. `workers' decode` is `schemas.codec.decode`, "
                "the same payloads validated in full by strict reading, and by pydantic what that does not take. `trusted reading` parses the same lines and "
                "fills the fields of records with what stands there, unchecked; replay with it is reckoned, not built: replay less "
                "reading, and the trusted reading in its place."
            ),
            (
                "`several at once` are as many replays as there are cores, each of an archive of its own: processor time of one of "
                "them against one alone. They share nothing but the machine."
            ),
        ),
    )


def _lowest(paths: dict[float, Path], rounds: int) -> dict[float, dict[str, dict[str, float]]]:
    """By span and kind, what the round measured that took the least processor time."""
    found: dict[float, dict[str, dict[str, float]]] = {span_s: {} for span_s in paths}
    for _ in range(rounds):
        for span_s, path in paths.items():
            for kind in _KINDS:
                one = _child(kind, path)
                known = found[span_s].get(kind)
                if known is None or one["cpu_s"] < known["cpu_s"]:
                    found[span_s][kind] = one
    return found


def _write(path: Path, span_s: float) -> None:
    model = Model(parameters=70.55e9, layers=80, hidden=8192, heads=64, head_dim=128, kv_heads=8, ffn_hidden=28672)
    job = JobPlan(job_id="pretrain", nodes_from=0, step_time_ms=STEP_MS, model=model, tensor=8, pipeline=4)
    scenario = Scenario(name="bench", nodes=NODES, duration_s=span_s, seed=1, jobs=(job,))
    with ArchiveWriter.open(path, partitions=4) as archive:
        for arrival_ns, record in deliver(simulate(scenario, 1_767_225_600_000_000_000), seed=1):
            archive.write(record, arrival_ns)


def _child(kind: str, path: Path) -> dict[str, float]:
    return _children(kind, path, 1)[0]


def _children(kind: str, path: Path, count_at_once: int) -> list[dict[str, float]]:
    """What so many processes measure that run at the same time."""
    arguments = [sys.executable, __file__, _CHILD, kind, str(path)]
    running = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(count_at_once)]
    found: list[dict[str, float]] = []
    for child in running:
        said, _ = child.communicate(timeout=1200)
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, arguments)
        found.append(json.loads(said))
    return found


@rare_collection()
def _measured(kind: str, path: Path) -> dict[str, float]:
    first = next(line for line in read_archive(path) if isinstance(line, ArchiveLine))
    decode_value(first.topic, first.value)
    topics = [topic.name for topic in TOPICS if topic.records] if kind == "decode" else []
    validators = {topic: _reader(topic).validator for topic in topics}
    begun, records = time.process_time(), 0
    if kind == "replay":
        for _ in replay(read_archive(path), "bench", Problems()):
            records += 1
    elif kind == "read":
        for _ in decoded(read_archive(path), Problems()):
            records += 1
    elif kind == "trusted":
        with path.open("rb") as stream:
            for line in stream:
                value = orjson.loads(line)["value"]
                family = _FAMILIES[value["record"]]
                record = family.__new__(family)
                fields = {name: tuple(entry) if type(entry) is list else entry for name, entry in value.items()}
                object.__setattr__(record, "__dict__", _NULLS[family] | fields)
                records += 1
    else:
        with path.open("rb") as stream:
            for line in stream:
                head, _, payload = line.partition(b',"value":')
                topic = head[head.index(b"paceline") : head.index(b'","partition')].decode()
                if kind == "worker":
                    decode(topic, payload[:-2])
                else:
                    validators[topic].validate_json(payload[:-2])
                records += 1
    spent = time.process_time() - begun
    return {"cpu_s": spent, "records": records, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    main()

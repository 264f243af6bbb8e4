"""Replay of an archive against the decoding of the same bytes: times real time on one core, and memory over the length.

Archives are of one job of 1,024 GPUs: frames of GPUs and ports once a second, a step every 4 s. Every measurement is a
process of its own; processor time, not wall time. What an hour takes is told from minutes, since both grow in step.
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

from report import Section, Table, count, figure, options, publish, ratio

from agents.simulation import JobPlan, Scenario, deliver, simulate
from schemas.archive import ArchiveLine, ArchiveWriter, read_archive
from schemas.codec import decode, decode_value
from schemas.fleet import Model
from streams.replay import Problems, replay

NODES, STEP_MS = 128, 4_000.0
SPANS_S = (30.0, 120.0)
_CHILD = "--measure"


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
            "peak MiB, decode",
            "replay",
        ),
    )
    with tempfile.TemporaryDirectory() as directory:
        for span_s in spans:
            path = Path(directory) / f"{span_s:.0f}.jsonl"
            _write(path, span_s)
            found = {kind: _child(kind, path) for kind in ("decode", "replay")}
            records = found["decode"]["records"]
            decoded_s, replayed_s = found["decode"]["cpu_s"], found["replay"]["cpu_s"]
            table.rows.append(
                (
                    f"{span_s:.0f} s",
                    count(records),
                    figure(path.stat().st_size / 1e6),
                    figure(decoded_s / records * 1e6),
                    figure(replayed_s / records * 1e6),
                    ratio(replayed_s / decoded_s),
                    figure(span_s / replayed_s),
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
        "archive; decode validates every payload in full and does nothing with it, replay reads, validates and judges it. "
        "The start of Python and the making of the archive are not counted.",
        (table,),
        (
            "A trusted decode (no validation) would save at most the difference between `decode` and `orjson` in the pure path.",
        ),
    )


def _write(path: Path, span_s: float) -> None:
    model = Model(parameters=70.55e9, layers=80, hidden=8192, heads=64, head_dim=128, kv_heads=8, ffn_hidden=28672)
    job = JobPlan(job_id="pretrain", nodes_from=0, step_time_ms=STEP_MS, model=model, tensor=8, pipeline=4)
    scenario = Scenario(name="bench", nodes=NODES, duration_s=span_s, seed=1, jobs=(job,))
    with ArchiveWriter.open(path, partitions=4) as archive:
        for arrival_ns, record in deliver(simulate(scenario, 1_767_225_600_000_000_000), seed=1):
            archive.write(record, arrival_ns)


def _child(kind: str, path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, _CHILD, kind, str(path)], capture_output=True, text=True, check=True, timeout=1200
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measured(kind: str, path: Path) -> dict[str, float]:
    first = next(line for line in read_archive(path) if isinstance(line, ArchiveLine))
    decode_value(first.topic, first.value)
    begun, records = time.process_time(), 0
    if kind == "replay":
        for _ in replay(read_archive(path), "bench", Problems()):
            records += 1
    else:
        with path.open("rb") as stream:
            for line in stream:
                head, _, payload = line.partition(b',"value":')
                decode(head[head.index(b"paceline") : head.index(b'","partition')].decode(), payload[:-2])
                records += 1
    spent = time.process_time() - begun
    return {"cpu_s": spent, "records": records, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    main()

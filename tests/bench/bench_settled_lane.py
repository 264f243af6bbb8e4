"""The settled lane: from a straggler's finding to its command, with the waits that the design asks for taken off.

The script plays the detectors: findings of slow ranks, each on a node of its own, and a progress mark a second from each
of two partitions, as workers publish them. The decisions worker is the real one. A finding is taken when the lowest mark
has passed its time by `settle_ns`, and the cause of a slow rank waits `EVIDENCE_NS` longer.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np
import orjson
from kafka_side import SITE, followed, local_kafka, producer, run_worker
from report import Section, Table, figure, options, publish

from schemas.codec import message
from schemas.findings import Finding, ProgressMark, Subject
from schemas.topics import topic_named
from streams.engines.decisions import DEFAULT_SETTLE_NS, EVIDENCE_NS

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from schemas.base import Record

_ACTIONS = topic_named("actions").name
_PARTITIONS = 4
_EVERY_S = 0.13
_MARK_EVERY_S = 1.0
_PATIENCE_S = 45.0
_WAIT_NS = DEFAULT_SETTLE_NS + EVIDENCE_NS


def main() -> None:
    """Send findings and marks, and wait for the commands."""
    asked = options(__doc__.splitlines()[0])
    load_before = os.getloadavg()[0]
    findings = 20 if asked.quick else 200
    with local_kafka(_PARTITIONS) as servers, run_worker(servers, "decisions"):
        client = producer(servers, linger_ms=0)
        with followed(servers, _ACTIONS) as reader:
            sent, heard = _series(client, reader, findings)
    publish(_section(sent, heard, findings), asked, load_before)


def _series(client: Producer, reader: Consumer, findings: int) -> tuple[dict[str, int], dict[str, int]]:
    """The event time of each node's finding, and when its command was read; nanoseconds since the epoch."""
    sent: dict[str, int] = {}
    heard: dict[str, int] = {}
    begun = time.monotonic()
    marks = 0
    while len(heard) < findings and time.monotonic() < begun + findings * _EVERY_S + _PATIENCE_S:
        since_s = time.monotonic() - begun
        if since_s >= marks * _MARK_EVERY_S:
            marks += 1
            for partition in (0, 1):
                _send(client, ProgressMark(site_id=SITE, role="jobs", partition=partition, mark_ns=time.time_ns()))
        if len(sent) < findings and since_s >= len(sent) * _EVERY_S:
            node_id = f"node-{len(sent):04d}"
            sent[node_id] = time.time_ns()
            _send(client, _finding(node_id, len(sent), sent[node_id]))
        received = reader.poll(0.002)
        if received is None or received.error() is not None:
            continue
        now_ns = time.time_ns()
        target = orjson.loads(received.value() or b"{}").get("target") or {}
        if target.get("node_id") in sent:
            heard.setdefault(target["node_id"], now_ns)
    return sent, heard


def _send(client: Producer, record: Record) -> None:
    wire = message(record)
    client.produce(wire.topic, wire.value, wire.key, headers=list(wire.headers))
    client.poll(0)


def _finding(node_id: str, rank: int, at_ns: int) -> Finding:
    return Finding(
        finding_id=f"bench-{node_id}",
        site_id=SITE,
        rule="straggler",
        kind="straggler",
        severity="warning",
        state="open",
        job_id="job",
        epoch=0,
        step=rank,
        subject=Subject(level="rank", job_id="job", rank=rank, node_id=node_id),
        event_time_ns=at_ns,
        onset_ns=at_ns,
        slowdown=1.5,
        values={"excess_us": 500_000, "step_time_us": 1_500_000},
        explanation=f"rank {rank} is slower than its peers",
    )


def _section(sent: dict[str, int], heard: dict[str, int], findings: int) -> Section:
    whole = np.array([(at_ns - sent[node_id]) / 1e6 for node_id, at_ns in heard.items()])
    rows = []
    for what, taken_off_ms in (("as it is", 0.0), ("the waits taken off", _WAIT_NS / 1e6)):
        cells = [
            figure(float(np.percentile(whole - taken_off_ms, p))) if whole.size else "-" for p in (50, 90, 99, 100)
        ]
        rows.append((what, *cells, f"{len(heard)} of {findings}"))
    return Section(
        "settled_lane",
        "The settled lane: a straggler's finding to its command",
        f"{findings} findings, one every {_EVERY_S * 1000:.0f} ms, each of a rank on a node of its own, and a mark a second from each "
        "of two partitions, through `paceline worker --role decisions`, four partitions, default policy. One clock.",
        (
            Table(
                "",
                (
                    "from the finding's event time to the command",
                    "p50, ms",
                    "p90, ms",
                    "p99, ms",
                    "longest, ms",
                    "came",
                ),
                rows,
            ),
        ),
        (
            (
                f"The waits are settings: `settle_ns` ({DEFAULT_SETTLE_NS / 1e9:g} s) until all partitions have passed the finding's "
                f"time, and {EVIDENCE_NS / 1e9:g} s for evidence of its node. What is left is mostly the marks' own second: a command "
                "leaves with the first mark that passes its time."
            ),
        ),
    )


if __name__ == "__main__":
    main()

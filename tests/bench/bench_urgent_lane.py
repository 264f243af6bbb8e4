"""The urgent lane: from a kernel event that is produced to the command on the actions topic, through three live workers.

Every event is an Xid 79 (GPU fallen off the bus) on a node of its own, so each asks for one command. The workers have
nothing else to do. Once through a producer that sends at once, and once through the agent's own publisher.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np
import orjson
from kafka_side import followed, local_kafka, producer, run_worker
from report import Section, Table, figure, options, publish

from agents.publisher import KafkaPublisher, PublisherSettings
from schemas.codec import message
from schemas.events import KernelEvent
from schemas.topics import topic_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Consumer

_FINDINGS = topic_named("findings").name
_ACTIONS = topic_named("actions").name
_PARTITIONS = 4
_EVERY_S = 0.1
_PATIENCE_S = 20.0
_WARM_UP = 10


def main() -> None:
    """Send events and wait for their commands."""
    asked = options(__doc__.splitlines()[0])
    load_before = os.getloadavg()[0]
    events = 20 if asked.quick else 200
    with local_kafka(_PARTITIONS) as servers, run_worker(servers, "telemetry", "jobs", "decisions"):
        client = producer(servers, linger_ms=0)
        publisher = KafkaPublisher(PublisherSettings(servers, client_id="bench-agent"))

        def at_once(event: KernelEvent) -> None:
            wire = message(event)
            client.produce(wire.topic, wire.value, wire.key, headers=list(wire.headers))
            client.poll(0)

        def as_an_agent(event: KernelEvent) -> None:
            publisher.publish(event)
            publisher.poll()

        with followed(servers, _FINDINGS, _ACTIONS) as reader:
            _series(reader, "warm-up", _WARM_UP, at_once)
            rows = [
                *_rows("producer without linger", *_series(reader, "direct", events, at_once), events),
                *_rows("the agent's publisher (linger 50 ms)", *_series(reader, "agent", events, as_an_agent), events),
            ]
        publisher.close()
    publish(_section(rows, events), asked, load_before)


def _section(rows: list[tuple[str, ...]], events: int) -> Section:
    return Section(
        "urgent_lane",
        "The urgent lane: kernel event to command",
        f"{events} events of Xid 79, one every {_EVERY_S * 1000:.0f} ms, each on a node of its own, through "
        "`paceline worker` of roles telemetry, jobs and decisions, four partitions, default policy. One clock.",
        (
            Table(
                "",
                ("from the event's handing over to", "p50, ms", "p90, ms", "p99, ms", "longest, ms", "came"),
                rows,
            ),
        ),
        (
            (
                "Until the finding: producer, broker, telemetry worker, broker. Until the command: the same once more through the "
                "decisions worker. Each worker waits up to 5 ms to fill a batch before it sends, and for the broker's word."
            ),
            "Commands go out in mode `observe`: how an actuator takes it from there is not in these figures.",
        ),
    )


def _series(
    reader: Consumer, name: str, events: int, send: Callable[[KernelEvent], None]
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """When each node's event was sent, and by topic when what it led to was read; nanoseconds since the epoch."""
    sent: dict[str, int] = {}
    heard: dict[str, dict[str, int]] = {_FINDINGS: {}, _ACTIONS: {}}
    begun = time.monotonic()
    deadline = begun + events * _EVERY_S + _PATIENCE_S
    while len(heard[_ACTIONS]) < events and time.monotonic() < deadline:
        if len(sent) < events and time.monotonic() >= begun + len(sent) * _EVERY_S:
            node_id = f"{name}-{len(sent):04d}"
            event = _event(node_id, len(sent))
            sent[node_id] = time.time_ns()
            send(event)
        received = reader.poll(0.002)
        if received is None or received.error() is not None:
            continue
        now_ns = time.time_ns()
        value = orjson.loads(received.value() or b"{}")
        node_id = (value.get("subject") or value.get("target") or {}).get("node_id", "")
        if node_id in sent:
            heard[str(received.topic())].setdefault(node_id, now_ns)
    return sent, heard


def _event(node_id: str, number: int) -> KernelEvent:
    return KernelEvent(
        node_id=node_id,
        agent_session="session",
        boot_id="boot",
        kmsg_seq=1,
        event_time_ns=time.time_ns(),
        source="xid",
        code=79,
        severity="fatal",
        pci_bus_id="0000:1b:00",
        gpu_uuid=f"GPU-{number:08x}-0000-0000-0000-000000000000",
        text="GPU has fallen off the bus.",
        raw="NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    )


def _rows(name: str, sent: dict[str, int], heard: dict[str, dict[str, int]], events: int) -> list[tuple[str, ...]]:
    rows = []
    for what, topic in (("finding", _FINDINGS), ("command", _ACTIONS)):
        found = np.array([(at_ns - sent[node_id]) / 1e6 for node_id, at_ns in heard[topic].items()])
        cells = [figure(float(np.percentile(found, p))) if found.size else "-" for p in (50, 90, 99, 100)]
        rows.append((f"{what}, {name}", *cells, f"{len(found)} of {events}"))
    return rows


if __name__ == "__main__":
    main()

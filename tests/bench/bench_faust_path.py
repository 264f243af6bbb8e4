"""The Faust path: the same bytes through a real broker and one worker process a role, against bare client loops.

Topics are filled before anything reads them. The worker is the product's own, with its metrics page on; its cost is
taken from when a part of the topic has gone through (start-up and the first fetches are left out) to the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_side import Cost, local_kafka, produce, records_of, run_worker
from report import Section, Table, count, figure, options, publish, ratio
from simulated_bytes import frames, step_timings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.codec import Message

_RANKS = 4096
_LOOPS = tuple((client, decoding) for client in ("confluent", "aiokafka") for decoding in ("none", "orjson", "decode"))
_CHILD = Path(__file__).with_name("bare_loop.py")


def main() -> None:
    """Measure both roles."""
    asked = options(__doc__.splitlines()[0])
    load_before = os.getloadavg()[0]
    shrink = 10 if asked.quick else 1
    frame_load = frames(nodes=128, ticks=120 // shrink)
    step_load = step_timings(_RANKS, max(16, 40 // shrink))
    tables = (
        _measure(
            "telemetry",
            f"Role telemetry: frames of eight GPUs, 128 nodes, {len(frame_load.messages):,} messages:",
            [],
            frame_load.messages,
        ),
        _measure(
            "jobs",
            f"Role jobs: step timings of one job of {_RANKS:,} ranks (eight a message), {len(step_load.messages):,} messages:",
            records_of(step_load.reference),
            step_load.messages,
        ),
    )
    publish(
        Section(
            "faust_path",
            "Through Kafka and Faust",
            "One topic of one partition on a local Apache Kafka, filled beforehand; one process reads it to its end. "
            "Bare loops read the same topic with one client and decode each message; the worker decodes, judges and "
            "publishes (`paceline worker`). Processor time of the reading process.",
            tables,
            (
                (
                    "`decode` rows are what any consumer written in Python pays for validated records; the worker's rows "
                    "hold Faust, decoding, the engine, metrics and publishing."
                ),
                (
                    "Wall rates are of a machine that broker and reader share. A worker that catches up waits for the "
                    "broker to confirm what it publishes, so its wall rate stays below its rate per core."
                ),
            ),
        ),
        asked,
        load_before,
    )


def _measure(role: str, caption: str, reference: Sequence[Message], wires: Sequence[Message]) -> Table:
    table = Table(
        caption,
        (
            "reader",
            "CPU us a message",
            "messages/s per core",
            "wall messages/s",
            "/ confluent + decode",
            "/ aiokafka + decode",
        ),
    )
    with local_kafka() as servers:
        produce(servers, reference)
        produce(servers, wires)
        costs = {f"{client}, {decoding}": _loop(client, decoding, servers, wires) for client, decoding in _LOOPS}
        with run_worker(servers, role) as (worker,):
            costs[f"paceline worker, {role}"] = worker.cost_until(len(wires), run_in=len(wires) // 4)
    for name, cost in costs.items():
        table.rows.append(
            (
                name,
                figure(cost.cpu_us),
                count(1e6 / cost.cpu_us),
                count(cost.messages / cost.wall_s),
                ratio(cost.cpu_us / costs["confluent, decode"].cpu_us),
                ratio(cost.cpu_us / costs["aiokafka, decode"].cpu_us),
            )
        )
    return table


def _loop(client: str, decoding: str, servers: str, wires: Sequence[Message]) -> Cost:
    arguments = [client, decoding, servers, wires[0].topic, str(len(wires))]
    done = subprocess.run([sys.executable, str(_CHILD), *arguments], stdout=subprocess.PIPE, check=True, timeout=300)
    return Cost(**json.loads(done.stdout))


if __name__ == "__main__":
    main()

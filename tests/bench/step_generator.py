"""Plays step timings of one large job in real time, one step a second. A child of the latency benchmark.

`step_generator.py SERVERS RANKS STEPS SLOW_FROM`: makes the bytes of STEPS steps, says `ready`, waits for a line, then
publishes them, each node at its moment after the step's first report. From step SLOW_FROM on one GPU after the other is slow for
some steps, so that there is something to find. At the end it prints one JSON object: when the last report of each step was
handed to the client (nanoseconds since the epoch), and by how much it was ever behind its plan.
"""

from __future__ import annotations

import json
import sys
import time

from kafka_side import producer
from simulated_bytes import GPUS_PER_NODE, step_timings, templates

from schemas.topics import topic_named

_TOPIC = topic_named("step-timings").name
_STEP_NS = 1_000_000_000


def main() -> None:
    """Play."""
    servers = sys.argv[1]
    ranks, steps, slow_from = (int(argument) for argument in sys.argv[2:5])
    made = templates(step_timings(ranks, steps, slow_in_turn_from=slow_from), ranks // GPUS_PER_NODE)
    client = producer(servers, linger_ms=5)
    print("ready", flush=True)
    sys.stdin.readline()
    begun_ns = time.time_ns() + 200_000_000
    last_sent: dict[int, int] = {}
    behind_ns = 0
    for step in range(steps):
        step_ns = begun_ns + step * _STEP_NS
        for template in made[step]:
            due_ns = step_ns + template.sent_after_ns
            now_ns = time.time_ns()
            if now_ns < due_ns - 1_000_000:
                client.poll(0)
                time.sleep((due_ns - now_ns) / 1e9)
            client.produce(_TOPIC, template.at(step, step_ns + template.event_after_ns), template.key)
        last_sent[step] = time.time_ns()
        behind_ns = max(behind_ns, last_sent[step] - due_ns)
        client.poll(0)
    client.flush(30.0)
    print(json.dumps({"last_sent_ns": last_sent, "behind_ms": behind_ns / 1e6}), flush=True)


if __name__ == "__main__":
    main()

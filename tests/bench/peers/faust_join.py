"""The step join as a bare Faust program, for the benchmarks alone: what Faust itself costs the same little join.

Joins the step timings of nodes to one result a step: how many ranks, the longest own time and its lowest rank. A step
closes when all expected ranks are in. No deadlines, no repeats, no late records, no other figures; payloads are parsed
with orjson and not validated. State is a dict: a restart would lose it.

Arguments: servers, input topic, output topic, ranks of a step, messages to read, messages before the measurement begins.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

import faust
import orjson


class Join:
    """The join, and what it costs between two messages."""

    def __init__(self, expected: int, last: int, run_in: int) -> None:
        self._expected = expected
        self._last = last
        self._run_in = run_in
        self._messages = 0
        self._cpu_s = self._wall_s = 0.0
        self._steps: dict[tuple[str, int], tuple[int, int, int]] = {}

    @property
    def is_done(self) -> bool:
        """Whether the last message was folded."""
        return self._messages >= self._last

    def take(self, payload: bytes) -> bytes | None:
        """Fold one message; the step's result when it was the last one."""
        if self._messages == self._run_in:
            self._cpu_s, self._wall_s = time.process_time(), time.monotonic()
        result = self._fold(orjson.loads(payload))
        self._messages += 1
        if self._messages == self._last:
            self._cpu_s, self._wall_s = time.process_time() - self._cpu_s, time.monotonic() - self._wall_s
        return result

    def _fold(self, timing: dict[str, Any]) -> bytes | None:
        if timing["record"] != "step_timing":
            return None
        key = timing["job_id"], timing["step"]
        ranks, longest, longest_rank = self._steps.get(key, (0, -1, -1))
        for rank, own_us in zip(timing["rank"], timing["own_us"], strict=True):
            if own_us > longest or (own_us == longest and rank < longest_rank):
                longest, longest_rank = own_us, rank
        ranks += len(timing["rank"])
        if ranks < self._expected:
            self._steps[key] = ranks, longest, longest_rank
            return None
        self._steps.pop(key, None)
        return orjson.dumps(
            {
                "job_id": timing["job_id"],
                "step": timing["step"],
                "ranks_reported": ranks,
                "own_max_us": longest,
                "own_max_rank": longest_rank,
            }
        )

    def cost(self) -> dict[str, float]:
        """What the measured messages cost."""
        return {"messages": self._last - self._run_in, "cpu_s": self._cpu_s, "wall_s": self._wall_s}


def main() -> None:
    """Read the topic to its end."""
    servers, input_topic, output_topic, expected, last, run_in = sys.argv[1:7]
    logging.disable(logging.CRITICAL)
    asyncio.run(_run(servers, input_topic, output_topic, Join(int(expected), int(last), int(run_in))))


async def _run(servers: str, input_topic: str, output_topic: str, join: Join) -> None:
    app = faust.App(
        "bench-faust",
        broker=f"kafka://{servers}",
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=1.0,
        producer_linger=0.005,
        producer_compression_type="zstd",
        web_enabled=False,
        key_serializer="raw",
        value_serializer="raw",
    )
    done = asyncio.Event()
    results = app.topic(output_topic, key_serializer="raw", value_serializer="raw")

    async def fold(stream: Any) -> None:
        async for event in stream.events():
            result = join.take(event.message.value)
            if result is not None:
                confirmed = await results.send(key=event.message.key, value=result)
                if join.is_done:
                    await confirmed
            if join.is_done:
                done.set()

    app.agent(app.topic(input_topic, key_serializer="raw", value_serializer="raw"), name="fold")(fold)
    app.finalize()
    await app.start()
    await done.wait()
    print(json.dumps(join.cost()), flush=True)
    # Faust's own shutdown takes seconds and belongs to nothing that is measured.
    os._exit(0)


if __name__ == "__main__":
    main()

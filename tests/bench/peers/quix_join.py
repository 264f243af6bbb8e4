"""The step join as a Quix Streams program, for the benchmarks alone. Runs in a virtual environment of its own.

Joins the step timings of nodes to one result a step: how many ranks, the longest own time and its lowest rank. A step
closes when all expected ranks are in. No deadlines, no repeats, no late records, no other figures. State is kept as the
library does by default: RocksDB with a changelog, written at a checkpoint every five seconds.

Arguments: servers, input topic, output topic, ranks of a step, messages to read, messages before the measurement
begins, state directory.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from quixstreams import Application, State  # type: ignore[import-not-found]  # in its own environment


class Join:
    """The join, and what it costs between two messages."""

    def __init__(self, expected: int, last: int, run_in: int) -> None:
        self._expected = expected
        self._last = last
        self._run_in = run_in
        self._messages = 0
        self._cpu_s = self._wall_s = 0.0

    def take(self, timing: dict[str, Any], state: State) -> dict[str, Any] | None:
        """Fold one message; the step's result when it was the last one."""
        if self._messages == self._run_in:
            self._cpu_s, self._wall_s = time.process_time(), time.monotonic()
        result = self._fold(timing, state)
        self._messages += 1
        if self._messages == self._last:
            self._cpu_s, self._wall_s = time.process_time() - self._cpu_s, time.monotonic() - self._wall_s
        return result

    def _fold(self, timing: dict[str, Any], state: State) -> dict[str, Any] | None:
        if timing["record"] != "step_timing":
            return None
        step = str(timing["step"])
        ranks, longest, longest_rank = state.get(step) or (0, -1, -1)
        for rank, own_us in zip(timing["rank"], timing["own_us"], strict=True):
            if own_us > longest or (own_us == longest and rank < longest_rank):
                longest, longest_rank = own_us, rank
        ranks += len(timing["rank"])
        if ranks < self._expected:
            state.set(step, (ranks, longest, longest_rank))
            return None
        state.delete(step)
        return {
            "job_id": timing["job_id"],
            "step": timing["step"],
            "ranks_reported": ranks,
            "own_max_us": longest,
            "own_max_rank": longest_rank,
        }

    def cost(self) -> dict[str, float]:
        """What the measured messages cost."""
        return {"messages": self._last - self._run_in, "cpu_s": self._cpu_s, "wall_s": self._wall_s}


def main() -> None:
    """Read the topic to its end."""
    servers, input_topic, output_topic, expected, last, run_in, state_dir = sys.argv[1:8]
    logging.disable(logging.WARNING)
    app = Application(
        broker_address=servers,
        consumer_group="bench-quix",
        auto_offset_reset="earliest",
        state_dir=state_dir,
        loglevel=None,
    )
    join = Join(int(expected), int(last), int(run_in))
    timings = app.dataframe(app.topic(input_topic, key_deserializer="str", value_deserializer="json"))
    results = timings.apply(join.take, stateful=True).filter(lambda result: result is not None)
    results.to_topic(app.topic(output_topic, value_serializer="json"))
    app.run(count=int(last), timeout=60.0)
    print(json.dumps(join.cost()))


if __name__ == "__main__":
    main()

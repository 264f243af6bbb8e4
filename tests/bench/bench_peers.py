"""The step join beside the same join in Kafka Streams, Quix Streams and bare Faust, on one broker and one topic.

All read the same filled topic of one partition with one thread or process, and all results are compared. The peers
do the join and nothing else; the worker's jobs role does all that it does in production.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # re-exported without __all__
from kafka_side import Cost, local_kafka, produce, read_all, records_of, run_worker
from peer_setup import Peer, PeerMissingError, faust_peer, kafka_streams_peer, quix_peer
from report import Section, Table, count, figure, options, publish, ratio
from simulated_bytes import step_timings

from schemas.topics import topic_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated_bytes import StepLoad

_JOBS, _RANKS = 2, 1024
_RESULTS = topic_named("step-results").name
_OURS = "paceline worker, jobs"
_PEER_TIMEOUT_S = 400

_Join = dict[tuple[str, int], tuple[int, int, int]]
"""By job and step: ranks, longest own time in us, its rank."""


def main() -> None:
    """Measure all of them."""
    asked = options(__doc__.splitlines()[0])
    load_before = os.getloadavg()[0]
    load = step_timings(_RANKS, 16 if asked.quick else 120, jobs=_JOBS)
    wanted = _expected(load)
    run_in = len(load.messages) // 4
    makers: tuple[tuple[str, Callable[[], Peer]], ...] = (
        ("Faust, bare", lambda: faust_peer(importlib.metadata.version("faust-streaming"))),
        ("Kafka Streams", kafka_streams_peer),
        ("Quix Streams", quix_peer),
    )
    costs: dict[str, Cost | str] = {}
    same: dict[str, bool] = {}
    with local_kafka() as servers:
        produce(servers, records_of(load.reference))
        produce(servers, load.messages)
        with run_worker(servers, "jobs") as (worker,):
            costs[_OURS] = worker.cost_until(len(load.messages), run_in)
        same[_OURS] = _results(servers, _RESULTS) == wanted
        for number, (name, make) in enumerate(makers):
            try:
                peer = make()
                topic = f"peer-results-{number}"
                _make_topic(servers, topic)
                costs[peer.name] = _run(peer, servers, load, topic, run_in)
                same[peer.name] = _results(servers, topic) == wanted
            except PeerMissingError as error:
                costs[name] = str(error)
    publish(_section(load, costs, same), asked, load_before)


def _section(load: StepLoad, costs: dict[str, Cost | str], same: dict[str, bool]) -> Section:
    table = Table(
        f"{_JOBS} jobs of {_RANKS:,} ranks, {load.steps:,} steps in all, {len(load.messages):,} messages of eight ranks; "
        "the first quarter is left out of the cost:",
        ("program", "same results", "CPU us a message", "messages/s per core", "wall messages/s", "cost / ours"),
    )
    ours = costs[_OURS]
    assert isinstance(ours, Cost)
    for name, cost in costs.items():
        if isinstance(cost, str):
            table.rows.append((name, f"not to be had: {cost}", "-", "-", "-", "-"))
            continue
        table.rows.append(
            (
                name,
                "yes" if same[name] else "NO",
                figure(cost.cpu_us),
                count(1e6 / cost.cpu_us),
                count(cost.messages / cost.wall_s),
                ratio(cost.cpu_us / ours.cpu_us),
            )
        )
    return Section(
        "peers",
        "The step join in other libraries",
        "Per-node step timings in, one closed step out: number of ranks, longest own time and its rank, by job and step, "
        "closed when complete. Compared with the simulation's own bytes for every step. Programs: `tests/bench/peers/`.",
        (table,),
        (
            (
                "What ours does and the peers do not: every record is validated in full (pydantic); repeats, late records, "
                "deadlines and missing ranks; steps in order; all columns joined, not two; all job rules judged over all ranks; "
                "MFU; findings and progress marks; dead letters; metrics."
            ),
            "Bare Faust: orjson without validation, state in a dict that a restart loses.",
            (
                "Kafka Streams: Jackson tree without validation; one stream thread, RocksDB below its cache, changelog, "
                "defaults otherwise. Processor time is of the whole JVM, with its compiler and collector, which the first "
                "quarter does not fully leave behind."
            ),
            (
                "Quix Streams: its JSON without validation; RocksDB and changelog at a checkpoint every 5 s, defaults "
                "otherwise."
            ),
            (
                "None of the peers has the work of a remediation pipeline here: this compares what a message costs in each "
                "library, not what the products could do."
            ),
        ),
    )


def _expected(load: StepLoad) -> _Join:
    """The join as a plain fold over the bytes."""
    joined: _Join = {}
    for wire in load.messages:
        timing = orjson.loads(wire.value)
        key = timing["job_id"], timing["step"]
        ranks, longest, longest_rank = joined.get(key, (0, -1, -1))
        for rank, own_us in zip(timing["rank"], timing["own_us"], strict=True):
            longest, longest_rank = max((longest, longest_rank), (own_us, rank), key=lambda pair: (pair[0], -pair[1]))
        joined[key] = ranks + len(timing["rank"]), longest, longest_rank
    return joined


def _results(servers: str, topic: str) -> _Join:
    found: _Join = {}
    for received in read_all(servers, topic):
        value: Any = orjson.loads(received.value() or b"{}")
        key = value["job_id"], value["step"]
        figures = value["ranks_reported"], value["own_max_us"], value["own_max_rank"]
        assert found.get(key, figures) == figures, f"{topic}: two different results of step {key}"
        found[key] = figures
    return found


def _run(peer: Peer, servers: str, load: StepLoad, topic: str, run_in: int) -> Cost:
    arguments = [servers, load.messages[0].topic, topic, str(_RANKS), str(len(load.messages)), str(run_in)]
    with tempfile.TemporaryDirectory(prefix="paceline-peer-") as state_dir:
        if peer.has_state_dir:
            arguments.append(state_dir)
        done = subprocess.run(
            [*peer.command, *arguments], capture_output=True, text=True, timeout=_PEER_TIMEOUT_S, check=False
        )
    if done.returncode != 0:
        raise PeerMissingError(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def _make_topic(servers: str, topic: str) -> None:
    # Held by name: the answer is lost when the client goes.
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(timeout=30)


if __name__ == "__main__":
    main()

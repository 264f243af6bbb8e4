"""A hang noticed and judged live, through Kafka and Faust: from the last progress to the verdict, in real time.

50 simulated jobs of 64 ranks train one step a second and hang one after another, of thirteen kinds in four layouts; the roles jobs
and decisions are real workers, the order for evidence goes through `actions`, and the digests through
`collective-digests`. Event time is wall time. `--large` adds one hang of 16,384 ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parents[1]), str(BENCH.parent)]

from kafka_side import SITE, followed, local_kafka, produce, producer, records_of, run_worker  # noqa: E402
from report import Section, Table, figure, publish  # noqa: E402

from agents.simulation.standstill import Standstill  # noqa: E402
from schemas.fleet import Policy  # noqa: E402
from schemas.steps import CollectiveDigest  # noqa: E402
from tests import hang_cases, live_hangs  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_side import Worker

    from tests.live_hangs import Hang, Outcome

_STEPS, _STEP_NS = 15, 1_000_000_000
_APART_NS = 800_000_000


def main() -> None:
    """Play, listen, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="six hangs: shows that it runs, not how fast")
    parser.add_argument("--print-only", action="store_true", help="leave docs/benchmarks.md as it is")
    parser.add_argument("--large", action="store_true", help="one hang of 16,384 ranks too")
    parser.add_argument("--ranks", type=int, default=16384, help="of the large one, a multiple of 8")
    parser.add_argument("--seed", type=int, default=900, help="of the simulated hangs")
    asked = parser.parse_args()
    load_before = os.getloadavg()[0]
    played = live_hangs.prepared(6 if asked.quick else 50, asked.seed, _STEPS, _STEP_NS)
    print("the hangs are simulated", file=sys.stderr, flush=True)
    tables = list(_tables(*_run(played, _APART_NS)[:2]))
    if asked.large:
        tables.append(_large(asked.ranks, asked.seed))
    publish(_section(len(played), tuple(tables)), asked, load_before)


def _run(played: Sequence[Hang], apart_ns: int) -> tuple[list[Hang], dict[str, Outcome], dict[str, float]]:
    with local_kafka(4) as servers:
        policy = Policy(policy_version="bench", site_id=SITE, effective_from_ns=1)
        reference = [record for hang in played for record in hang.standstill.reference()]
        produce(servers, records_of([policy, *reference]))
        with run_worker(servers, "jobs", "decisions") as (jobs, decisions):
            started = live_hangs.started_at(played, time.time_ns() + 3_000_000_000, apart_ns)
            before = _memory(jobs)
            with followed(servers, *live_hangs.READ_TOPICS) as reader:
                outcomes = live_hangs.play(producer(servers, linger_ms=0), reader, started, 150.0)
            times = jobs.process.cpu_times()
            figures = {
                "rss_before": before,
                "rss_after": _memory(jobs),
                "cpu_s": times.user + times.system,
                "rss_decisions": _memory(decisions),
            }
            return started, outcomes, figures


def _memory(worker: Worker) -> float:
    return worker.process.memory_info().rss / 1e6


def _tables(played: list[Hang], outcomes: dict[str, Outcome]) -> list[Table]:
    told = [(hang, outcomes[hang.standstill.job_id]) for hang in played]
    limits = [_limit_s(outcome) for _, outcome in told if outcome.suspicion is not None]
    rows = []
    for what, times in (
        ("suspicion read", [(hang, o, o.suspected_ns) for hang, o in told]),
        ("order read on `actions`", [(hang, o, o.ordered_ns) for hang, o in told]),
        ("verdict's event time", [(hang, o, o.verdict.event_time_ns if o.verdict else 0) for hang, o in told]),
        ("verdict read on `findings`", [(hang, o, o.verdict_ns) for hang, o in told]),
        ("incident with its culprit read, settled lane", [(hang, o, o.culprit_ns) for hang, o in told]),
    ):
        after = [
            (at_ns - hang.standstill.last_progress_ns) / 1e9 - _limit_s(o) for hang, o, at_ns in times if at_ns and o
        ]
        cells = [figure(float(np.percentile(after, p))) if after else "-" for p in (50, 95, 100)]
        rows.append((what, *cells, f"{len(after)} of {len(told)}"))
    when = Table(
        f"Seconds after last progress + limit; the limit is {min(limits, default=0):.1f} to {max(limits, default=0):.1f} s, "
        f"steps take {_STEP_NS / 1e9:g} s:",
        ("", "p50", "p95", "longest", "came"),
        rows,
    )
    kinds: dict[str, list[tuple[Hang, Outcome]]] = {}
    for hang, outcome in told:
        kinds.setdefault(hang.fault, []).append((hang, outcome))
    answers = []
    for fault, ones in sorted(kinds.items()):
        scores = [live_hangs.score(hang, outcome) for hang, outcome in ones]
        said = sorted(o.verdict.kind for _, o in ones if o.verdict is not None)
        slowest = max((o.verdict_ns - h.standstill.last_progress_ns) / 1e9 - _limit_s(o) for h, o in ones)
        answers.append(
            (
                fault,
                str(len(ones)),
                "/".join(str(sum(column)) for column in zip(*scores, strict=True)),
                ", ".join(f"{kind} {said.count(kind)}" for kind in dict.fromkeys(said)),
                figure(slowest),
            )
        )
    who = Table(
        "What the verdicts say; ranks named rightly / wrongly / missed, of those that dumps can show:",
        ("fault", "hangs", "ranks", "verdicts", "longest, s after the limit"),
        answers,
    )
    return [when, who]


def _limit_s(outcome: Outcome) -> float:
    told = outcome.suspicion.values["limit_ms"] if outcome.suspicion is not None else 0
    assert isinstance(told, int | float)
    return told / 1000


def _large_digest(rank: int, ranks: int, culprit: int, standstill: Standstill) -> CollectiveDigest:
    """The digest of a rank of a job of tensor groups of 8 and data groups over all others, of which one rank stands still.

    Its tensor group waits for it, and all others in the data group for one of those.
    """
    first, lane = rank - rank % 8, rank % 8
    is_near = first <= culprit < first + 8
    tensor, data = 9000 + (rank != culprit and is_near), 500 + (not is_near)

    def group(desc: str, runs: list[list[int]], number: int, done: int) -> dict[str, Any]:
        counters = {"enqueued": number, "started": None, "completed": done, "seen": number, "pending": number - done}
        return {"desc": desc, "ranks": runs, "id": str(len(desc)), **counters}

    groups = (
        group("default_pg", [[0, 1, ranks]], 40, 40),
        group("DATA_PARALLEL_GROUP_WITH_CP", [[lane, 8, ranks // 8]], data, 500),
        group("MODEL_PARALLEL_GROUP", [[first, 1, 8]], 499, 499),
        group("TENSOR_MODEL_PARALLEL_GROUP", [[first, 1, 8]], tensor, 9000),
        group("TENSOR_AND_CONTEXT_PARALLEL_GROUP", [[first, 1, 8]], 120, 120),
        group("CONTEXT_PARALLEL_GROUP", [[rank, 1, 1]], 0, 0),
    )
    about = {"order": 2000, "input_sizes": [[4096, 8192]], "dtypes": ["BFloat16"]}
    waits = {"group": 1, "op": "_reduce_scatter_base", "seq": data}
    if is_near:
        waits = {"group": 3, "op": "_all_gather_base", "seq": tensor}
    completed = [{"group": 3, "op": "_all_gather_base", "seq": 9000 - n, **about, "order": 1990 - n} for n in (2, 1, 0)]
    return CollectiveDigest(
        job_id=standstill.job_id,
        node_id=standstill.node_id(rank),
        agent_session="simulated",
        seq=rank,
        event_time_ns=0,
        rank=rank,
        version="2.9",
        dump_path=f"/tmp/nccl_trace_rank_{rank}",
        dump_sha256="0" * 64,
        groups=groups,
        pending=() if rank == culprit else ({**waits, **about},),
        completed=tuple(completed),
        entry_count=2000,
        pending_total=int(rank != culprit),
    )


def _large(ranks: int, seed: int) -> Table:
    standstill = Standstill("job-large", ranks, 0, _STEPS, _STEP_NS, seed=seed)
    culprit = ranks // 3
    digests = {rank: _large_digest(rank, ranks, culprit, standstill) for rank in range(ranks)}
    truth = hang_cases.Truth(culprits={culprit})
    sizes = [len(digest.model_dump_json(exclude_none=True)) for digest in digests.values()]
    hang = live_hangs.Hang("python stuck", "large", standstill, digests, truth)
    (played,), outcomes, figures = _run([hang], 0)
    outcome = outcomes["job-large"]
    after_s = [
        (at_ns - played.standstill.last_progress_ns) / 1e9 - _limit_s(outcome)
        for at_ns in (outcome.suspected_ns, outcome.verdict_ns, outcome.culprit_ns)
    ]
    right, wrong, missed = live_hangs.score(played, outcome)
    return Table(
        f"One hang of {ranks:,} ranks on {played.standstill.nodes:,} nodes, one partition:",
        ("", "value"),
        [
            (
                "digests",
                f"{len(digests):,} of {min(sizes):,} to {max(sizes):,} bytes, {sum(sizes) / 1e6:.1f} MB in all",
            ),
            ("ranks named rightly / wrongly / missed", f"{right}/{wrong}/{missed}"),
            ("suspicion, verdict, incident, s after last progress + limit", ", ".join(f"{s:.1f}" for s in after_s)),
            ("RSS of the jobs worker before and after, MB", f"{figures['rss_before']:.0f}, {figures['rss_after']:.0f}"),
            ("its processor time in all, s", figure(figures["cpu_s"])),
        ],
    )


def _section(number: int, tables: tuple[Table, ...]) -> Section:
    return Section(
        "live_hang",
        "A hang, live: last progress to verdict",
        f"{number} jobs of 64 ranks on 8 nodes each, four partitions, default policy, `paceline worker` of the roles jobs and decisions. "
        "Agents are simulated: progress every 5 s, every second once nothing has moved for 10 s; dumps written within 0.5 s of the "
        "order and seen by their agent at its second look, a second apart. Event time is wall time, one clock.",
        tables,
        (
            "Seconds include the way through the broker twice, the workers, the writing of dumps and the agents' looks.",
            "Who carries the order out is the script: workers order in mode observe.",
            "A rank that no dump can show counts neither way; `gpu frozen`, `link cut` and circles have nobody to name.",
        ),
    )


if __name__ == "__main__":
    main()

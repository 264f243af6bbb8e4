"""Hangs with known truth: faults of a simulated job, and what of them its dumps can show.

What is decidable follows from the run alone: a second fault that hit a rank which already waited for the first is not, nor is a
device of which no completion is missing, nor a rank whose only witnesses left no dump. No rule of the judge is used.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from agents.decode.flight_recorder import dumps_in
from agents.decode.flight_recorder_dump import Dump
from agents.digest import collective_digest
from agents.simulation.collective_programs import JobGroup, JobLayout, job_groups, program
from agents.simulation.collective_run import Action, Faults, Issued, Never, Run, run_job
from agents.simulation.recorder import RecorderStyle, base_counts, dump_of
from schemas.steps import CollectiveDigest

STEPS = 3
LAYOUTS = {
    "tp2 pp4 dp2 moe": JobLayout(2, 1, 2, 4, expert=4, chunks=2, is_host_bound=True),
    "tp4 pp2 dp2 moe": JobLayout(4, 1, 2, 2, expert=8, chunks=2, is_host_bound=True),
    "tp2 pp4 dp2": JobLayout(2, 1, 2, 4),
    "tp2 pp2 dp4 batched": JobLayout(2, 1, 4, 2, is_batched=True),
    "tp2 cp2 pp2 dp2": JobLayout(2, 2, 2, 2),
    "tp4 dp4": JobLayout(4, 1, 4, 1, layers=2),
    "dp8": JobLayout(1, 1, 8, 1, layers=3),
    "tp8 pp2 dp4": JobLayout(8, 1, 4, 2, micro_batches=3),
}


@dataclass
class Truth:
    """Attributes:
    culprits: Who is at fault and can be told from the dumps.
    acceptable: At fault as well, but hidden: naming it is neither right nor wrong.
    verdict: Expected if nobody can be named.
    """

    culprits: set[int] = field(default_factory=set)
    acceptable: set[int] = field(default_factory=set)
    verdict: str = "hang"
    cause: str = ""


@dataclass
class Case:
    fault: str
    layout: str
    seed: int
    groups: list[JobGroup]
    run: Run
    dumps: dict[int, bytes]
    truth: Truth
    _digests: dict[int | None, list[CollectiveDigest]] = field(default_factory=dict, repr=False)

    def digests(self, limit_bytes: int | None = 16_000) -> list[CollectiveDigest]:
        if limit_bytes not in self._digests:
            self._digests[limit_bytes] = [
                digest_of(rank, data, limit_bytes) for rank, data in sorted(self.dumps.items())
            ]
        return self._digests[limit_bytes]


def digest_of(rank: int, data: bytes, limit_bytes: int | None = 16_000) -> CollectiveDigest:
    dump = next(iter(dumps_in(data, f"nccl_trace_rank_{rank}")))
    assert isinstance(dump, Dump), dump
    return collective_digest(
        dump,
        job_id="job",
        epoch=0,
        node_id=f"node-{rank // 8}",
        agent_session="session",
        seq=rank,
        event_time_ns=0,
        dump_path=f"/tmp/nccl_trace_rank_{rank}",
        dump_sha256="0" * 64,
        limit_bytes=limit_bytes,
    )


class Job:
    """A job that has run for a while, before its fault."""

    def __init__(self, layout: str, seed: int) -> None:
        self.random = random.Random(f"{layout}/{seed}")
        self.layout = LAYOUTS[layout]
        self.seed = seed
        self.groups = job_groups(self.layout)
        self.programs = {
            rank: program(self.layout, self.groups, rank, STEPS, seed) for rank in range(self.layout.world)
        }
        one_step = {rank: program(self.layout, self.groups, rank, 2, seed) for rank in range(self.layout.world)}
        self.base = base_counts(self.groups, one_step, self.random.randrange(20, 400))
        depth = self.random.choice((12, 30, 64, 200))
        self.queues = {rank: depth + self.random.randrange(0, 3) for rank in self.programs}
        self.length_us = max(rank.stopped_us for rank in self.go(Faults()).values())
        self.style = RecorderStyle(
            version=self.random.choice(("2.4", "2.5", "2.9", "2.10")),
            is_active_only=self.random.random() < 0.5,
            ring=self.random.choice((60, 400, 2000)),
            encoding=self.random.choice(("pickle", "json")),
            protocol=self.random.choice((2, 4, 5)),
        )

    def go(self, faults: Faults, programs: dict[int, list[Action]] | None = None) -> Run:
        chosen = programs if programs is not None else self.programs
        return run_job(
            [group.ranks for group in self.groups],
            {rank: iter(actions) for rank, actions in chosen.items()},
            faults,
            self.queues,
            self.base,
        )

    def moment_us(self) -> float:
        return self.length_us * self.random.uniform(0.2, 0.8)

    def ranks(self, count: int) -> list[int]:
        return self.random.sample(range(self.layout.world), count)

    def dumps(
        self, run: Run, seen_until_us: dict[int, float] | None = None, without: set[int] | None = None
    ) -> dict[int, bytes]:
        return {
            rank: dump_of(one, self.groups, self.style, (seen_until_us or {}).get(rank, Never))
            for rank, one in run.items()
            if rank not in (without or set())
        }

    def polled_us(self, moment_us: float) -> float:
        """When a watchdog last came round before a moment; its period is 100 ms at steps of a second."""
        period_us = self.length_us / STEPS / 2
        return moment_us - self.random.uniform(0.0, period_us)


Fault = Callable[[Job], tuple[Run, dict[int, bytes], Truth]]


def waits_for(run: Run, rank: int, waiter: int) -> bool:
    """Whether the waiter issued an operation that needs the rank and that the rank never issued."""
    issued = {(one.action.group, one.seq) for one in run[rank].issued if one.action.kind == "collective"}
    for one in run[waiter].stuck():
        if rank not in one.needs:
            continue
        if one.action.kind == "collective" and (one.action.group, one.seq) not in issued:
            return True
        if one.action.kind != "collective" and _unmatched(run, waiter, one):
            return True
    return False


def _unmatched(run: Run, waiter: int, one: Issued) -> bool:
    other = "recv" if one.action.kind == "send" else "send"
    mine = [x for x in run[waiter].issued if _is_pair(x, one.action.group, one.action.kind, one.action.peer)]
    theirs = [x for x in run[one.action.peer].issued if _is_pair(x, one.action.group, other, waiter)]
    return mine.index(one) >= len(theirs)


def _is_pair(one: Issued, group: int, kind: str, peer: int) -> bool:
    return (one.action.group, one.action.kind, one.action.peer) == (group, kind, peer)


def has_witness(run: Run, rank: int, dumped: set[int]) -> bool:
    return any(waits_for(run, rank, waiter) for waiter in dumped if waiter != rank)


def was_waiting(run: Run, rank: int) -> bool:
    """Whether a rank was itself held up by something other than a send."""
    return any(one.action.kind != "send" for one in run[rank].stuck())


def stuck_python(count: int) -> Fault:
    def fault(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
        ranks, moment_us = job.ranks(count), job.moment_us()
        at_us = {rank: moment_us + job.random.uniform(0, 300) for rank in ranks}
        run = job.go(Faults(stuck_host_us=at_us))
        truth = Truth(cause="not_entered")
        for rank in ranks:
            is_hidden = count > 1 and was_waiting(run, rank)
            (truth.acceptable if is_hidden or not has_witness(run, rank, set(run)) else truth.culprits).add(rank)
        return run, job.dumps(run), truth

    return fault


def broken_gpu(count: int) -> Fault:
    def fault(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
        ranks, moment_us = job.ranks(count), job.moment_us()
        at_us = {rank: moment_us + job.random.uniform(0, 300) for rank in ranks}
        stops = {rank: at + job.random.choice((50.0, 2000.0, 50_000.0)) for rank, at in at_us.items()}
        run = job.go(Faults(dead_device_us=at_us, stuck_host_us=stops))
        seen = {rank: job.polled_us(at) for rank, at in at_us.items()}
        truth = Truth(cause="hardware")
        for rank in ranks:
            (truth.culprits if missing_completions(run, rank, seen) >= 2 else truth.acceptable).add(rank)
        return run, job.dumps(run, seen), truth

    return fault


def missing_completions(run: Run, rank: int, seen_until_us: dict[int, float]) -> int:
    """Most collectives of one group that a peer's watchdog saw end and the rank's did not; one-sided ones aside."""
    unseen: dict[int, int] = {}
    for one in run[rank].issued:
        is_seen = one.end_us <= seen_until_us.get(rank, Never) and one.end_us != Never
        if one.action.kind != "collective" or is_seen:
            continue
        for peer in one.needs:
            end_us = next(
                (
                    x.end_us
                    for x in run[peer].issued
                    if (x.action.group, x.seq) == (one.action.group, one.seq) and x.action.kind == "collective"
                ),
                Never,
            )
            if end_us != Never and end_us <= seen_until_us.get(peer, Never) and one.action.op != "broadcast":
                unseen[one.action.group] = unseen.get(one.action.group, 0) + 1
                break
    return max(unseen.values(), default=0)


def frozen_gpu(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    """A device that stands still while its watchdog lives: nothing that it lacks has been completed by others."""
    rank = job.ranks(1)[0]
    run = job.go(Faults(dead_device_us={rank: job.moment_us()}))
    return run, job.dumps(run), Truth(acceptable={rank}, cause="transport")


def gpu_and_python(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    (broken, stuck), moment_us = job.ranks(2), job.moment_us()
    run = job.go(
        Faults(dead_device_us={broken: moment_us}, stuck_host_us={stuck: moment_us + 100, broken: moment_us + 3000})
    )
    seen = {broken: job.polled_us(moment_us)}
    truth = Truth()
    (truth.culprits if missing_completions(run, broken, seen) >= 2 else truth.acceptable).add(broken)
    is_shown = not was_waiting(run, stuck) and has_witness(run, stuck, set(run))
    (truth.culprits if is_shown else truth.acceptable).add(stuck)
    return run, job.dumps(run, seen), truth


def killed(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    rank = job.ranks(1)[0]
    run = job.go(Faults(killed_us={rank: job.moment_us()}))
    truth = Truth(cause="not_entered", acceptable={rank}, verdict="undecided")
    if silent_is_shown(job, run, rank):
        truth.culprits.add(rank)
        truth.verdict = "hang"
    return run, job.dumps(run, without={rank}), truth


def silent_is_shown(job: Job, run: Run, rank: int) -> bool:
    """Two members of one group are held up in it, as the first that holds them up, and the rank is the only one absent."""
    for index, group in enumerate(job.groups):
        if rank not in group.ranks:
            continue
        waiters = 0
        for member in group.ranks:
            stuck = run[member].stuck() if member != rank else []
            if stuck and stuck[0].action.group == index and rank in stuck[0].needs and waits_for(run, rank, member):
                waiters += 1
        if waiters >= 2:
            return True
    return False


def lost_dumps(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    """One rank is stuck; the dumps of a quarter of the others got lost."""
    culprit = job.ranks(1)[0]
    run = job.go(Faults(stuck_host_us={culprit: job.moment_us()}))
    others = [rank for rank in run if rank != culprit]
    lost = set(job.random.sample(others, max(1, len(others) // 4)))
    truth = Truth(cause="not_entered", acceptable={culprit}, verdict="any")
    if has_witness(run, culprit, set(run) - lost):
        truth = Truth(cause="not_entered", culprits={culprit})
    return run, job.dumps(run, without=lost), truth


def two_mates_silent(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    """All ranks of the culprit's smallest group died: their neighbours cannot tell which of them was the first."""
    culprit = job.ranks(1)[0]
    mates = min((g.ranks for g in job.groups if culprit in g.ranks and len(g.ranks) > 1), key=len)
    run = job.go(Faults(killed_us=dict.fromkeys(mates, job.moment_us())))
    return run, job.dumps(run, without=set(mates)), Truth(acceptable=set(mates), verdict="any")


def cut_link(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    ranks = job.ranks(1)
    group = job.random.choice(
        [i for i, g in enumerate(job.groups) if ranks[0] in g.ranks and len(g.ranks) > 1 and is_used(job, i)]
    )
    run = job.go(Faults(cut_group_us={group: job.moment_us()}))
    verdict = "hang" if any(one.stuck() for one in run.values()) else "healthy"
    return run, job.dumps(run), Truth(verdict=verdict, cause="transport")


def is_used(job: Job, group: int) -> bool:
    return any(action.group == group for action in job.programs[job.groups[group].ranks[0]])


def different(change: Callable[[Action], Action], desc: str) -> Fault:
    """One rank issues one collective of a group in another way than the others."""

    def fault(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
        candidates = [i for i, g in enumerate(job.groups) if g.desc == desc and len(g.ranks) > 1]
        group = job.random.choice(candidates)
        culprit = job.random.choice(job.groups[group].ranks)
        programs = dict(job.programs)
        actions = list(programs[culprit])
        places = [
            i
            for i, a in enumerate(actions)
            if a.kind == "collective" and a.group == group and a.op not in {"broadcast", "all_to_all"}
        ]
        place = places[job.random.randrange(len(places) // 4, max(len(places) // 4 + 1, 3 * len(places) // 4))]
        actions[place] = change(actions[place])
        programs[culprit] = actions
        run = job.go(Faults(), programs)
        truth = Truth(cause="inconsistent")
        (truth.culprits if len(job.groups[group].ranks) > 2 else truth.acceptable).add(culprit)
        return run, job.dumps(run), truth

    return fault


def other_size(action: Action) -> Action:
    return replace(action, elements=action.elements + 1025)


def other_type(action: Action) -> Action:
    return replace(action, dtype="Double")


def other_op(action: Action) -> Action:
    return replace(action, op="reduce" if action.op != "reduce" else "all_reduce")


def skipped(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    """A rank leaves one collective of its tensor (or else data) group out: from there on its order is another one."""
    desc = "TENSOR_MODEL_PARALLEL_GROUP" if job.layout.tensor > 1 else "DATA_PARALLEL_GROUP_WITH_CP"
    group = job.random.choice([i for i, g in enumerate(job.groups) if g.desc == desc])
    culprit = job.random.choice(job.groups[group].ranks)
    actions = list(job.programs[culprit])
    places = [
        i for i, a in enumerate(actions) if a.kind == "collective" and a.group == group and a.op == "_all_gather_base"
    ]
    del actions[places[len(places) // 2]]
    run = job.go(Faults(), {**job.programs, culprit: actions})
    truth = Truth(cause="inconsistent")
    (truth.culprits if len(job.groups[group].ranks) > 2 else truth.acceptable).add(culprit)
    return run, job.dumps(run), truth


def circle(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    """Two neighbours of a pipeline both wait for the other's message before they send their own."""
    group = next(i for i, g in enumerate(job.groups) if g.desc == "PIPELINE_MODEL_PARALLEL_GROUP" and is_used(job, i))
    first, second = job.groups[group].ranks[:2]
    kind = job.random.choice(("send", "recv"))
    programs = dict(job.programs)
    for rank, peer in ((first, second), (second, first)):
        actions = list(programs[rank])
        place = len(actions) // 2
        batch = 1_000_000 if job.layout.is_batched else 0
        blocking = [
            Action(kind, us=80.0, group=group, op=kind, peer=peer, elements=64, batch=batch),
            Action("sync"),
        ]
        programs[rank] = actions[:place] + blocking + actions[place:]
    run = job.go(Faults(), programs)
    return run, job.dumps(run), Truth(cause="inconsistent")


def healthy(job: Job) -> tuple[Run, dict[int, bytes], Truth]:
    run = job.go(Faults())
    return run, job.dumps(run), Truth(verdict="healthy")


FAULTS: dict[str, Fault] = {
    "python stuck": stuck_python(1),
    "python stuck, two": stuck_python(2),
    "gpu broken": broken_gpu(1),
    "gpu broken, two": broken_gpu(2),
    "gpu and python": gpu_and_python,
    "gpu frozen": frozen_gpu,
    "process killed, no dump": killed,
    "stuck, dumps lost": lost_dumps,
    "whole group silent": two_mates_silent,
    "link cut": cut_link,
    "size differs": different(other_size, "MODEL_PARALLEL_GROUP"),
    "type differs": different(other_type, "DATA_PARALLEL_GROUP_WITH_CP"),
    "operation differs": different(other_op, "TENSOR_MODEL_PARALLEL_GROUP"),
    "operation left out": skipped,
    "messages in a circle": circle,
    "healthy": healthy,
}

PAIRS: tuple[tuple[str, str], ...] = (
    *(
        (fault, layout)
        for fault in ("python stuck", "python stuck, two", "gpu broken", "gpu broken, two")
        for layout in LAYOUTS
    ),
    *(
        (fault, layout)
        for fault in ("gpu and python", "gpu frozen", "process killed, no dump", "stuck, dumps lost")
        for layout in LAYOUTS
    ),
    *(("whole group silent", layout) for layout in ("tp2 pp4 dp2 moe", "tp2 pp4 dp2", "tp4 dp4")),
    *(("link cut", layout) for layout in LAYOUTS),
    *(("size differs", layout) for layout in ("tp2 pp4 dp2", "tp4 pp2 dp2 moe", "tp4 dp4", "tp2 cp2 pp2 dp2")),
    *(("type differs", layout) for layout in ("dp8", "tp2 pp2 dp4 batched", "tp8 pp2 dp4", "tp2 pp4 dp2 moe")),
    *(("operation differs", layout) for layout in ("tp8 pp2 dp4", "tp4 pp2 dp2 moe", "tp2 pp4 dp2")),
    *(("operation left out", layout) for layout in ("tp8 pp2 dp4", "tp4 dp4", "dp8", "tp2 pp4 dp2")),
    *(("messages in a circle", layout) for layout in ("tp2 pp4 dp2", "tp2 pp4 dp2 moe", "tp2 pp2 dp4 batched")),
    *(("healthy", layout) for layout in LAYOUTS),
)


def case(fault: str, layout: str, seed: int) -> Case:
    job = Job(layout, seed)
    run, dumps, truth = FAULTS[fault](job)
    return Case(fault, layout, seed, job.groups, run, dumps, truth)


def cases(seeds: range) -> Iterator[Case]:
    for fault, layout in PAIRS:
        for seed in seeds:
            yield case(fault, layout, seed)

"""Trainer logs turned into an archive: one job, and one step timing per log file and step.

What a log carries is kept and nothing is made up. A line's step time is that of the rank which the line or the file's
name gives; without one it is the job's where timers name ranks in the same log, else that of a reporter numbered in the
order of the files. Own time is only known where timers name ranks (`times across ranks`, `time (ms) |` lines); they
belong to the nearest step line before them. Minima and maxima without a rank give nothing, nor do straggler reports:
the slowest and the fastest of all ranks differ in a healthy job too, by stage if by nothing else.

A mean over several steps stands at the step that prints it. A step number that falls begins a new epoch of the job
(a restart). Phases are not told: logs name no warm-up, and evaluation lines are no steps. Logs are held in memory.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from statistics import median
from typing import TYPE_CHECKING, Final

from agents.importers.op_trace import EPOCH_NS, ImportFailedError
from agents.importers.step_lines import LoggedStep, Report, WallClock, rank_in_name
from agents.importers.step_log_file import StepLog
from agents.importers.step_timing import rank_rows, step_timing
from schemas.fleet import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from schemas.base import Record
    from schemas.fleet import RankPlacement

__all__ = ["Report", "step_log_records"]

_TOKEN_SPREAD: Final = 0.03
"""By how much tokens per step may vary over a log and still be one number: printed rates are rounded to 3 digits."""


def step_log_records(
    logs: Sequence[Path],
    *,
    job: Job | None = None,
    placements: Iterable[RankPlacement] = (),
    start_ns: int | None = None,
    zone: tzinfo = UTC,
    report: Report | None = None,
) -> Iterator[tuple[int, Record]]:
    """Records of trainer logs with the time at which each would have arrived, in that order.

    Own time is forward and backward without `batch-generator`, which Megatron-LM measures inside forward and which is
    `data_us` here. The optimizer's timer includes its collectives, so it stands in `optimizer_us` alone. `wait_us` is
    the sum of point-to-point and gradient timers.

    Args:
        logs: one file per rank or node, or one of the whole job. The rank is the line's own, else the file name's
            (`rank_3`, `rank-3`, `train.3.log`), else each file is a reporter and takes the next free number.
        job: description to merge; needed for MFU and to tell pipeline stages apart. Who reports, and from when it
            holds, are the logs'; `tokens_per_step` is filled in where a printed token rate and step time agree on it.
        placements: devices of the ranks, as a job file gives them.
        start_ns: where event time begins if lines carry none; by default at the first time of another log, or 2020.
        zone: of times that are printed without a zone.
        report: is filled in.

    Raises:
        ImportFailedError: a log cannot be read, none has a step with a time, or a rank is not of the job.
    """
    report = report if report is not None else Report()
    tokens_per_gpu = job.tokens_per_step / job.world_size if job and job.tokens_per_step else None
    if len({path.resolve() for path in logs}) != len(logs):
        raise ImportFailedError("a log is given twice")
    base_ns = EPOCH_NS if start_ns is None else start_ns
    read = [StepLog(path, WallClock(zone, base_ns), tokens_per_gpu, report) for path in logs]
    _name_reporters(read, job)
    if not any(log.steps for log in read):
        names = ", ".join(str(path) for path in logs) or "no log given"
        raise ImportFailedError(f"{names}: no step with a time ({report.without_time} steps without one)")
    firsts = [
        first.wall_ns - first.duration_us * 1000
        for log in read
        if (first := next(iter(log.steps.values()), None)) is not None and first.wall_ns is not None
    ]
    for log in read:
        log.set_event_times(max(0, min(firsts)) if firsts and start_ns is None else base_ns)
    ranks = {rank for log in read for step in log.steps.values() for rank in step.rows}
    described = _described(read, job, ranks)
    report.steps = sum(len(log.steps) for log in read)
    yield from _in_order(read, described, list(placements))


def _in_order(read: list[StepLog], described: Job, placements: list[RankPlacement]) -> Iterator[tuple[int, Record]]:
    items: list[tuple[int, int, int, Record | LoggedStep]] = []
    starts_ns: dict[int, int] = {}
    ranks: dict[int | None, set[int | None]] = {}
    for index, log in enumerate(read):
        for step in log.steps.values():
            begin_ns = max(0, step.event_ns - step.duration_us * 1000)
            starts_ns[step.epoch] = min(begin_ns, starts_ns.get(step.epoch, begin_ns))
            ranks.setdefault(step.epoch, set()).update(step.rows)
            items.append((step.event_ns, 1, index, step))
    for epoch, start_ns in starts_ns.items():
        number = described.epoch + epoch
        reporting = len(ranks[epoch]) if len(ranks[epoch]) < described.world_size else None
        update = {"epoch": number, "effective_from_ns": start_ns}
        items.append((start_ns, 0, 0, described.model_copy(update={**update, "reporting_ranks": reporting})))
        items += [(start_ns, 0, 1, placement.model_copy(update=update)) for placement in placements]
    items.sort(key=lambda item: item[:3])
    node_ids = _node_ids([log.path for log in read])
    sequence = [0] * len(read)
    for at_ns, _, index, item in items:
        if not isinstance(item, LoggedStep):
            yield at_ns, item
            continue
        for rows in rank_rows(item):
            yield (
                at_ns,
                step_timing(
                    item,
                    rows,
                    job_id=described.job_id,
                    first_epoch=described.epoch,
                    node_id=node_ids[index],
                    agent_session="import",
                    sequence=sequence[index],
                ),
            )
            sequence[index] += 1


def _name_reporters(read: list[StepLog], job: Job | None) -> None:
    """Decide whose the lines are that name no rank."""
    world_size = job.world_size if job is not None else None
    taken = {rank for log in read for rank in log.named_ranks | log.timer_ranks}
    in_name = [rank_in_name(log.path.name, world_size) for log in read]
    taken |= {rank for rank in in_name if rank is not None}
    free = 0
    for log, rank in zip(read, in_name, strict=True):
        if not log.has_unnamed:
            continue
        if len(log.named_ranks) == 1:
            rank = next(iter(log.named_ranks))  # noqa: PLW2901 - what lines name goes before the file's name
        elif rank is None and not log.timer_ranks:
            while free in taken:
                free += 1
            rank, free = free, free + 1  # noqa: PLW2901
        log.name_reporter(rank)


def _described(read: list[StepLog], job: Job | None, ranks: set[int | None]) -> Job:
    """The job as given, or as far as the logs tell: as many ranks as the highest number asks for."""
    highest = max(rank for rank in ranks if rank is not None)
    if job is None:
        return Job(job_id=_stem(read[0].path)[:253], effective_from_ns=0, world_size=highest + 1)
    if highest >= job.world_size:
        raise ImportFailedError(f"rank {highest} reports, but the job has ranks 0 to {job.world_size - 1}")
    tokens = [value * job.world_size for log in read for value in log.tokens_per_gpu]
    if job.tokens_per_step is None and tokens and max(tokens) <= min(min(tokens) * (1 + _TOKEN_SPREAD), 2**62):
        return job.model_copy(update={"tokens_per_step": round(median(tokens)) or None})
    return job


def _node_ids(paths: list[Path]) -> list[str]:
    """`log:` and the file's stem, told apart by the folder and then by a number where stems are equal."""
    stems = [_stem(path) for path in paths]
    names = [
        f"log:{_printable(path.resolve().parent.name)}/{stem}" if stems.count(stem) > 1 else f"log:{stem}"
        for path, stem in zip(paths, stems, strict=True)
    ]
    names = [name[-240:] for name in names]
    return [f"{name}#{names[:i].count(name) + 1}" if name in names[:i] else name for i, name in enumerate(names)]


def _stem(path: Path) -> str:
    return _printable(path.stem)


def _printable(name: str) -> str:
    """A file name without the lone surrogates that stand for bytes which are not UTF-8."""
    return name.encode("utf-8", "replace").decode()

"""Operation-level traces of training jobs (one row per operation) turned into step timings.

Rows: `dp_rank, stage, rank, step, optype, start_ts, duration` in seconds relative to the step's start; a YAML layout names
the degrees of parallelism. `rank` is the global rank that a row's tensor or context group is known by, and stays the
rank of the record. What a reader must not do, and this one does not:

- take step time minus recorded waits as own time: there are waits that no row records. Own time is the sum of the
  compute rows, optimizer and garbage collection.
- count batched point-to-point rows twice: pairs with equal start and duration are one wait.
- read gaps in step numbers as lost steps.
- read an operation that was not recorded as one that took no time: where a rank has fewer rows of a computing operation
  in a step than others of its stage, their mean stands for the lost ones; where it has none, its stage's median does.

The trace names no nodes and no devices, so each row group reports as a node of its own (`<job>-rank-<rank>`), without a
device. It names no wall time either: event time starts at `EPOCH_NS`, and unrecorded steps take the median step time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.fleet import Job, Layout, RankPlacement
from schemas.steps import CollectiveTiming, StepTiming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.base import Record

__all__ = ["EPOCH_NS", "ImportFailedError", "op_trace_records"]

EPOCH_NS = 1_577_836_800_000_000_000
"""2020-01-01: where the event time of a trace without wall time begins."""

_COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration")
_FORWARD = "forward-compute"
_BACKWARD = "backward-compute"
_COMPUTING = (_FORWARD, _BACKWARD, "optimizer", "gc")
_POINT_TO_POINT = frozenset({"forward-send", "forward-recv", "backward-send", "backward-recv"})
_DATA_GROUP = frozenset({"grads-reduce-scatter", "params-all-gather", "layernorm-grads-all-reduce"})


class ImportFailedError(Exception):
    """The trace or its layout cannot be read; the text says what is missing."""


def op_trace_records(trace: Path, layout: Path) -> Iterator[tuple[int, Record]]:
    """Records of a trace with the time at which each would have arrived, in that order.

    Args:
        trace: Parquet file of operations.
        layout: YAML file with `dp_size`, `pp_size`, `tp_size`, `dsp_size` (context), `vpp_size`, `world_size`.

    Raises:
        ImportFailedError: a file cannot be read, or lacks a column or a degree.
    """
    degrees = _read_layout(layout)
    table = _read_trace(trace)
    job_id = str(degrees.get("trial_name") or trace.stem)
    ranks = np.unique(table["rank"])
    steps = np.unique(table["step"])
    stage_of = dict(zip(table["rank"].tolist(), table["stage"].tolist(), strict=True))
    yield (
        EPOCH_NS,
        Job(
            job_id=job_id,
            effective_from_ns=EPOCH_NS,
            world_size=degrees["world_size"],
            reporting_ranks=len(ranks),
            layout=Layout(
                tensor=degrees["tp_size"],
                context=degrees["dsp_size"],
                data=degrees["dp_size"],
                pipeline=degrees["pp_size"],
                virtual_pipeline=degrees["vpp_size"],
            ),
        ),
    )
    for rank in ranks.tolist():
        yield (
            EPOCH_NS,
            RankPlacement(
                job_id=job_id,
                effective_from_ns=EPOCH_NS,
                node_id=_node_id(job_id, rank),
                rank=(rank,),
                gpu_uuid=(None,),
                stage=(stage_of[rank],),
            ),
        )
    ends = table["start_ts"] + table["duration"]
    step_s = {step: float(ends[table["step"] == step].max()) for step in steps.tolist()}
    median_s = float(np.median(list(step_s.values())))
    now_ns, previous = EPOCH_NS, None
    for sequence, step in enumerate(steps.tolist()):
        skipped = step - previous - 1 if previous is not None else 0
        now_ns += int(skipped * median_s * 1e9) + int(step_s[step] * 1e9)
        previous = step
        rows = np.flatnonzero(table["step"] == step)
        computing_us = _computing_us(table, rows)
        for rank in ranks.tolist():
            own_rows = rows[table["rank"][rows] == rank]
            if own_rows.size:
                timing = _timing(table, own_rows, computing_us, job_id, rank, step, sequence, now_ns, step_s[step])
                yield now_ns, timing


def _computing_us(table: dict[str, NDArray[Any]], rows: NDArray[np.int64]) -> dict[tuple[int, str], int]:
    """Time of one step by rank and kind of computing operation, as if every operation had been recorded."""
    whole: dict[tuple[int, str], int] = {}
    stage, rank, duration = table["stage"][rows], table["rank"][rows], table["duration"][rows]
    for kind in _COMPUTING:
        is_kind = table["optype"][rows] == kind
        for one in np.unique(stage).tolist():
            here = is_kind & (stage == one)
            members, counts = np.unique(rank[here], return_counts=True)
            if not members.size:
                continue
            sums = {}
            for member, count in zip(members.tolist(), counts.tolist(), strict=True):
                seconds = float(duration[here & (rank == member)].sum(dtype=np.float64))
                sums[member] = round(seconds * (int(counts.max()) / count) * 1e6)
            without = round(float(np.median(list(sums.values()))))
            for member in np.unique(rank[stage == one]).tolist():
                whole[member, kind] = sums.get(member, without)
    return whole


def _timing(
    table: dict[str, NDArray[Any]],
    rows: NDArray[np.int64],
    computing_us: dict[tuple[int, str], int],
    job_id: str,
    rank: int,
    step: int,
    sequence: int,
    now_ns: int,
    step_s: float,
) -> StepTiming:
    optype = table["optype"][rows]
    start, duration = table["start_ts"][rows], table["duration"][rows]

    def total_us(*names: str) -> int:
        return round(float(duration[np.isin(optype, names)].sum(dtype=np.float64)) * 1e6)

    forward_us, backward_us, optimizer_us, host_us = (computing_us.get((rank, kind), 0) for kind in _COMPUTING)
    point_to_point = np.isin(optype, list(_POINT_TO_POINT))
    waits = np.unique(np.stack([start[point_to_point], duration[point_to_point]], axis=1), axis=0)
    point_to_point_us = round(float(waits[:, 1].sum(dtype=np.float64)) * 1e6)
    data_us = total_us(*_DATA_GROUP)
    embedding_us = total_us("embedding-grads-all-reduce")
    stage, data_rank = int(table["stage"][rows[0]]), int(table["dp_rank"][rows[0]])
    collectives = [CollectiveTiming(group="dp", instance=(stage,), duration_us=(data_us,))]
    if point_to_point.any():
        collectives.append(CollectiveTiming(group="pp", instance=(data_rank,), duration_us=(point_to_point_us,)))
    return StepTiming(
        job_id=job_id,
        node_id=_node_id(job_id, rank),
        agent_session="import",
        seq=sequence,
        event_time_ns=now_ns,
        step=step,
        rank=(rank,),
        step_us=(round(step_s * 1e6),),
        compute_us=(forward_us + backward_us + optimizer_us,),
        forward_us=(forward_us,),
        backward_us=(backward_us,),
        optimizer_us=(optimizer_us,),
        host_us=(host_us,),
        wait_us=(point_to_point_us + data_us + embedding_us,),
        collectives=tuple(collectives),
    )


def _node_id(job_id: str, rank: int) -> str:
    return f"{job_id}-rank-{rank}"


def _read_layout(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ImportFailedError("reading a layout needs PyYAML: pip install 'paceline[parquet]'") from None
    try:
        degrees = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ImportFailedError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ImportFailedError(f"{path}: no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(degrees, dict):
        raise ImportFailedError(f"{path}: no mapping of names to sizes")
    for name in ("dp_size", "pp_size", "tp_size", "world_size"):
        if not isinstance(degrees.get(name), int) or degrees[name] < 1:
            raise ImportFailedError(f"{path}: {name} is to be a whole number of at least 1")
    for name in ("dsp_size", "vpp_size"):
        degrees[name] = degrees.get(name) or 1
    return degrees


def _read_trace(path: Path) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise ImportFailedError("reading Parquet needs pyarrow: pip install 'paceline[parquet]'") from None
    try:
        table = pa.parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ImportFailedError(f"{path}: {error}") from None
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise ImportFailedError(f"{path}: no column {', '.join(missing)}")
    columns = {}
    for name in _COLUMNS:
        column = table[name]
        if column.null_count:
            raise ImportFailedError(f"{path}: column {name} has {column.null_count} nulls")
        columns[name] = (
            np.array(column.to_pylist(), dtype=object if name == "optype" else np.float64)
            if name in {"optype", "start_ts", "duration"}
            else column.to_numpy().astype(np.int64)
        )
    if not len(columns["rank"]):
        raise ImportFailedError(f"{path}: no rows")
    columns["optype"] = columns["optype"].astype(str)
    return columns

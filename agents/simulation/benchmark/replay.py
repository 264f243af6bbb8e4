"""Replay of recorded training steps through the pipeline recursion: own durations in, the step's time out.

A check of the recursion on what it was not made from. Taken from a trace are computing times of every operation, and of
communication only its shortest time in a group: the transfer without waiting. Waits are left to the recursion. What no row
records between the last backward pass and the gradient's first all-reduce is taken at its shortest over all ranks, since
the others wait there. Deliberately no reader of files: columns come as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.simulation.benchmark.pipeline import run_exact
from agents.simulation.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agents.simulation.noise import FloatArray

__all__ = ["ReplayedStep", "replay_steps"]

COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id")
"""Columns of a trace, one row per operation; times in seconds."""

_PASSES = ("forward-compute", "backward-compute")
_CLOSING = (
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
    "optimizer",
)


@dataclass(frozen=True)
class ReplayedStep:
    """One recorded step: what it took and what the recursion makes of its own durations, seconds."""

    step: int
    observed_s: float
    replayed_s: float

    @property
    def error(self) -> float:
        """Relative error of the replay."""
        return self.replayed_s / self.observed_s - 1.0


def replay_steps(columns: Mapping[str, NDArray[Any]]) -> Iterator[ReplayedStep]:
    """Replay every step of a trace, in the order of their numbers.

    Args:
        columns: `COLUMNS` of the trace, all of one length.

    Raises:
        ScenarioError: a column is missing, or a step lacks operations of some rank.
    """
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise ScenarioError(f"trace: no column {missing[0]}")
    for step in np.unique(columns["step"]).tolist():
        here = columns["step"] == step
        yield _replay(int(step), {name: columns[name][here] for name in COLUMNS})


def _replay(step: int, rows: dict[str, NDArray[Any]]) -> ReplayedStep:
    start, duration = rows["start_ts"].astype(np.float64), rows["duration"].astype(np.float64)
    end = start + duration
    stages, replicas = int(rows["stage"].max()) + 1, int(rows["dp_rank"].max()) + 1
    forward, backward = (_passes(step, rows, duration, kind, stages, replicas) for kind in _PASSES)
    # A hand-over holds its sender too: its shortest time goes with the operation before it.
    for kind, passes in (("forward-send", forward), ("backward-send", backward)):
        for stage in range(stages):
            sends = (rows["optype"] == kind) & (rows["stage"] == stage)
            if sends.any():
                passes[:, stage] += duration[sends].min()
    gathers = rows["optype"] == "params-all-gather"
    opening = np.zeros((1, stages, replicas))
    for stage in range(stages):
        gathered = duration[gathers & (rows["stage"] == stage)]
        opening[:, stage] = gathered.min() if len(gathered) else 0.0
    # From the gather to the first pass of the first stage, which waits for nobody: the batch is loaded.
    begins = start[(rows["optype"] == _PASSES[0]) & (rows["stage"] == 0)]
    ends = end[gathers & (rows["stage"] == 0)]
    load = max(0.0, float(begins.min() - ends.min())) if len(ends) else 0.0
    hop = np.zeros((1, max(0, stages - 1), replicas))
    done = run_exact(opening + load, forward, backward, hop).done
    replayed = float(done.max()) + _closing(rows, start, end, duration)
    return ReplayedStep(step, float(end.max() - start.min()), replayed)


def _passes(
    step: int, rows: dict[str, NDArray[Any]], duration: FloatArray, kind: str, stages: int, replicas: int
) -> FloatArray:
    chosen = rows["optype"] == kind
    count = int(rows["seq_id"][chosen].max()) + 1 if chosen.any() else 0
    passes = np.full((1, stages, replicas, max(count, 1)), np.nan)
    passes[0, rows["stage"][chosen], rows["dp_rank"][chosen], rows["seq_id"][chosen]] = duration[chosen]
    if np.isnan(passes).any():
        raise ScenarioError(f"trace: step {step} lacks {kind} of some rank")
    return passes


def _closing(rows: dict[str, NDArray[Any]], start: FloatArray, end: FloatArray, duration: FloatArray) -> float:
    """From the last pass to the end of the step: transfers and the optimizer, each at its shortest, and the gap."""
    total = 0.0
    for kind in _CLOSING:
        chosen = rows["optype"] == kind
        if chosen.any():
            # The last of the stages that meet in a reduce-scatter sets the pace; of each the shortest is its transfer.
            total += max(
                float(duration[chosen & (rows["stage"] == stage)].min(initial=np.inf))
                for stage in _stages(rows, chosen)
            )
    units = rows["stage"].astype(np.int64) * 1_000 + rows["dp_rank"]
    last_pass = np.full(int(units.max()) + 1, -np.inf)
    passes = np.isin(rows["optype"], _PASSES)
    np.maximum.at(last_pass, units[passes], end[passes])
    closes = rows["optype"] == _CLOSING[0]
    gaps = start[closes] - last_pass[units[closes]]
    return total + (max(0.0, float(gaps.min())) if len(gaps) else 0.0)


def _stages(rows: dict[str, NDArray[Any]], chosen: NDArray[np.bool_]) -> list[int]:
    return np.unique(rows["stage"][chosen]).tolist()  # type: ignore[no-any-return]

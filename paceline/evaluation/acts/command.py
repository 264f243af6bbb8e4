"""`paceline evaluate --suite acts`: runs seeds and scales, says the tables, and judges the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.evaluation.acts.report import SCALES, acts_gates, acts_lines, acts_records, run_seed
from paceline.spawned import results_in_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.evaluation.acts.report import Run

__all__ = ["ACTS_SEEDS", "acts_runs", "acts_told"]

ACTS_SEEDS = 10
"""30,720 GPU-days each; together the bound on wrong acts is 0.01 per 1,000."""


def acts_runs(seeds: int, jobs: int, say: Callable[[str], object]) -> list[Run]:
    """Run every scale with seeds 1 to `seeds`; the result does not depend on `jobs`.

    Args:
        seeds: how many.
        jobs: processes.
        say: takes a line of progress.
    """
    chosen = [(scale, seed) for scale in SCALES for seed in range(1, seeds + 1)]
    runs = []
    for number, run in enumerate(results_in_order(run_seed, chosen, min(jobs, len(chosen))), start=1):
        say(f"{number}/{len(chosen)} {run.scale} seed {run.seed}: {len(run.wrong['paceline'])} nodes out wrongly")
        runs.append(run)
    return runs


def acts_told(runs: list[Run]) -> tuple[list[str], list[dict[str, object]], bool]:
    """The tables, the records, and whether all gates hold."""
    return list(acts_lines(runs)), list(acts_records(runs)), all(gate.holds is not False for gate in acts_gates(runs))

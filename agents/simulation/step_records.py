"""A job's steps and progress as the records that its nodes publish, columns over the local ranks.

`tokens` of a rank is what its data-parallel replica processed: ranks that share a replica report the same tokens, so a
job's total is the sum over replicas and not over ranks.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from schemas.steps import CollectiveTiming, RankProgress, StepTiming

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents.simulation.fleet import Fleet
    from agents.simulation.job_run import CompletedStep, JobRun
    from schemas.base import Record

__all__ = ["JobRecords"]


class JobRecords:
    """Makes the records of one job. A maker is called with `agent_session` and `seq` when its record is published."""

    def __init__(self, fleet: Fleet, run: JobRun) -> None:
        job = self._job = run.job
        self._run = run
        self.nodes = range(job.first_node, job.stop_node)
        self._node_ids = fleet.node_ids
        self._ranks = [
            tuple(range(job.rank_of(node, 0), job.rank_of(node, 0) + job.gpus_per_node)) for node in self.nodes
        ]
        tensor, data = job.plan.tensor, job.data
        self._instances: list[dict[str, tuple[int, ...]]] = []
        for ranks in self._ranks:
            places = [job.coordinates(rank) for rank in ranks]
            self._instances.append(
                {
                    "tp": tuple(stage * data + replica for stage, replica, _ in places),
                    "pp": tuple(replica * tensor + member for _, replica, member in places),
                    "dp": tuple(stage * tensor + member for stage, _, member in places),
                }
            )
        self._tokens = (job.tokens_per_step // data,) * job.gpus_per_node

    def timings(self, step: CompletedStep) -> list[tuple[int, int, Callable[..., Record]]]:
        """(node, end of the step there in ns since the start, maker but for `event_time_ns`) of each node."""
        own, compute = step.own_us, step.compute_us
        columns = {
            "step_us": step.step_us,
            "own_us": own,
            "compute_us": compute,
            "forward_us": step.forward_us,
            "backward_us": step.backward_us,
            "optimizer_us": step.optimizer_us,
            "host_us": step.host_us,
            "data_us": step.data_us,
            "wait_us": (step.step_us - own).clip(min=0),
        }
        width = self._job.gpus_per_node
        rows: dict[str, list[list[int]]] = {
            name: column.reshape(-1, width).tolist() for name, column in columns.items()
        }
        ends = step.end_us.reshape(-1, width).max(axis=1).tolist()
        groups = [
            (name, op, durations.reshape(-1, width).tolist())
            for name, op, durations, size in (
                ("tp", "all_reduce", step.tensor_us, self._job.plan.tensor),
                ("pp", "send_recv", step.pipeline_us, self._job.plan.pipeline),
                ("dp", "all_reduce", step.reduce_us, self._job.data),
            )
            if size > 1
        ]
        return [
            (
                node,
                ends[index] * 1000,
                partial(
                    self._timing,
                    step=step,
                    index=index,
                    collectives=[(name, op, durations[index]) for name, op, durations in groups],
                    columns={name: row[index] for name, row in rows.items()},
                ),
            )
            for index, node in enumerate(self.nodes)
        ]

    def _timing(
        self,
        *,
        step: CompletedStep,
        index: int,
        collectives: list[tuple[str, str, list[int]]],
        columns: dict[str, Any],
        event_time_ns: int,
        agent_session: str,
        seq: int,
    ) -> StepTiming:
        instances = self._instances[index]
        return StepTiming(
            job_id=self._job.plan.job_id,
            node_id=self._node_ids[self.nodes[index]],
            agent_session=agent_session,
            seq=seq,
            event_time_ns=event_time_ns,
            step=step.step,
            phase=step.phase,
            rank=self._ranks[index],
            tokens=self._tokens,
            collectives=tuple(
                CollectiveTiming(group=name, op=op, instance=instances[name], duration_us=tuple(durations))
                for name, op, durations in collectives
            ),
            **columns,
        )

    def progress(
        self, node: int, completed_steps: int, *, standing: bool, event_time_ns: int, agent_session: str, seq: int
    ) -> RankProgress:
        """Where a node's ranks stand. `completed_steps` counts from 0: the last step is one less.

        In a job that stands, replicas without the lost rank wait in the gradient all-reduce; the lost rank's tensor group
        waits for it, and its replica has not come to the all-reduce.
        """
        job = self._job
        ranks = self._ranks[node - job.first_node]
        per_step = 2 * job.plan.microbatches
        reduce: list[tuple[int, int, int]] = []
        tensor: list[tuple[int, int, int]] = []
        lost = self._run.lost_rank
        for rank in ranks:
            done, within = completed_steps, completed_steps * per_step
            if not standing or lost is None:
                reduce.append((done + 1, done, done))
                tensor.append((within + 1, within + 1, within))
                continue
            stage, replica, _ = job.coordinates(rank)
            lost_stage, lost_replica, _ = job.coordinates(lost)
            if replica != lost_replica:
                reduce.append((done + 1, done + 1, done))
                tensor.append((within + per_step,) * 3)
            else:
                reduce.append((done, done, done))
                waits = 1 if stage == lost_stage and rank != lost else 0
                tensor.append((within + waits, within + waits, within))
        groups = {}
        if job.data > 1:
            groups["dp"] = tuple(reduce)
        if job.plan.tensor > 1:
            groups["tp"] = tuple(tensor)
        last = completed_steps - 1 if completed_steps else None
        return RankProgress(
            job_id=job.plan.job_id,
            node_id=self._node_ids[node],
            agent_session=agent_session,
            seq=seq,
            event_time_ns=event_time_ns,
            rank=ranks,
            last_step=(last,) * len(ranks),
            groups=groups,
        )

"""PyTorch under the reference controller: torchrun a node, checkpoints by `async_save`, a drain at a checkpoint.

The ranks run in an interpreter that has PyTorch: this one, or the one that PACELINE_TORCH_PYTHON names. Gloo on the CPU.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from free_ports import free_ports
from real_job import RealJob

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs_torch

PYTHON = os.environ.get("PACELINE_TORCH_PYTHON") or sys.executable
WAIT_S = 300.0
"""Importing PyTorch in four processes takes a minute on a busy machine."""


def test_ranks_under_torchrun_leave_a_node_at_a_checkpoint_and_no_step_is_lost_or_done_twice(tmp_path: Path) -> None:
    worker = [
        *(PYTHON, "-m", "torch.distributed.run", "--nnodes={nodes}", "--node-rank={node_index}"),
        *("--nproc-per-node={rank_count}", "--master-addr=127.0.0.1", f"--master-port={free_ports(1)[0]}"),
        *("--max-restarts=0", "-m", "deploy.job_controller.torch_trainer", "--run-dir", "{run_dir}"),
        *("--epoch", "{epoch}", "--step", "{step}"),
    ]
    with RealJob(tmp_path, worker, WAIT_S) as job:
        job.reached(20)
        order = job.order("drain_node", when="after_checkpoint")
        job.offer(order)
        answer = job.last_answer(order)
        assert [(move.ranks, move.left, move.to) for move in answer.moved] == [([2], "node-2", "node-4")]
        step = answer.checkpoint_step
        assert step is not None
        job.reached(step + 20)
        log = job.finish()
    assert [(line["step"], line["seen"]) for line in log] == [(step, step) for step in range(1, len(log) + 1)]
    assert {line["epoch"]: line["step"] for line in reversed(log)} == {0: 1, 1: step + 1}

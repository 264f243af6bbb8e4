"""Job controllers: restarts, spare swaps and drains at a checkpoint, by whoever runs the job.

A command becomes an order in the job's spool. The controller takes it, answers it as it goes on, and does nothing twice for one id; so
an order that was under way when this actuator ended is waited for, and one that nobody took is taken back. Whether a node or a
spare is there is judged by what the controller says of its job, and again by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agents.actuators.hands import ActRefusedError, Judgement, State, TargetAwayError
from agents.actuators.scontrol import plain_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents.actuators.job_spool import Answer, JobSheet, JobSpool
    from schemas.remediation import Command

__all__ = ["JOB_KINDS", "JobControllerHands", "Patience"]

JOB_KINDS = frozenset({"restart_job", "swap_spare", "drain_node", "cordon_node", "collect_evidence", "uncordon_node"})
"""Kinds of commands that can be a job controller's business."""

_MOVES = frozenset({"swap_spare", "drain_node", "cordon_node"})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a controller is waited for.

    Attributes:
        take_s: seconds until it has taken an order.
        answer_s: seconds until it has brought one to an end; a longer one is reported as under way.
        poll_s: seconds between looks.
    """

    take_s: float = 10.0
    answer_s: float = 300.0
    poll_s: float = 0.2


class JobControllerHands:
    """Hands orders to job controllers.

    Args:
        spool: where they are read.
        kinds: of commands that go there.
        wait_s: waits some seconds; true when this actuator is to end.
        patience: how long controllers are waited for.
    """

    def __init__(
        self,
        spool: JobSpool,
        kinds: frozenset[str],
        wait_s: Callable[[float], object],
        patience: Patience | None = None,
    ) -> None:
        self.kinds = kinds & JOB_KINDS
        self._spool, self._wait_s, self._patience = spool, wait_s, patience or Patience()

    def look(self, command: Command) -> State:
        """The job as its controller says it is, and how the command's own order stands.

        An order that nobody took is taken back, so that it is judged anew; one that was taken is waited for.

        Raises:
            TargetAwayError: what is in the spool cannot be read now.
            ActFailedError: the command's id cannot name an order.
        """
        jobs = [command.target.job_id] if command.target.job_id else self._spool.jobs_of(command.target.node_id or "")
        if len(jobs) != 1:
            return {"jobs": jobs}
        [job_id] = jobs
        sheet = self._spool.sheet(job_id)
        if sheet is None:
            return {"jobs": []}
        self._spool.take_back(job_id, command.command_id)
        answer = self._spool.answer(job_id, command.command_id)
        if (answer is not None and not answer.has_ended) or self._spool.is_taken(job_id, command.command_id):
            answer = self._ended(job_id, command.command_id) or answer
            sheet = self._spool.sheet(job_id) or sheet
        return {"jobs": jobs, **_seen(sheet, command), "answer": _told(answer)}

    def judge(self, command: Command, state: State, owner: str | None) -> Judgement:
        """Whether a command may be carried out in a state."""
        if len(state["jobs"]) != 1:
            return _no_job(command, state["jobs"])
        answer = state["answer"]
        if answer is not None and answer["state"] == "refused":
            return Judgement("refuse", answer["code"], answer["text"])
        takes = command.target.key() if command.kind in _MOVES else None
        gives_back = command.target.key() if command.kind == "uncordon_node" else None
        if answer is not None and answer["state"] == "done":
            return Judgement("already_so", text=answer["text"], takes=takes, gives_back=gives_back)
        if state["state"] != "running":
            return Judgement("refuse", "unexpected_state", f"the job has {state['state']}")
        if command.kind == "uncordon_node":
            if owner is None:
                return Judgement("refuse", "not_ours", "the job was not moved off the node from here")
            if not state["is_out"]:
                return Judgement("already_so", text="the job has not left the node", gives_back=gives_back)
        elif command.kind == "restart_job":
            if state["since_ns"] > command.decided_at_ns:
                return Judgement("already_so", text=f"epoch {state['epoch']} began after this was decided")
        elif command.kind in _MOVES:
            if not state["ranks"]:
                return Judgement("already_so", text="no rank of the job runs on the node")
            if not state["spares"]:
                return Judgement("refuse", "no_spare", "the job has no spare")
        return Judgement("do", takes=takes, gives_back=gives_back)

    def act(self, command: Command, state: State) -> str:
        """Hand the order over, and wait for what comes of it.

        Raises:
            TargetAwayError: the controller did not take it; it was taken back.
            ActRefusedError: the controller refused it.
        """
        [job_id] = state["jobs"]
        command_id, spool = command.command_id, self._spool
        if spool.answer(job_id, command_id) is None and not spool.is_taken(job_id, command_id):
            spool.offer(job_id, command_id, _order(command, job_id, state["epoch"]))
        for _ in range(self._looks(self._patience.take_s)):
            if spool.is_taken(job_id, command_id) or spool.answer(job_id, command_id) is not None:
                break
            self._wait_s(self._patience.poll_s)
        if spool.take_back(job_id, command_id):
            raise TargetAwayError(f"the controller of {job_id} did not take the order; it was taken back")
        answer = self._ended(job_id, command_id) or spool.answer(job_id, command_id)
        if answer is None:
            return f"under way: the controller of {job_id} has the order"
        if answer.state == "refused":
            raise ActRefusedError(*_refusal(answer))
        return _said(answer)

    def has_taken_effect(self, command: Command, before: State, after: State) -> bool | None:  # noqa: ARG002
        """By the order's own answer: done is an effect, an order that is the controller's may become one."""
        answer = after.get("answer")
        if answer is None or answer["state"] == "refused":
            return False
        return True if answer["state"] == "done" else None

    def _ended(self, job_id: str, command_id: str) -> Answer | None:
        """The last answer to an order; None when it takes longer than is waited for."""
        for _ in range(self._looks(self._patience.answer_s)):
            answer = self._spool.answer(job_id, command_id)
            if answer is not None and answer.has_ended:
                return answer
            if self._wait_s(self._patience.poll_s) is True:
                return None
        return None

    def _looks(self, span_s: float) -> int:
        return max(1, round(span_s / self._patience.poll_s))


def _order(command: Command, job_id: str, epoch: int) -> dict[str, Any]:
    target = command.target
    return {
        "kind": command.kind,
        "job_id": job_id,
        "node_id": target.node_id,
        "gpu_uuid": target.gpu_uuid,
        "pci_bus_id": target.pci_bus_id,
        "when": command.when,
        "expected_epoch": epoch,
        "expires_at_ns": command.expires_at_ns,
        "incident_id": command.cause.incident_id,
        "reason": plain_text(command.reason),
    }


def _seen(sheet: JobSheet, command: Command) -> dict[str, Any]:
    node_id = command.target.node_id or ""
    return {
        "epoch": sheet.epoch,
        "state": sheet.state,
        "since_ns": sheet.since_ns,
        "ranks": sheet.seats.get(node_id, []),
        "spares": len(sheet.spares),
        "is_out": node_id in sheet.out,
    }


def _told(answer: Answer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    code, text = _refusal(answer) if answer.state == "refused" else ("", _said(answer))
    return {"state": answer.state, "code": code, "text": text}


def _refusal(answer: Answer) -> tuple[str, str]:
    code = answer.code if answer.code.isidentifier() and answer.code.isascii() else "refused_by_controller"
    return code, f"the job's controller: {plain_text(answer.text)}"


def _said(answer: Answer) -> str:
    """What came of an order, in one line."""
    if answer.state != "done":
        return f"under way: {answer.state}"
    moves = [
        f"rank {','.join(str(rank) for rank in move.ranks[:8])}{',...' if len(move.ranks) > 8 else ''} "
        f"moved from {plain_text(move.left)} to {plain_text(move.to)}"
        for move in answer.moved[:8]
    ]
    return "; ".join([*moves, plain_text(answer.text) or "done"])


def _no_job(command: Command, jobs: list[str]) -> Judgement:
    if jobs:
        text = f"{len(jobs)} jobs say that they run on {command.target.node_id}: {', '.join(jobs[:4])}"
        return Judgement("refuse", "several_jobs", plain_text(text))
    return Judgement("refuse", "no_controller", "no job with a controller here is concerned")

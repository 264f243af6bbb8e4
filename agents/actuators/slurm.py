"""Slurm: drains nodes with a reason, resumes those that were drained from here, reboots nodes, requeues jobs.

A drained node finishes what runs on it and takes no more, so `cordon_node` and `drain_node` are one act; what runs is ended
by `restart_job`. The reason in Slurm begins with `paceline` and the id of the command that took the node out. Only a node
whose reason is still that one is resumed or rebooted: whoever writes another reason has taken it over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.actuators.hands import ActFailedError, Judgement, State
from agents.actuators.scontrol import is_job_id, is_node_name, plain_text

if TYPE_CHECKING:
    from agents.actuators.scontrol import Scontrol
    from schemas.remediation import Command

__all__ = ["SlurmHands"]

_DRAINED = {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}
_OUT = {*_DRAINED, "DOWN"}
_REBOOTING = {"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}


class SlurmHands:
    """Acts through `scontrol`.

    Args:
        scontrol: runs the program.
        has_short_names: nodes are called in Slurm by what stands before the first dot of their names here.
    """

    kinds = frozenset({"cordon_node", "drain_node", "uncordon_node", "reboot_node", "restart_job"})

    def __init__(self, scontrol: Scontrol, has_short_names: bool = False) -> None:
        self._scontrol = scontrol
        self._has_short_names = has_short_names

    def look(self, command: Command) -> State:
        """The node's flags, reason and start times, or the job's state and restarts.

        Raises:
            TargetAwayError: the controller does not answer.
            ActFailedError: there is no such node or job.
        """
        if command.kind == "restart_job":
            job = self._scontrol.job(self._job(command))
            return {"state": job.state, "restarts": job.restarts, "can_requeue": job.can_requeue}
        node = self._scontrol.node(self._node(command))
        return {
            "flags": sorted(node.flags),
            "reason": node.reason,
            "boot_time": node.boot_time,
            "slurmd_start_time": node.slurmd_start_time,
        }

    def judge(self, command: Command, state: State, owner: str | None) -> Judgement:
        """Whether a command may be carried out in a state."""
        if command.kind == "restart_job":
            return _judge_restart(state)
        if command.kind == "uncordon_node":
            return _judge_resume(command, state, owner)
        if command.kind == "reboot_node":
            return _judge_reboot(state, owner)
        flags = set(state["flags"])
        # A node that only stopped answering comes back by itself, and must not come back into service.
        is_silent = not flags & _DRAINED and state["reason"] in {"", "Not responding"}
        if flags & _OUT and not is_silent:
            return Judgement("already_so", text=f"the node is {_named(flags & _OUT)} already: {state['reason']!r}")
        return Judgement("do", takes=command.target.key())

    def act(self, command: Command, state: State) -> str:
        """Carry a command out.

        Raises:
            TargetAwayError: the controller does not answer; nothing was done.
            ActFailedError: Slurm refused it, or did not say in time whether it took it.
        """
        if command.kind == "restart_job":
            self._scontrol.command("requeue", self._job(command))
            return "requeued"
        node = self._node(command)
        if command.kind == "uncordon_node":
            self._scontrol.command("update", f"NodeName={node}", "State=RESUME")
            return "resumed"
        if command.kind == "reboot_node":
            if set(state["flags"]) & _OUT:
                # Without a next state the node stays drained. Its reason goes on naming who took it out.
                holder = state["reason"].split(":", 1)[0]
                self._scontrol.command("reboot", f"reason={holder}: reboot by {command.command_id}", node)
            else:
                reason = f"reason=paceline {command.command_id}: {plain_text(command.reason)}"
                self._scontrol.command("reboot", "ASAP", "nextstate=RESUME", reason, node)
            return "reboot asked for, as soon as the node is idle"
        reason = f"Reason=paceline {command.command_id}: {plain_text(command.reason)}"
        self._scontrol.command("update", f"NodeName={node}", "State=DRAIN", reason)
        return "drained"

    def has_taken_effect(self, command: Command, before: State, after: State) -> bool | None:
        """Whether an act that was begun took effect; None when the states cannot tell."""
        if command.kind == "restart_job":
            if after["restarts"] > before["restarts"]:
                return True
            return False if after["state"] == before["state"] else None
        is_out = bool(set(after["flags"]) & _OUT)
        if command.kind == "uncordon_node":
            return not is_out
        is_named = after["reason"].startswith(f"paceline {command.command_id}:")
        if command.kind == "reboot_node":
            started = [name for name in ("boot_time", "slurmd_start_time") if after[name] != before[name]]
            is_pending = f"reboot by {command.command_id}" in after["reason"] or is_named
            return is_pending or bool(started) or (None if set(after["flags"]) & _REBOOTING else False)
        if is_named:
            return True
        return False if after["flags"] == before["flags"] else None

    def _node(self, command: Command) -> str:
        name = command.target.node_id or ""
        name = name.split(".", 1)[0] if self._has_short_names else name
        if not is_node_name(name):
            raise ActFailedError(f"{plain_text(name)!r} is not the name of one node in Slurm")
        return name

    @staticmethod
    def _job(command: Command) -> str:
        name = command.target.job_id or ""
        if not is_job_id(name):
            raise ActFailedError(f"{plain_text(name)!r} is not the number of one job in Slurm")
        return name


def _judge_restart(state: State) -> Judgement:
    if state["state"] in {"PENDING", "REQUEUED"}:
        return Judgement("already_so", text="the job waits to be started already")
    if state["state"] != "RUNNING":
        return Judgement("refuse", "unexpected_state", f"the job is {state['state']}, not running")
    if not state["can_requeue"]:
        return Judgement("refuse", "not_permitted", "the job's owner does not let it be requeued")
    return Judgement("do")


def _judge_resume(command: Command, state: State, owner: str | None) -> Judgement:
    flags = set(state["flags"])
    if not flags & _OUT:
        return Judgement("already_so", text="the node is in service already", gives_back=command.target.key())
    refusal = _not_ours(state, owner)
    return refusal or Judgement("do", gives_back=command.target.key())


def _judge_reboot(state: State, owner: str | None) -> Judgement:
    flags = set(state["flags"])
    if flags & _REBOOTING:
        return Judgement("already_so", text="a reboot of the node is under way already")
    if flags & _OUT:
        refusal = _not_ours(state, owner)
        if refusal is not None:
            return refusal
    return Judgement("do")


def _not_ours(state: State, owner: str | None) -> Judgement | None:
    """A refusal if somebody else than this actuator holds a node out."""
    if owner is None:
        return Judgement("refuse", "not_ours", f"the node was not drained from here: {state['reason']!r}")
    if state["reason"].split(":", 1)[0] != f"paceline {owner}":
        return Judgement("refuse", "not_ours", f"somebody has taken the node over: {state['reason']!r}")
    return None


def _named(flags: set[str]) -> str:
    return " and ".join(sorted(flags)).lower()

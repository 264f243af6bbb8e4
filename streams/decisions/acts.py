"""Acts, as guards see them: what is proposed, what was wanted before, and what went out as an order.

A record of 24 hours, as plain data in order of time. It judges nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from streams.core.failure_table import COSTS_A_NODE

__all__ = ["COSTS_A_NODE", "GIVES_BACK", "RUNGS", "STRENGTH", "TAKES", "Act", "Acts"]

GIVES_BACK = frozenset({"uncordon_node", "collect_evidence", "run_preflight"})
"""Kinds that cost nobody anything: healing goes on when a limit is reached."""

RUNGS = {
    "restart_job": 1,
    "network_action": 1,
    "reset_gpu": 2,
    "drain_node": 3,
    "cordon_node": 4,
    "swap_spare": 4,
    "reboot_node": 5,
    "replace_hardware": 6,
}
"""The ladder: what is higher may follow what is lower at once, and never the other way round."""

TAKES = frozenset({"cordon_node", "drain_node"})
"""Kinds after which a node is out until it is given back."""

_RETURNS = frozenset({"uncordon_node"})

STRENGTH = {"": 0, "expired": 1, "refused": 1, "failed": 2, "applied": 3}
"""Of several results of one command, by several actuators, the strongest counts."""

_KEEP_NS = 24 * 3_600_000_000_000
_MOST = 2_000
"""More acts than that within a day are told apart by none of the limits: each is far below."""


@dataclass(frozen=True, slots=True)
class Act:
    """One act, proposed or past.

    Attributes:
        kind: of its command.
        target: key of its target: node, switch or job.
        node_id: the node that it costs, if it is about one.
        rack: where that stands, if it is known.
        leaf: the leaf switch that it hangs on, if it is known.
        jobs: jobs that run there.
        at_ns: event time of its decision.
        expires_at_ns: until when it may be carried out.
        command_id: the command that it went out as; empty for one that did not.
        outcome: what came of it, as the strongest of its results says; empty while there is none.
    """

    kind: str
    target: str
    node_id: str | None
    rack: str | None
    leaf: str | None
    jobs: tuple[str, ...]
    at_ns: int
    expires_at_ns: int
    command_id: str = ""
    outcome: str = ""

    @property
    def is_undone(self) -> bool:
        """Whether it is known that nothing was done."""
        return self.outcome in {"refused", "expired"}

    @property
    def costs_a_node(self) -> bool:
        """Whether somebody loses a node, or a part of it, by it."""
        return self.kind in COSTS_A_NODE

    @property
    def rung(self) -> int:
        """Its place on the ladder; 0 for what costs nothing."""
        return RUNGS.get(self.kind, 0)


class Acts:
    """What was wanted, what went out and what came of it within the last 24 hours; and what is out by that until it is back."""

    def __init__(self) -> None:
        self._wanted: list[Act] = []
        self._given: list[Act] = []
        self._owned: dict[str, str] = {}

    def want(self, act: Act) -> None:
        """An act is proposed, whatever becomes of it."""
        self._keep(self._wanted, act)

    def give(self, act: Act) -> None:
        """An act goes out as an order, or to be approved."""
        self._keep(self._given, act)

    def wanted_since(self, since_ns: int) -> list[Act]:
        """Acts that were proposed after a time."""
        return [act for act in self._wanted if act.at_ns > since_ns]

    def given_since(self, since_ns: int) -> list[Act]:
        """Acts that went out after a time."""
        return [act for act in self._given if act.at_ns > since_ns]

    def given_to(self, target: str) -> list[Act]:
        """Acts that went out to a target, oldest first."""
        return [act for act in self._given if act.target == target]

    def conclude(self, command_id: str, outcome: str, code: str | None) -> Act | None:
        """Take a result of a command; the act as it is by that, or None when it says nothing new.

        Of several results the strongest counts, whichever comes first: what was done by one is not undone by the refusal
        of another, and a repeat changes nothing.

        Args:
            command_id: whose result it is.
            outcome: `applied`, `failed`, `refused` or `expired`.
            code: the result's word for why.
        """
        for index, act in enumerate(self._given):
            if act.command_id != command_id:
                continue
            if STRENGTH[outcome] <= STRENGTH[act.outcome]:
                return None
            concluded = self._given[index] = replace(act, outcome=outcome)
            self._own(concluded, code)
            return concluded
        return None

    def without(self, command_id: str) -> Acts:
        """The same record as if a command had not gone out."""
        others = Acts()
        others._wanted = list(self._wanted)
        others._given = [act for act in self._given if act.command_id != command_id]
        others._owned = dict(self._owned)
        return others

    def outcome_of(self, command_id: str) -> str | None:
        """What came of a command: empty while there is no result, None for one that did not go out."""
        return next((act.outcome for act in self._given if act.command_id == command_id), None)

    def owner_of(self, target: str) -> str | None:
        """The command that took a target out and is known to have been carried out; None for what is not out by that."""
        return self._owned.get(target)

    def _own(self, act: Act, code: str | None) -> None:
        # What was out before is whose it was; what is blocked is held, though not all has left it.
        is_out = (act.outcome == "applied" and code != "already_so") or code == "blocked"
        if act.kind in TAKES and is_out:
            self._owned[act.target] = act.command_id
        elif act.kind in _RETURNS and (act.outcome == "applied" or code == "not_ours"):
            self._owned.pop(act.target, None)

    @staticmethod
    def _keep(acts: list[Act], act: Act) -> None:
        acts.append(act)
        oldest_ns = act.at_ns - _KEEP_NS
        if acts[0].at_ns <= oldest_ns or len(acts) > _MOST:
            acts[:] = [a for a in acts if a.at_ns > oldest_ns][-_MOST:]

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "wanted": [asdict(act) for act in self._wanted],
            "given": [asdict(act) for act in self._given],
            "owned": dict(sorted(self._owned.items())),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._wanted, self._given = (
            [Act(**{**fields, "jobs": tuple(fields["jobs"])}) for fields in snapshot[name]]
            for name in ("wanted", "given")
        )
        self._owned = dict(snapshot.get("owned", {}))

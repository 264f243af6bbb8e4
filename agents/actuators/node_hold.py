"""How a node of Kubernetes is taken out and given back: what is written on it, and how that is read again. Pure.

A held node is unschedulable and tainted, has the label `paceline.dev/held` and says in annotations by which command, why,
what of all that was added and how it was before. What is given back is what was added, and nothing else. It is given back
only while nobody else has written over it: the server keeps, in `managedFields`, who wrote each field last.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final

from agents.actuators.scontrol import plain_text
from schemas.remediation import Command

__all__ = [
    "FIELD_MANAGER",
    "GENERAL_TAINT",
    "HELD_BY",
    "HELD_LABEL",
    "HOLD",
    "REASON",
    "NodeState",
    "Taint",
    "hold_change",
    "node_state",
    "release_change",
    "taint_of",
]

FIELD_MANAGER: Final = "paceline"
"""Under which name the server keeps what was written from here."""

HELD_LABEL: Final = "paceline.dev/held"
"""Its value is the kind of the command, for people and for selectors."""
HELD_BY: Final = "paceline.dev/held-by"
"""Id of the command that took the node out."""
REASON: Final = "paceline.dev/reason"
HOLD: Final = "paceline.dev/hold"
"""JSON: `added`, what was added (`unschedulable`, and taints as text), and `before`, what there was of both."""

_UNSCHEDULABLE: Final = "unschedulable"

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_TAINT = re.compile(
    rf"((?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME})(?:=({_NAME})?)?:(NoSchedule|PreferNoSchedule)"
)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that keeps pods from coming; one that ends those that are there (`NoExecute`) is none of ours.

    Attributes:
        key: with its prefix.
        value: may be empty.
        effect: as Kubernetes has it.
    """

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """As `kubectl taint` writes it."""
        return _text({"key": self.key, "value": self.value, "effect": self.effect})


GENERAL_TAINT: Final = Taint(HELD_LABEL, "", "NoSchedule")


def taint_of(command: Command) -> Taint | None:
    """The taint that goes with a command, the general one where it names none; None when it names what may not be set.

    Kubernetes' own keys mean what its controllers mean by them, and are not set from here.
    """
    if command.taint is None:
        return GENERAL_TAINT
    found = _TAINT.fullmatch(command.taint)
    if found is None:
        return None
    domain = found[1].rpartition("/")[0]
    if f".{domain}".endswith((".kubernetes.io", ".k8s.io")):
        return None
    return Taint(found[1], found[2] or "", found[3])


@dataclass(frozen=True, slots=True)
class NodeState:
    """What matters of a node.

    Attributes:
        uid: of this node; another of its name has another.
        unschedulable: nothing is put there any more, by whomever.
        taints: as text, sorted.
        held_by: id of the command that it says to be held by; None without.
        hold: JSON of what was added and of how it was before; None without.
        others: who else than this program last wrote what a held node is known by, sorted.
    """

    uid: str
    unschedulable: bool
    taints: tuple[str, ...]
    held_by: str | None
    hold: str | None
    others: tuple[str, ...]

    @property
    def added(self) -> tuple[str, ...] | None:
        """What was added to take the node out; None when it does not say so in the form in which we write it."""
        try:
            hold = json.loads(self.hold or "")
        except ValueError:
            return None
        added = hold.get("added") if isinstance(hold, dict) else None
        if not isinstance(added, list) or not all(isinstance(part, str) for part in added):
            return None
        return tuple(added)

    def has(self, taint: Taint) -> bool:
        """Whether the node has a taint of this key and effect, of which there can be one; the value is its setter's."""
        parts = (text.rpartition(":") for text in self.taints)
        return any((name.split("=", 1)[0], effect) == (taint.key, taint.effect) for name, _, effect in parts)

    def is_as(self, other: NodeState) -> bool:
        """Whether whose node it is has not changed; taints come and go by Kubernetes' own doing."""
        return replace(other, taints=self.taints) == self


def node_state(node: dict[str, Any]) -> NodeState:
    """What matters of a node as the server has it."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    held_by = annotations.get(HELD_BY)
    return NodeState(
        metadata["uid"],
        bool(spec.get(_UNSCHEDULABLE)),
        tuple(sorted(_text(taint) for taint in spec.get("taints") or ())),
        held_by,
        annotations.get(HOLD),
        _others(metadata.get("managedFields") or ()) if held_by is not None else (),
    )


def hold_change(node: dict[str, Any], command: Command, taint: Taint) -> dict[str, Any]:
    """The change by which a node is held, or held with one taint more if it is already.

    A node that still has our marks and was made schedulable by somebody is taken out anew; what was added the first time
    counts as added, or it would stay for ever.

    Args:
        node: as the server has it.
        command: by which it is taken out; on a node that is out already its taint alone counts.
        taint: what the node is to have.
    """
    state, spec = node_state(node), node.get("spec") or {}
    is_ours = state.held_by is not None and state.added is not None and not state.others
    added = list(state.added or ()) if is_ours else []
    change: dict[str, Any] = {}
    if not state.unschedulable:
        change[_UNSCHEDULABLE] = True
        added += [_UNSCHEDULABLE] if _UNSCHEDULABLE not in added else []
    if not state.has(taint):
        new = {"key": taint.key, "effect": taint.effect, **({"value": taint.value} if taint.value else {})}
        change["taints"] = [*(spec.get("taints") or ()), new]
        added.append(str(taint))
    before = (
        json.loads(state.hold or "{}").get("before")
        if is_ours
        else {_UNSCHEDULABLE: state.unschedulable, "taints": list(state.taints)}
    )
    annotations = {HOLD: json.dumps({"added": added, "before": before}, separators=(",", ":"))}
    metadata: dict[str, Any] = {"annotations": annotations}
    if not state.unschedulable:
        metadata["labels"] = {HELD_LABEL: command.kind}
        annotations |= {HELD_BY: command.command_id, REASON: plain_text(command.reason)}
    return {"metadata": metadata, "spec": change}


def release_change(node: dict[str, Any]) -> dict[str, Any]:
    """The change by which a held node is as it was: what was added goes, what others did since stays."""
    state, spec = node_state(node), node.get("spec") or {}
    added = state.added or ()
    change: dict[str, Any] = {}
    if _UNSCHEDULABLE in added:
        change[_UNSCHEDULABLE] = None
    kept = [taint for taint in spec.get("taints") or () if _text(taint) not in added]
    if len(kept) != len(spec.get("taints") or ()):
        change["taints"] = kept or None
    return {
        "metadata": {
            "labels": {HELD_LABEL: None},
            "annotations": dict.fromkeys((HELD_BY, REASON, HOLD)),
        },
        "spec": change,
    }


def _text(taint: dict[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _others(managed_fields: Any) -> tuple[str, ...]:
    """Managers other than ours of the fields that a held node is known by."""
    managers = set()
    for entry in managed_fields:
        fields = entry.get("fieldsV1") or {}
        annotations = (fields.get("f:metadata") or {}).get("f:annotations") or {}
        is_written = f"f:{_UNSCHEDULABLE}" in (fields.get("f:spec") or {})
        if is_written or any(f"f:{name}" in annotations for name in (HELD_BY, HOLD)):
            managers.add(str(entry.get("manager")))
    return tuple(sorted(managers - {FIELD_MANAGER}))

"""Guards: each holds an act back for one reason, and says which. All are asked, so that all reasons are on record.

Guarantees: an act that a guard holds goes out as `observe`, which nobody may carry out; what gives something back is held by
ownership and the kill switch alone. Times are event time. Without the results of acts an act is taken to be in flight until
it expires. Pure functions over plain data; nothing is remembered here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streams.core.guard_limits import guard_limits, is_guard_on
from streams.decisions.acts import GIVES_BACK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from schemas.fleet import Policy
    from streams.core.roster import Roster
    from streams.decisions.acts import Act, Acts
    from streams.decisions.signs import Signs

    Guard = Callable[["Proposal", Mapping[str, float]], str | None]

__all__ = ["GUARDS", "Hold", "Proposal", "holds"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """An act and what it is judged by.

    Attributes:
        act: what is proposed.
        signs: evidence of its incident.
        acts: what was wanted and given before it.
        roster: who runs where, and which nodes there are.
    """

    act: Act
    signs: Signs
    acts: Acts
    roster: Roster


@dataclass(frozen=True, slots=True)
class Hold:
    """Why an act is held back.

    Attributes:
        guard: the guard's name, as policies call it.
        reason: one line with the numbers that decided.
    """

    guard: str
    reason: str


def holds(proposal: Proposal, policy: Policy | None) -> list[Hold]:
    """Every reason to hold an act back, in a fixed order; empty when it may go out.

    Args:
        proposal: the act.
        policy: the site's: kill switch, switches and limits of guards.
    """
    found = []
    if policy is not None and policy.kill_switch:
        found.append(Hold("kill_switch", f"policy {policy.policy_version} has its kill switch thrown"))
    for name, guard in GUARDS.items():
        if proposal.act.kind in GIVES_BACK and name != "ownership":
            continue
        if not is_guard_on(policy, name):
            continue
        reason = guard(proposal, guard_limits(policy, name))
        if reason is not None:
            found.append(Hold(name, reason))
    return found


def _evidence(proposal: Proposal, limits: Mapping[str, float]) -> str | None:  # noqa: ARG001
    """A node is not lost to one kind of evidence, nor to kinds that one party alone can write."""
    signs = proposal.signs
    if not proposal.act.costs_a_node or signs.is_fatal or (len(signs.kinds) >= 2 and len(signs.classes) >= 2):
        return None
    kinds = ", ".join(sorted(signs.kinds)) or "nothing"
    classes = ", ".join(sorted(signs.classes)) or "nobody"
    return f"it rests on {kinds}, said by {classes}; two kinds of two parties are needed, or a code that is fatal"


def _ownership(proposal: Proposal, limits: Mapping[str, float]) -> str | None:  # noqa: ARG001
    """Only what was taken out from here is given back."""
    if proposal.act.kind != "uncordon_node":
        return None
    moves = [act for act in proposal.acts.given_to(proposal.act.target) if act.kind in _TAKES or act.kind in _RETURNS]
    if moves and moves[-1].kind in _TAKES:
        return None
    return f"{proposal.act.target} was not taken out from here"


_TAKES = {"cordon_node", "drain_node"}
_RETURNS = {"uncordon_node"}


def _in_flight(proposal: Proposal, limits: Mapping[str, float]) -> str | None:  # noqa: ARG001
    """One act at a time on a target, unless a higher rung of the ladder is needed."""
    act = proposal.act
    for other in reversed(proposal.acts.given_to(act.target)):
        if other.rung >= act.rung > 0 and other.expires_at_ns >= act.at_ns:
            return f"{other.kind} of {(act.at_ns - other.at_ns) / 1e9:.0f} s ago is in flight on {act.target}"
    return None


def _cooldown(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
    """A target that was acted on is left alone for a while, unless a higher rung is needed."""
    act = proposal.act
    for other in reversed(proposal.acts.given_to(act.target)):
        age_ns = act.at_ns - other.at_ns
        if other.rung >= act.rung > 0 and age_ns < limits["span_ns"]:
            return f"{act.target} had a {other.kind} {age_ns / 1e9:.0f} s ago; it is left alone for {limits['span_ns'] / 1e9:.0f} s"
    return None


def _attempts(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
    """What several acts did not mend is for people."""
    act = proposal.act
    since_ns = act.at_ns - limits["span_ns"]
    count = sum(other.rung > 0 and other.at_ns > since_ns for other in proposal.acts.given_to(act.target))
    if count < limits["count"]:
        return None
    hours = limits["span_ns"] / 3.6e12
    return f"{act.target} had {count} acts within {hours:g} h, and {limits['count']:g} are allowed"


def _common_mode(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
    """Many nodes at once have one cause, and it is none of them: a facility, a rollout, a rule gone wrong."""
    act = proposal.act
    if not act.costs_a_node:
        return None
    wanted = proposal.acts.wanted_since(round(act.at_ns - limits["span_ns"]))
    nodes = {other.node_id for other in wanted if other.costs_a_node} | {act.node_id}
    if len(nodes) < limits["count"]:
        return None
    return f"{len(nodes)} nodes ask for it within {limits['span_ns'] / 1e9:.0f} s; from {limits['count']:g} on one cause is behind them"


def _blast(place: str, of: Callable[[Act], frozenset[str]], size: Callable[[Roster, str], int]) -> Guard:
    """At most so many nodes of a place within a span, in number and in share; without a known size the number alone."""

    def guard(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
        act = proposal.act
        if not act.costs_a_node:
            return None
        given = [a for a in proposal.acts.given_since(round(act.at_ns - limits["span_ns"])) if a.costs_a_node]
        for name in sorted(of(act)):
            nodes = {other.node_id for other in given if name in of(other)} | {act.node_id}
            total = size(proposal.roster, name)
            # A share of a small place is below one node, and one must be possible somewhere.
            allowed = min(limits["count"], max(1, int(limits["share"] * total))) if total else limits["count"]
            if len(nodes) > allowed:
                share = f" and {limits['share']:.0%} of {total}" if total else ""
                return (
                    f"{len(nodes)} nodes of {place}{f' {name}' if name else ''} within {limits['span_ns'] / 1e9:.0f} s; "
                    f"{limits['count']:g}{share} are allowed"
                )
        return None

    return guard


def _nodes_of_job(roster: Roster, job_id: str) -> int:
    epochs = [epoch for name, epoch in roster.jobs if name == job_id]
    return len(roster.jobs[(job_id, max(epochs))].placements) if epochs else 0


def _names(name: str | None) -> frozenset[str]:
    return frozenset({name}) if name is not None else frozenset()


GUARDS: dict[str, Guard] = {
    "evidence": _evidence,
    "ownership": _ownership,
    "in_flight": _in_flight,
    "cooldown": _cooldown,
    "attempts": _attempts,
    "common_mode": _common_mode,
    "blast_job": _blast("job", lambda act: frozenset(act.jobs), _nodes_of_job),
    "blast_rack": _blast(
        "rack", lambda act: _names(act.rack), lambda roster, name: sum(n.rack == name for n in roster.nodes.values())
    ),
    "blast_leaf": _blast(
        "leaf", lambda act: _names(act.leaf), lambda roster, name: sum(n.leaf == name for n in roster.nodes.values())
    ),
    "blast_fleet": _blast("the fleet", lambda _: frozenset({""}), lambda roster, _: len(roster.nodes)),
}
"""By name, in the order in which they are asked. The kill switch comes before all, and cannot be switched off."""

"""Guards: each holds an act back for one reason, and says which. All are asked, so that all reasons are on record.

Guarantees: an act that a guard holds goes out as `observe`, which nobody may carry out; what gives something back is held by
ownership and the kill switch alone. Times are event time. An act without a result is in flight until it expires. What was
refused was not done, and starts no cool-down; what failed may have been done in part, and does. The blast radius counts orders,
whatever is said to have come of them. Pure functions over plain data; nothing is remembered here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

__all__ = ["GUARDS", "Circumstances", "Hold", "Proposal", "holds"]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What an act is proposed in.

    Attributes:
        now_ns: event time that all sources have reached; below the act's own time nothing is known of it.
        paid_ns: time of the job that the fault has cost so far; None where nothing is lost step by step.
        is_victim: whether a pause storm stops the node that it is about.
        seat: when another node was taken out because the same rank was slow there, and that in words; None when none was.
        held: kind of the act that it follows, where that one does not go out; None where it stands alone or may follow.
    """

    now_ns: int = -1
    paid_ns: int | None = None
    is_victim: bool = False
    held: str | None = None
    seat: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """An act and what it is judged by.

    Attributes:
        act: what is proposed.
        signs: evidence of its incident.
        acts: what was wanted and given before it.
        roster: who runs where, and which nodes there are.
        about: when it is proposed, and what it would end.
    """

    act: Act
    signs: Signs
    acts: Acts
    roster: Roster
    about: Circumstances = field(default_factory=Circumstances)


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


def _evidence(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
    """A node is not lost to one kind of evidence, nor to kinds that one party alone can write, nor to what was long ago."""
    signs = proposal.signs.since(round(proposal.act.at_ns - limits["span_ns"]))
    if not proposal.act.costs_a_node or signs.is_fatal or (len(signs.kinds) >= 2 and len(signs.classes) >= 2):
        return None
    kinds = ", ".join(sorted(signs.kinds)) or "nothing"
    classes = ", ".join(sorted(signs.classes)) or "nobody"
    return f"it rests on {kinds}, said by {classes}; two kinds of two parties are needed, or a code that is fatal"


def _horizon(proposal: Proposal, limits: Mapping[str, float]) -> str | None:  # noqa: ARG001
    """What is known too late is no reason to act: after a backlog nodes are no more what they were."""
    act, now_ns = proposal.act, proposal.about.now_ns
    if now_ns <= act.expires_at_ns:
        return None
    age_s, valid_s = (now_ns - act.at_ns) / 1e9, (act.expires_at_ns - act.at_ns) / 1e9
    return f"it rests on what was so {age_s:.0f} s ago, and is valid for {valid_s:.0f} s"


def _victims(proposal: Proposal, limits: Mapping[str, float]) -> str | None:  # noqa: ARG001
    """Who waits for a paused port is not at fault; a code that is fatal is no consequence of waiting."""
    act = proposal.act
    if act.node_id is None or act.rung == 0 or act.kind == "network_action" or not proposal.about.is_victim:
        return None
    return None if proposal.signs.is_fatal else f"{act.node_id} is stopped by a pause storm"


def _ski_rental(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
    """Slowness is borne until it has cost what the act costs: what heals before was not worth it.

    So nothing costs more than twice what the best decision in hindsight would have (Karlin and others, 1988).
    """
    act, paid_ns = proposal.act, proposal.about.paid_ns
    if paid_ns is None or proposal.signs.is_fatal or not (act.costs_a_node or act.kind == "restart_job"):
        return None
    if paid_ns >= limits["cost_ns"]:
        return None
    return f"the job has lost {paid_ns / 1e9:.0f} s by it; the act costs it {limits['cost_ns'] / 1e9:.0f} s"


def _follows(proposal: Proposal, limits: Mapping[str, float]) -> str | None:  # noqa: ARG001
    """A job is not restarted onto the part that should have been taken out from under it."""
    held = proposal.about.held
    return f"the {held} that it follows does not go out" if held is not None else None


def _seat(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
    """Who is slow on one device after another carries the cause along: no second node is lost to it."""
    act, seat = proposal.act, proposal.about.seat
    if seat is None or not act.costs_a_node or proposal.signs.is_fatal or act.at_ns - seat[0] >= limits["span_ns"]:
        return None
    return seat[1]


def _ownership(proposal: Proposal, limits: Mapping[str, float]) -> str | None:  # noqa: ARG001
    """Only what is known to have been taken out from here is given back: by its result, not by the order."""
    if proposal.act.kind != "uncordon_node" or proposal.acts.owner_of(proposal.act.target) is not None:
        return None
    return f"{proposal.act.target} was not taken out from here"


def _in_flight(proposal: Proposal, limits: Mapping[str, float]) -> str | None:  # noqa: ARG001
    """One act at a time on a target, unless a higher rung of the ladder is needed."""
    act = proposal.act
    for other in reversed(proposal.acts.given_to(act.target)):
        if other.rung >= act.rung > 0 and other.expires_at_ns >= act.at_ns and not other.outcome:
            return f"{other.kind} of {(act.at_ns - other.at_ns) / 1e9:.0f} s ago is in flight on {act.target}"
    return None


def _cooldown(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
    """A target that was acted on is left alone for a while, unless a higher rung is needed."""
    act = proposal.act
    for other in reversed(proposal.acts.given_to(act.target)):
        age_ns = act.at_ns - other.at_ns
        if other.is_undone:
            continue
        if other.rung >= act.rung > 0 and age_ns < limits["span_ns"]:
            return f"{act.target} had a {other.kind} {age_ns / 1e9:.0f} s ago; it is left alone for {limits['span_ns'] / 1e9:.0f} s"
    return None


def _attempts(proposal: Proposal, limits: Mapping[str, float]) -> str | None:
    """What several acts did not mend is for people."""
    act = proposal.act
    since_ns = act.at_ns - limits["span_ns"]
    tried = [other for other in proposal.acts.given_to(act.target) if not other.is_undone]
    count = sum(other.rung > 0 and other.at_ns > since_ns for other in tried)
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
    "horizon": _horizon,
    "victims": _victims,
    "ski_rental": _ski_rental,
    "follows": _follows,
    "seat": _seat,
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

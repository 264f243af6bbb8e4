"""Holds what a target's own log says was done against what was ordered and what was reported.

A command takes effect once when the target's log has one `done` line with its id. It is late when the request for it
reached the target after its expiry. Pure functions over what was read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schemas.remediation import ActionResult, Command, Incident

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from schemas.base import Record

__all__ = ["Account", "account"]


@dataclass
class Account:
    """What came of it. Every list is of names that break a promise, and must be empty.

    Attributes:
        incidents: different incidents on the topic.
        commands: different orders (mode `auto`) on the topic.
        never_ordered: commands that went out as `observe` alone: known too late.
        messages: messages that carry them: a worker that was killed publishes some again.
        requests: changes that the target was asked for.
        effects: changes that it made.
        outcomes: first results of orders, by outcome and code.
        refused_again: results that refuse an order because it came before.
        latest_ms: longest time from an order's expiry to a request for it; negative when all were in time.
        without_order: faults that became no order, or more than one.
        repeated: orders that took effect twice or more.
        lost: orders that have no result, or whose result is neither an effect nor an expiry.
        late: orders for which the target was asked after their expiry.
        told_wrongly: orders whose result says something else than the target's log.
        unordered: effects that nobody ordered.
    """

    incidents: int = 0
    commands: int = 0
    never_ordered: int = 0
    messages: int = 0
    requests: int = 0
    effects: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    refused_again: int = 0
    latest_ms: float | None = None
    without_order: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    told_wrongly: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every order took effect exactly once or expired, and all of that was told."""
        broken = (self.without_order, self.repeated, self.lost, self.late, self.told_wrongly, self.unordered)
        return not any(broken)


def account(
    records: Iterable[Record], lines: Iterable[Mapping[str, Any]], fresh: Iterable[str], aged: Iterable[str] = ()
) -> Account:
    """Fold topics and log.

    Args:
        records: of incidents, actions and action results, each topic from its beginning; of one site.
        lines: of the target's log, as `act_targets` reads it.
        fresh: nodes on which a fault was planted that calls for one order each.
        aged: those whose fault may be known too late for an order; then its command says so in mode `observe`.
    """
    found = Account()
    orders: dict[str, Command] = {}
    results: dict[str, list[ActionResult]] = {}
    incidents, commands = set(), {}
    for record in records:
        if isinstance(record, Incident):
            incidents.add(record.incident_id)
        elif isinstance(record, Command):
            commands[record.command_id] = record.target.key()
            if record.mode == "auto":
                found.messages += 1
                orders.setdefault(record.command_id, record)
        elif isinstance(record, ActionResult):
            results.setdefault(record.command_id, []).append(record)
    done: Counter[str] = Counter()
    asked_ns: dict[str, int] = {}
    for line in lines:
        name = str(line["reason"]).removeprefix("paceline ").partition(":")[0]
        if line["word"] == "done":
            done[name] += 1
        elif line["word"] == "came":
            found.requests += 1
            asked_ns[name] = max(int(line["at_ns"]), asked_ns.get(name, 0))
    found.incidents, found.commands, found.effects = len(incidents), len(orders), done.total()
    found.never_ordered = len(commands.keys() - orders.keys())
    ordered, told_of = Counter(order.target.key() for order in orders.values()), Counter(commands.values())
    found.without_order = [f"{node}: {ordered[node]} orders" for node in fresh if ordered[node] != 1]
    found.without_order += [f"{node}: {told_of[node]} commands" for node in aged if told_of[node] != 1]
    found.unordered = sorted(done.keys() - orders.keys())
    lateness_ns = {name: asked_ns[name] - order.expires_at_ns for name, order in orders.items() if name in asked_ns}
    found.latest_ms = round(max(lateness_ns.values()) / 1e6, 1) if lateness_ns else None
    outcomes: Counter[str] = Counter()
    for name, order in orders.items():
        told = f"{name} {order.target.key()}"
        final = [result for result in results.get(name, ()) if result.code != "reused_id"]
        found.refused_again += len(results.get(name, ())) - len(final)
        outcome = " ".join(filter(None, (final[0].outcome, final[0].code))) if final else "none"
        outcomes[outcome] += 1
        if done[name] > 1:
            found.repeated.append(f"{told}: {done[name]} times")
        if outcome not in {"applied", "applied found_done", "expired expired"}:
            found.lost.append(f"{told}: {outcome}")
        elif outcome.startswith("applied") != (done[name] > 0) or len({result.outcome for result in final}) > 1:
            found.told_wrongly.append(f"{told}: {[result.outcome for result in final]}, {done[name]} effects")
        if lateness_ns.get(name, 0) > 0:
            found.late.append(f"{told}: {lateness_ns[name] / 1e9:.1f} s after its expiry")
    found.outcomes = dict(outcomes.most_common())
    return found

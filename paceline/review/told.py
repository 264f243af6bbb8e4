"""A comparison for people and for programs: counts, every difference with its explanation, costs and wrong cordons."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from paceline.one_line import one_line
from paceline.review.difference import counted, policy_changes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.simulation.truth import Truth
    from paceline.review.difference import Difference
    from paceline.review.said import Said

__all__ = ["differs", "nodes_at_fault", "side_figures", "tell"]

_FAMILIES = ("finding", "incident", "command")
_WORDS = ("same", "changed", "missing", "new")


def differs(differences: Sequence[Difference]) -> bool:
    """Whether the sides are not the same."""
    return any(difference.what != "same" for difference in differences)


def side_figures(said: Said, truths: Sequence[Truth] | None) -> dict[str, Any]:
    """What a side comes to.

    Args:
        said: the side.
        truths: what was really wrong, or null where nobody knows.

    Returns:
        `commands` by kind, `gpu_hours_lost` over its open and closed incidents, and with truth `found`, `missed`,
        `blamed` and `wrong_node_commands` (acts that cost a node which was in order).
    """
    commands: dict[str, int] = {}
    for command in said.heard.commands.values():
        commands[command.kind] = commands.get(command.kind, 0) + 1
    lost = [i.gpu_hours_lost for i in said.heard.incidents.values() if i.gpu_hours_lost is not None]
    figures: dict[str, Any] = {
        "side": said.name,
        "findings": sum(state == "open" for _, state in said.heard.findings),
        "incidents": len(said.heard.incidents),
        "commands": dict(sorted(commands.items())),
        "gpu_hours_lost": round(sum(lost), 6),
    }
    if truths is not None:
        from paceline.verdict import judge

        verdict = judge(truths, said.heard)
        figures |= {
            "found": list(verdict.found),
            "missed": list(verdict.missed),
            "blamed": list(verdict.blamed_healthy),
            "wrong_node_commands": wrong_node_commands(said, truths),
        }
    return figures


def wrong_node_commands(said: Said, truths: Sequence[Truth]) -> list[str]:
    """Commands that would have cost a node in which nothing was wrong, one line each."""
    from agents.simulation.truth import NODE_COMMANDS

    at_fault = nodes_at_fault(truths)
    return sorted(
        f"{command.kind} {command.target.name()}"
        for command in said.heard.commands.values()
        if command.kind in NODE_COMMANDS and command.target.node_id not in at_fault
    )


def nodes_at_fault(truths: Sequence[Truth]) -> set[str | None]:
    """Nodes on which something was wrong; null for what is on none."""
    return {place.get("node_id") for truth in truths for place in truth.culprits}


def tell(a: Said, b: Said, differences: Sequence[Difference], as_json: bool, truths: Sequence[Truth] | None) -> None:
    """Write a comparison to stdout.

    Args:
        a: one side.
        b: the other.
        differences: of the two.
        as_json: NDJSON: a line per difference, then one of counts and figures.
        truths: what was really wrong, or null.
    """
    counts = {family: dict(count) for family, count in counted(differences).items()}
    figures = [side_figures(a, truths), side_figures(b, truths)]
    if as_json:
        for difference in differences:
            if difference.what != "same":
                sys.stdout.buffer.write(orjson.dumps(asdict(difference)) + b"\n")
        changes = policy_changes(a.policy, b.policy)
        sys.stdout.buffer.write(orjson.dumps({"counts": counts, "sides": figures, "policy": changes}) + b"\n")
        sys.stdout.flush()
        return
    for rule, told in policy_changes(a.policy, b.policy).items():
        print(one_line(f"policy: {rule}: {', '.join(told)}"))
    for family in _FAMILIES:
        print(f"{family + 's':10s} " + ", ".join(f"{word} {counts[family].get(word, 0)}" for word in _WORDS))
    for difference in differences:
        if difference.what == "same":
            continue
        print(one_line(f"  {difference.what:8s} {difference.family} {difference.identity}: {difference.about}"))
        print(one_line(f"           {difference.why}"))
        for name, (left, right) in (difference.fields or {}).items():
            print(one_line(f"           {name}: {_short(left)} -> {_short(right)}"))
    for side in figures:
        _tell_side(side)
    sys.stdout.flush()


def _tell_side(side: dict[str, Any]) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in side["commands"].items()) or "none"
    print(one_line(f"{side['side']}: commands {kinds}; incidents cost {side['gpu_hours_lost']:.4g} GPU-hours"))
    if "found" in side:
        print(
            f"  of the truth: {len(side['found'])} found, {len(side['missed'])} missed, "
            f"{len(side['blamed'])} blamed though healthy, {len(side['wrong_node_commands'])} nodes taken out wrongly"
        )
        for line in side["wrong_node_commands"]:
            print(one_line(f"    wrong: {line}"))


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 160 else text[:157] + "..."

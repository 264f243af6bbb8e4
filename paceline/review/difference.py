"""Two sides by id: what is the same, changed, missing or new, and why, as far as the two sides themselves can tell.

Of a finding evidence is not compared: it cites offsets, and two recordings have different ones. Of a command neither its
place in the sequence nor its key, which follow from the others. Pure; the explanations are read off the two sides and their policies, and where they give none
it is said that nothing explains it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from schemas.findings import Finding, Subject
from schemas.fleet import Policy, RulePolicy
from schemas.remediation import Command, Incident

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paceline.review.said import Said

__all__ = ["Difference", "compare", "counted", "place_name", "policy_changes"]

What = Literal["same", "changed", "missing", "new"]
Family = Literal["finding", "incident", "command"]
Statement = Finding | Incident | Command

_NOT_COMPARED = {
    "finding": {"evidence", "site_id"},
    "incident": {"site_id"},
    "command": {"site_id", "audience", "sequence", "key_id", "policy_version"},
}
_MOVED_NS = 60_000_000_000
"""A rule says at most one thing a minute about one subject: what is nearer is the same matter with another onset."""

_HELD_NS = 25_000_000_000
"""What a replay still holds at its end is decided there without waiting: lateness, settling and evidence together."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One statement on both sides, or on one.

    Attributes:
        what: `same`, `changed`, `missing` (only in A) or `new` (only in B).
        family: `finding`, `incident` or `command`.
        identity: its id; of a finding with its state.
        at_ns: event time of the statement.
        about: what it says, in words.
        why: the explanation; empty for what is the same.
        fields: of what changed, by field, both sides.
    """

    what: What
    family: Family
    identity: str
    at_ns: int
    about: str
    why: str = ""
    fields: dict[str, tuple[Any, Any]] | None = None


def compare(a: Said, b: Said) -> list[Difference]:
    """Everything that either side said, in order of family and event time."""
    found: list[Difference] = []
    off = _Sides(a, b)
    for family in ("finding", "incident", "command"):
        ours, theirs = _statements(a, family), _statements(b, family)
        lost = {key: ours[key] for key in ours.keys() - theirs.keys()}
        added = {key: theirs[key] for key in theirs.keys() - ours.keys()}
        of_family = [_held(family, key, ours[key], theirs[key], off) for key in ours.keys() & theirs.keys()]
        of_family += [
            Difference("missing", family, key, _at(s), _about(s), off.why(s, added, True)) for key, s in lost.items()
        ]
        of_family += [
            Difference("new", family, key, _at(s), _about(s), off.why(s, lost, False)) for key, s in added.items()
        ]
        found += sorted(of_family, key=lambda d: (d.at_ns, d.identity))
        off.differ |= {difference.identity.partition(":")[0] for difference in of_family if difference.what != "same"}
    return found


def counted(differences: Iterable[Difference]) -> dict[str, Counter[str]]:
    """How many are the same, changed, missing and new, by family."""
    counts: dict[str, Counter[str]] = {family: Counter() for family in ("finding", "incident", "command")}
    for difference in differences:
        counts[difference.family][difference.what] += 1
    return counts


def policy_changes(a: Policy | None, b: Policy | None) -> dict[str, list[str]]:
    """By rule, what differs between two policies, in words; rules that neither names are the same."""
    rules = {**(a.rules if a else {}), **(b.rules if b else {})}
    changes: dict[str, list[str]] = {}
    for rule in sorted(rules):
        was = a.rules.get(rule, RulePolicy()) if a else RulePolicy()
        now = b.rules.get(rule, RulePolicy()) if b else RulePolicy()
        told = [] if was.enabled == now.enabled else ["switched on" if now.enabled else "switched off"]
        for name in sorted({*was.thresholds, *now.thresholds}):
            before, after = was.thresholds.get(name), now.thresholds.get(name)
            if before != after:
                told.append(f"{name} {_default(before)} -> {_default(after)}")
        told += ["limits by part"] if was.per_sku != now.per_sku else []
        if told:
            changes[rule] = told
    return changes


def _default(value: float | None) -> str:
    return "default" if value is None else f"{value:g}"


class _Sides:
    """Explains from the two sides: their policies, how far they reach, and what else differs."""

    def __init__(self, a: Said, b: Said) -> None:
        self._a, self._b = a, b
        self._policy = policy_changes(a.policy, b.policy)
        self.differ: set[str] = set()

    def why(self, statement: Statement, other: dict[str, Statement], is_missing: bool) -> str:
        """Why only one side has it.

        Args:
            statement: what it is.
            other: what only the other side has, of the same family.
            is_missing: whether it is A that has it.
        """
        absent, present = (self._b, self._a) if is_missing else (self._a, self._b)
        at_ns = _at(statement)
        if absent.first_ns is None or at_ns < absent.first_ns:
            return f"{absent.name} begins after it"
        if at_ns > absent.last_ns:
            return f"{absent.name} ends before it"
        told = []
        if isinstance(statement, Finding) and statement.rule in self._policy:
            told.append(f"the policies differ in rule {statement.rule}: {', '.join(self._policy[statement.rule])}")
        if (twin := _twin(statement, other.values())) is not None:
            moved_s = (_at(twin) - _at(statement)) / 1e9
            told.append(f"{absent.name} says the same {moved_s:+.1f} s away ({_identity(twin)})")
        if not isinstance(statement, Finding) and (rests := self._rests(statement)):
            told.append(rests)
        if told:
            return "; ".join(told)
        if at_ns > min(present.last_ns, absent.last_ns) - _HELD_NS:
            return "it is of the last seconds, where one side may have stopped before it was settled"
        return "nothing in the two sides explains it: the code or the input is another"

    def _rests(self, statement: Incident | Command) -> str:
        causes = statement.findings if isinstance(statement, Incident) else statement.cause.findings
        different = [name for name in causes if name in self.differ]
        if different:
            return f"it rests on {', '.join(different[:3])}, which differs"
        if isinstance(statement, Command) and statement.cause.incident_id in self.differ:
            return f"its incident {statement.cause.incident_id} differs"
        return ""

    def why_changed(self, a: Statement, b: Statement, fields: Iterable[str]) -> str:
        """Why both sides have it with other content."""
        if isinstance(a, Finding) and a.rule in self._policy:
            return f"the policies differ in rule {a.rule}: {', '.join(self._policy[a.rule])}"
        if not isinstance(a, Finding):
            if rests := self._rests(a) or (self._rests(b) if not isinstance(b, Finding) else ""):
                return rests
            if _at(a) > min(self._a.last_ns, self._b.last_ns) - _HELD_NS or "state" in fields:
                return "one side reaches further, and its incident went on"
        return f"other in {', '.join(fields)}, from the same input"


def _twin(statement: Statement, others: Iterable[Statement]) -> Statement | None:
    """The same matter on the other side under another id, which is of another onset."""
    for other in sorted(others, key=_at):
        if _matter(other) == _matter(statement) and abs(_at(other) - _at(statement)) <= _MOVED_NS:
            return other
    return None


def _matter(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, Finding):
        return (statement.rule, statement.kind, statement.state, statement.subject.key())
    if isinstance(statement, Incident):
        return (statement.cause_class, statement.culprit.key() if statement.culprit is not None else "")
    return (statement.kind, statement.target.name())


def _identity(statement: Statement) -> str:
    if isinstance(statement, Finding):
        return statement.finding_id
    return statement.incident_id if isinstance(statement, Incident) else statement.command_id


def _held(family: Family, key: str, a: Statement, b: Statement, sides: _Sides) -> Difference:
    left, right = (s.model_dump(mode="json", exclude=_NOT_COMPARED[family]) for s in (a, b))
    for side in (left, right):
        if isinstance(side.get("cause"), dict):
            side["cause"] = {**side["cause"], "evidence": None}
    fields = {name: (left[name], right[name]) for name in left if left[name] != right.get(name)}
    if not fields:
        return Difference("same", family, key, _at(b), _about(b))
    return Difference("changed", family, key, _at(b), _about(b), sides.why_changed(a, b, fields), fields)


def _statements(said: Said, family: Family) -> dict[str, Statement]:
    heard = said.heard
    if family == "finding":
        return {f"{finding_id}:{state}": finding for (finding_id, state), finding in heard.findings.items()}
    return dict(heard.incidents) if family == "incident" else dict(heard.commands)


def _at(statement: Statement) -> int:
    return statement.decided_at_ns if isinstance(statement, Command) else statement.event_time_ns


def _about(statement: Statement) -> str:
    return " ".join(_words(statement))


def _words(statement: Statement) -> Iterator[str]:
    if isinstance(statement, Finding):
        yield f"{statement.kind} {statement.state}"
        yield place_name(statement.subject)
    elif isinstance(statement, Incident):
        yield f"{statement.cause_class} {statement.state}"
        yield place_name(statement.culprit) if statement.culprit else "nobody to blame"
    else:
        yield f"{statement.kind} {statement.when.replace('_', ' ')}"
        yield statement.target.name()


def place_name(subject: Subject) -> str:
    """A subject in words, the narrowest part first."""
    words = [f"rank {subject.rank}"] if subject.rank is not None else []
    if subject.ranks is not None:
        words.append(f"{len(subject.ranks)} ranks")
    places = (
        subject.gpu_uuid,
        subject.device,
        subject.switch_id,
        subject.port,
        subject.node_id,
        subject.job_id,
        subject.zone,
    )
    return " ".join([*words, *(place for place in places if place is not None)]) or subject.level

"""Alerts against truths: one alert can match one truth, every other naming alert is false, nothing is adjusted.

An alert matches a truth when it was said between the onset and the end plus a grace of 20 steps or five minutes, whichever
is longer, and names a culprit or an acceptable place. The same incident may say it again; another incident on a truth that
is matched already is a *repeat* and counts as false, unless the truth is of a group (a zone, a rack, several culprits) and it
names another member (a *companion*, neither hit nor false). Job-level answers match truths about a job or a stage of a class that they may
mean; they are never false blame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from agents.simulation.benchmark.labels import NODE_COSTING_KINDS
from paceline.evaluation.places import is_named, nodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agents.simulation.benchmark.labels import Truth
    from paceline.evaluation.alerts import Alert, SaidCommand

__all__ = ["AlertVerdict", "CommandVerdict", "Judgement", "TruthVerdict", "grace_ns", "judge"]

_GRACE_NS = 300_000_000_000
_GRACE_STEPS = 20
_CLOCK_NS = 2_000_000_000
"""Clocks of nodes differ: evidence may seem this much older than the onset."""

_HARMLESS_KINDS = frozenset({"collect_evidence", "run_preflight", "uncordon_node"})

MIN_IMPACT = 1.02
"""Job slowdown from which a truth that can be placed counts for recall."""

Fate = Literal["matched", "again", "companion", "repeat", "false", "early", "job-level"]


@dataclass(slots=True)
class TruthVerdict:
    """What became of one truth.

    Attributes:
        truth: the truth.
        alert: the alert that matched it, or null.
        is_exact: whether the finest places were named.
        is_class_right: whether the alert's class may mean the truth's.
        seconds: from onset to the alert; for a miss from onset to the end.
        steps: the same in steps, by the step of the alert's evidence.
        unlocalised: job-level answers said while it held.
        falsely_blamed: naming alerts while it held that name somebody else.
        actions: kinds of commands that the matched incident asked for.
        seen: findings about its places while it held, whatever was made of them.
    """

    truth: Truth
    alert: Alert | None = None
    is_exact: bool = False
    is_class_right: bool = False
    seconds: float = 0.0
    steps: int = 0
    unlocalised: list[Alert] = field(default_factory=list)
    falsely_blamed: list[Alert] = field(default_factory=list)
    actions: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()

    @property
    def counts_for_recall(self) -> bool:
        """Whether missing it is a miss."""
        return self.truth.identifiable and not self.truth.advisory and self.truth.impact_S >= MIN_IMPACT

    @property
    def is_missed(self) -> bool:
        """Whether it should have been named and was not."""
        return self.counts_for_recall and self.alert is None

    @property
    def is_action_right(self) -> bool:
        """Whether the right command was asked for; where none is right, that nothing costs a node."""
        if self.truth.right_action == "none":
            return not set(self.actions) & set(NODE_COSTING_KINDS)
        return self.truth.right_action in self.actions


@dataclass(frozen=True, slots=True)
class AlertVerdict:
    """What became of one alert; `truth_id` is of the truth that it named, if it named one."""

    alert: Alert
    fate: Fate
    truth_id: str | None = None
    note: str = ""

    @property
    def is_false(self) -> bool:
        """Whether it counts against precision."""
        return self.fate in {"false", "repeat", "early"}


@dataclass(frozen=True, slots=True)
class CommandVerdict:
    """What became of one command: whether it was allowed, and if not, whether it would have cost the wrong node."""

    command: SaidCommand
    is_allowed: bool
    is_wrong_node: bool
    is_victim: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """One case, judged."""

    truths: tuple[TruthVerdict, ...]
    alerts: tuple[AlertVerdict, ...]
    commands: tuple[CommandVerdict, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the case is not right; empty where it is.

        Right is: every truth that counts is named, nobody else is, no command is forbidden; and where nothing is wrong
        nothing is said that wants to be heard.
        """
        said = [f"missed {v.truth.truth_id} ({v.truth.cause_class})" for v in self.truths if v.is_missed]
        said += [f"{v.fate} alert {v.alert.text()}" for v in self.alerts if v.is_false]
        said += [f"forbidden {v.command.kind} of {v.command.target}" for v in self.commands if not v.is_allowed]
        if not self.asks_for_anything:
            said += [f"job-level warning {v.alert.cause}" for v in self.alerts if _is_unasked_warning(v)]
        return tuple(said)

    @property
    def asks_for_anything(self) -> bool:
        """Whether something is wrong that somebody should hear of: what can be placed only to advise of does not."""
        return any(not (v.truth.advisory and v.truth.identifiable) for v in self.truths)


def _is_unasked_warning(verdict: AlertVerdict) -> bool:
    return verdict.fate == "job-level" and verdict.alert.is_warning


def grace_ns(step_ns: int) -> int:
    """How long after its end a truth may still be named: 20 steps or five minutes, whichever is longer."""
    return max(_GRACE_STEPS * step_ns, _GRACE_NS)


def judge(
    truths: Sequence[Truth],
    alerts: Sequence[Alert],
    commands: Sequence[SaidCommand],
    step_ns: int,
    seen: Mapping[str, tuple[str, ...]] | None = None,
    clock_ns: int = _CLOCK_NS,
) -> Judgement:
    """Match.

    Args:
        truths: what was wrong.
        alerts: what was said, by the time at which it was.
        commands: what was asked for.
        step_ns: length of a step, for the grace.
        seen: by truth id, findings about its places, for the explanation.
        clock_ns: by how much a node's clock may be behind.
    """
    found = {truth.truth_id: TruthVerdict(truth) for truth in truths}
    order = sorted(range(len(alerts)), key=lambda i: (not alerts[i].is_naming, alerts[i].said_ns, alerts[i].alert_id))
    fates: dict[int, AlertVerdict] = {}
    taken: dict[str, set[int]] = {}
    for number in order:
        alert = alerts[number]
        fates[number] = (
            _match_naming(alert, found, taken, step_ns, clock_ns)
            if alert.is_naming
            else _match_job_level(alert, found, step_ns, clock_ns)
        )
    verdicts = tuple(fates[number] for number in range(len(alerts)))
    for verdict in found.values():
        _complete(verdict, verdicts, commands, step_ns, clock_ns)
        verdict.seen = (seen or {}).get(verdict.truth.truth_id, ())
    return Judgement(
        tuple(found.values()), verdicts, tuple(_judge_command(command, truths, step_ns) for command in commands)
    )


def _holds(truth: Truth, alert: Alert, step_ns: int, clock_ns: int) -> bool:
    is_after = alert.said_ns >= truth.onset_ns and alert.evidence_ns >= truth.onset_ns - clock_ns
    return is_after and alert.said_ns <= truth.end_ns + grace_ns(step_ns)


def _named(truth: Truth, alert: Alert) -> int | None:
    """Which place is named, by its number: culprits from 0 on, acceptable places after them; null for none."""
    if alert.subject is None:
        return None
    for number, place in enumerate((*truth.culprits, *truth.acceptable)):
        if is_named(place, alert.subject):
            return number
    return None


def _is_exact(truth: Truth, at: int) -> bool:
    return at < len(truth.culprits)


def _is_group(truth: Truth) -> bool:
    return len(truth.culprits) > 1 or truth.culprits[0].level in {"zone", "rack"}


def _match_naming(
    alert: Alert, found: dict[str, TruthVerdict], taken: dict[str, set[int]], step_ns: int, clock_ns: int
) -> AlertVerdict:
    about = [(v, at) for v in found.values() if (at := _named(v.truth, alert)) is not None]
    candidates = [(v, at) for v, at in about if _holds(v.truth, alert, step_ns, clock_ns)]
    if not candidates:
        if about:
            verdict = about[0][0]
            early = alert.said_ns < verdict.truth.onset_ns or alert.evidence_ns < verdict.truth.onset_ns - clock_ns
            note = "right place before the onset" if early else "right place long after the end"
            return AlertVerdict(alert, "early" if early else "false", verdict.truth.truth_id, note)
        innocent = any(
            is_named(place, alert.subject) for v in found.values() for place in v.truth.innocents if alert.subject
        )
        return AlertVerdict(alert, "false", None, "names an innocent of the truth" if innocent else "")
    for verdict, at in candidates:
        if verdict.alert is not None and verdict.alert.alert_id == alert.alert_id:
            # The same incident, told more finely or more coarsely: free.
            verdict.is_exact = verdict.is_exact or _is_exact(verdict.truth, at)
            return AlertVerdict(alert, "again", verdict.truth.truth_id)
    open_ones = [(v, at) for v, at in candidates if v.alert is None]
    if open_ones:
        verdict, at = min(
            open_ones,
            key=lambda pair: (
                not _is_exact(pair[0].truth, pair[1]),
                pair[0].truth.cause_class not in alert.classes,
                pair[0].truth.onset_ns,
            ),
        )
        verdict.alert, verdict.is_exact = alert, _is_exact(verdict.truth, at)
        verdict.is_class_right = verdict.truth.cause_class in alert.classes
        taken[verdict.truth.truth_id] = {at}
        return AlertVerdict(alert, "matched", verdict.truth.truth_id)
    for verdict, at in candidates:
        known = taken[verdict.truth.truth_id]
        if _is_group(verdict.truth) and at not in known:
            known.add(at)
            return AlertVerdict(alert, "companion", verdict.truth.truth_id)
    truth = candidates[0][0].truth
    return AlertVerdict(alert, "repeat", truth.truth_id, "right place, a second incident")


def _match_job_level(alert: Alert, found: dict[str, TruthVerdict], step_ns: int, clock_ns: int) -> AlertVerdict:
    answered = None
    for verdict in found.values():
        truth = verdict.truth
        if not _holds(truth, alert, step_ns, clock_ns):
            continue
        verdict.unlocalised.append(alert)
        at = _answered(truth, alert)
        if verdict.alert is None and answered is None and at is not None:
            verdict.alert, verdict.is_class_right, verdict.is_exact = alert, True, _is_exact(truth, at)
            answered = truth.truth_id
    return AlertVerdict(alert, "matched" if answered else "job-level", answered)


def _answered(truth: Truth, alert: Alert) -> int | None:
    """As `_named`, for a statement that blames nobody: it must mean the truth's class, and the truth be content with that."""
    if truth.cause_class not in alert.classes:
        return None
    if alert.subject is not None:
        return _named(truth, alert)
    levels = [place.level for place in (*truth.culprits, *truth.acceptable)]
    return levels.index("job") if "job" in levels else None


def _complete(
    verdict: TruthVerdict,
    alerts: Sequence[AlertVerdict],
    commands: Sequence[SaidCommand],
    step_ns: int,
    clock_ns: int,
) -> None:
    truth = verdict.truth
    if verdict.alert is not None:
        verdict.seconds = (verdict.alert.said_ns - truth.onset_ns) / 1e9
        step = verdict.alert.step
        verdict.steps = max(0, step - truth.onset_step) if step is not None else round(verdict.seconds * 1e9 / step_ns)
        verdict.actions = tuple(command.kind for command in commands if command.incident_id == verdict.alert.alert_id)
    else:
        verdict.seconds = max(0.0, (truth.end_ns - truth.onset_ns) / 1e9)
        verdict.steps = truth.end_step - truth.onset_step
    verdict.falsely_blamed = [
        told.alert for told in alerts if told.fate == "false" and _holds(truth, told.alert, step_ns, clock_ns)
    ]


def _judge_command(command: SaidCommand, truths: Sequence[Truth], step_ns: int) -> CommandVerdict:
    if command.kind in _HARMLESS_KINDS:
        return CommandVerdict(command, is_allowed=True, is_wrong_node=False, is_victim=False)
    at_ns = command.said_ns
    active = [t for t in truths if t.onset_ns <= at_ns <= t.end_ns + grace_ns(step_ns)]
    culprit_nodes = frozenset[str]().union(*(nodes_of((*t.culprits, *t.acceptable)) for t in active))
    costs_node = command.kind in NODE_COSTING_KINDS
    is_wrong = costs_node and command.node_id not in culprit_nodes
    # What one truth forbids elsewhere another one may ask for: it is allowed if some truth that it can be about allows it.
    about = [t for t in active if not costs_node or command.node_id in nodes_of((*t.culprits, *t.acceptable))]
    is_allowed = not is_wrong and any(t.allows(command.kind, command.node_id) for t in about)
    return CommandVerdict(command, is_allowed, is_wrong, is_wrong and bool(active))

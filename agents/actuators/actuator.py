"""One actuator: a message of the actions topic becomes an act at most once, and a result.

Guarantees, as long as the memory is not lost: an act is begun once for a command, also over crashes, unless the target
itself shows that the first try did nothing; nothing is begun after its expiry, without the policy's permission or beyond the
local limits; every command that is taken has a result in the outbox. Order: verify, compare with the memory, remember, judge
against the state just seen, journal, act, look, journal. It knows no Kafka: whoever feeds it sends what is in the outbox.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from agents.actuators.hands import ActFailedError, ActRefusedError, Done, PartlyDoneError, TargetAwayError
from agents.actuators.limits import COSTLY_KINDS, LocalLimits
from agents.actuators.memory import digest_of
from agents.actuators.verification import SKEW_NS, Expectations, Refusal, check_term, verify
from schemas.base import deterministic_id
from schemas.keyring import UntrustedKeyError
from schemas.remediation import ActionResult, Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agents.actuators.hands import Hands, Judgement, State
    from agents.actuators.memory import ActuatorMemory, Remembered
    from schemas.findings import Evidence
    from schemas.keyring import Keyring

__all__ = ["Actuator", "ActuatorSettings"]

_LOG = logging.getLogger(__name__)
_HOUR_NS = 3_600_000_000_000
_REACH_NS = 2_000_000_000
"""What is begun later before its expiry could arrive after it: a program is started, on a machine that may be loaded."""

_PATIENCE_S = (1.0, 2.0, 4.0)
"""Waits between tries while the target's controller does not answer."""

T = TypeVar("T")


class _NoLongerError(Exception):
    """Between two tries of an act it ceased to be allowed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class ActuatorSettings:
    """Who an actuator is.

    Attributes:
        actuator_id: its name; of its memory, its results and its consumer group.
        site_id: whose commands it takes.
        limits: what it does at most.
        modes: of commands that it takes. Only `auto` is an order; the dry run takes all.
    """

    actuator_id: str
    site_id: str
    limits: LocalLimits = field(default_factory=LocalLimits)
    modes: frozenset[str] = frozenset({"auto"})

    @property
    def audiences(self) -> frozenset[str]:
        """The names under which it is addressed: as one of the site's, and by its own."""
        return frozenset({f"actuators/{self.site_id}", f"actuators/{self.site_id}/{self.actuator_id}"})


class Actuator:
    """Carries out the commands of one site.

    Args:
        settings: who it is.
        hands: what it acts with.
        memory: what it has done.
        permission: says for a time why the policy lets nothing be done then; None when it does.
        keyring: gives the ring that is trusted now.
        clock_ns: wall time, nanoseconds since the epoch.
        wait_s: waits some seconds, while the target's controller does not answer.
    """

    def __init__(
        self,
        settings: ActuatorSettings,
        hands: Hands,
        memory: ActuatorMemory,
        permission: Callable[[int], Refusal | None],
        keyring: Callable[[], Keyring],
        clock_ns: Callable[[], int],
        wait_s: Callable[[float], object],
    ) -> None:
        self._settings, self._hands, self._memory = settings, hands, memory
        self._permission, self._keyring = permission, keyring
        self._clock_ns, self._wait_s = clock_ns, wait_s
        self.counts: Counter[str] = Counter()
        """Messages by what came of them."""

    def resume(self) -> None:
        """Bring what was under way at the last end to its result.

        Raises:
            ActuatorMemoryError: the memory cannot be written.
        """
        for remembered in self._memory.unfinished():
            self._resume_one(remembered)

    def on_message(self, payload: bytes | None, headers: Iterable[tuple[str, bytes | None]], place: Evidence) -> str:
        """Take one message of the actions topic; what it came to, in one word.

        Raises:
            ActuatorMemoryError: the memory cannot be written; then nothing was begun.
        """
        word = self._taken(payload, headers, place)
        self.counts[word] += 1
        return word

    def _taken(self, payload: bytes | None, headers: Iterable[tuple[str, bytes | None]], place: Evidence) -> str:
        settings = self._settings
        headers = list(headers)
        if _says_another_site(headers, settings.site_id):
            # Sites may share a topic: it is their actuators' to refuse. Nothing is done for what claims so wrongly.
            return "passed_over"
        expected = Expectations(settings.site_id, settings.audiences, self._keyring())
        now_ns = self._clock_ns()
        verdict = verify(payload, headers, expected, now_ns)
        if isinstance(verdict, Refusal):
            # What came before and has expired since is a repeat: to tell its expiry would deny what was done.
            repeat = self._repeat(verdict.command, payload, place, now_ns) if verdict.outcome == "expired" else None
            return repeat if repeat is not None else self._refuse(verdict, payload, place, now_ns)
        assert payload is not None
        command = verdict
        if not self._is_ours(command):
            return "passed_over"
        repeat = self._repeat(command, payload, place, now_ns)
        if repeat is not None:
            return repeat
        refusal = self._out_of_order(command)
        if refusal is not None:
            return self._refuse(refusal, payload, place, now_ns)
        # From here on its id is used, whatever becomes of it: what is refused now must not be done when it comes again.
        self._memory.accept(command, payload, _name(place), now_ns)
        return self._carry_out(command)

    def _repeat(self, command: Command | None, payload: bytes | None, place: Evidence, now_ns: int) -> str | None:
        """What a command comes to whose id came before, in a word; None for one that is new."""
        known = self._memory.known(command.command_id) if command is not None else None
        if known is None:
            return None
        digest = digest_of(payload or b"")
        if known.place == _name(place) and known.digest == digest:
            # Kafka gave it out again: its result is in the outbox, or was sent.
            return "redelivered"
        how = "the same bytes" if known.digest == digest else "other bytes"
        refusal = Refusal("reused_id", f"its id came before at {known.place}, with {how}; nothing was done", command)
        return self._refuse(refusal, payload, place, now_ns)

    def _is_ours(self, command: Command) -> bool:
        """Whether a command is of a kind and mode that this actuator does; others' are no business of its own."""
        return command.mode in self._settings.modes and command.kind in self._hands.kinds

    def _out_of_order(self, command: Command) -> Refusal | None:
        last = self._memory.last_sequence(command.target.name())
        if command.sequence <= last:
            text = f"its sequence {command.sequence} is not above {last}, the last that was taken for its target"
            return Refusal("old_sequence", text, command)
        if command.decided_at_ns < self._memory.born_ns:
            return Refusal("before_memory", "it was decided before this memory began, and may have been done", command)
        return None

    def _carry_out(self, command: Command) -> str:
        """Judge a command that was taken against the state of its target, and do it."""
        try:
            refusal = self._not_now(command)
            if refusal is not None:
                return self._end(command, refusal.outcome, refusal.code, refusal.text)
            before = self._patiently(lambda: self._hands.look(command))
            judgement = self._hands.judge(command, before, self._memory.owner_of(command.target.key()))
        except TargetAwayError as error:
            return self._end(command, "failed", "target_away", str(error))
        except ActFailedError as error:
            return self._end(command, "failed", "act_failed", str(error))
        if judgement.verdict == "refuse":
            return self._end(command, "refused", judgement.code, judgement.text)
        if judgement.verdict == "already_so":
            return self._end(command, "applied", "already_so", judgement.text, judgement)
        # Looking may have taken a while.
        refusal = self._not_now(command)
        if refusal is not None:
            return self._end(command, refusal.outcome, refusal.code, refusal.text)
        self._memory.begin(command.command_id, before, self._clock_ns())
        return self._act(command, before, judgement)

    def _act(self, command: Command, before: State, judgement: Judgement) -> str:
        try:
            done = self._patiently(lambda: self._hands.act(command, before), command)
        except ActRefusedError as error:
            return self._end(command, "refused", error.code, str(error))
        except PartlyDoneError as error:
            # What was taken out is owned, or nobody could give it back.
            return self._end(command, "failed", error.code, str(error), judgement)
        except _NoLongerError as error:
            if self._took_effect(command, before):
                return self._end(command, "applied", "", f"took effect, though nobody answered: {error}", judgement)
            return self._end(command, error.refusal.outcome, error.refusal.code, error.refusal.text)
        except (TargetAwayError, ActFailedError) as error:
            if self._took_effect(command, before):
                return self._end(command, "applied", "", f"took effect, though: {error}", judgement)
            code = "target_away" if isinstance(error, TargetAwayError) else "act_failed"
            return self._end(command, "failed", code, str(error))
        code, text = (done.code, done.text) if isinstance(done, Done) else ("", done)
        return self._end(command, "applied", code, text, judgement)

    def _not_now(self, command: Command) -> Refusal | None:
        """Why nothing may be begun at this moment."""
        now_ns = self._clock_ns()
        refusal = self._forbidden(command, now_ns)
        if refusal is not None:
            return refusal
        # An act that is gone on with after a crash was counted when it began.
        costly = self._memory.begun_since(now_ns - _HOUR_NS, COSTLY_KINDS, without=command.command_id)
        return self._settings.limits.refusal(command, costly, now_ns)

    def _forbidden(self, command: Command, now_ns: int) -> Refusal | None:
        """Why the command, its key or the policy lets nothing be done at a time."""
        refusal = check_term(command, now_ns) or self._distrusted(command, now_ns) or self._permission(now_ns)
        left_ns = command.expires_at_ns - now_ns
        if refusal is None and left_ns < _REACH_NS:
            text = f"it expires in {left_ns / 1e9:.1f} s, and an act takes up to {_REACH_NS / 1e9:.0f} s to reach its target"
            return Refusal("expired", text, command, "expired")
        return refusal

    def _distrusted(self, command: Command, now_ns: int) -> Refusal | None:
        """Why the key of a command that was taken may not speak any more: it may have been revoked in the meantime."""
        try:
            self._keyring().trusted(command.key_id or "", "commands", now_ns, SKEW_NS)
        except UntrustedKeyError as error:
            return Refusal(error.code, str(error), command)
        return None

    def _resume_one(self, remembered: Remembered) -> None:
        command, before = remembered.command, remembered.before
        if before is None:
            self.counts[self._carry_out(command)] += 1
            return
        effect = self._took_effect(command, before)
        if effect:
            judgement = self._hands.judge(command, before, self._memory.owner_of(command.target.key()))
            word = self._end(
                command, "applied", "found_done", "it had taken effect before this actuator ended", judgement
            )
        elif effect is None:
            word = self._end(
                command,
                "failed",
                "interrupted",
                "this actuator ended while it acted; whether it took effect is not known",
            )
        else:
            word = self._carry_out(command)
        self.counts[word] += 1

    def _took_effect(self, command: Command, before: State) -> bool | None:
        try:
            after = self._patiently(lambda: self._hands.look(command))
        except (TargetAwayError, ActFailedError):
            return None
        return self._hands.has_taken_effect(command, before, after)

    def _patiently(self, call: Callable[[], T], act_of: Command | None = None) -> T:
        """Call, and again while nobody answers; an act only as long as its command and the policy let it be done."""
        for pause_s in _PATIENCE_S:
            try:
                return call()
            except TargetAwayError as error:
                _LOG.warning("%s; trying again in %.0f s", error, pause_s)
                self._wait_s(pause_s)
                refusal = self._forbidden(act_of, self._clock_ns()) if act_of is not None else None
                if refusal is not None:
                    raise _NoLongerError(refusal) from error
        return call()

    def _refuse(self, refusal: Refusal, payload: bytes | None, place: Evidence, now_ns: int) -> str:
        """Report a message that was not taken."""
        command = refusal.command
        if command is not None and not self._is_ours(command):
            return "passed_over"
        if command is not None and now_ns > command.expires_at_ns and command.decided_at_ns < self._memory.born_ns:
            # History that a new actuator reads from the topic's beginning.
            return "passed_over"
        _LOG.warning("refused at %s: %s: %s", _name(place), refusal.code, refusal.text)
        command_id = (
            command.command_id
            if command is not None
            else deterministic_id("unverified", _name(place), digest_of(payload or b""))
        )
        self._memory.report(
            ActionResult(
                command_id=command_id,
                site_id=self._settings.site_id,
                actuator_id=self._settings.actuator_id,
                event_time_ns=now_ns,
                outcome=refusal.outcome,
                code=refusal.code,
                reason=refusal.text,
                message=place,
            )
        )
        return refusal.code

    def _end(self, command: Command, outcome: str, code: str, text: str, judgement: Judgement | None = None) -> str:
        """Keep the result of a command that was taken."""
        _LOG.info("%s %s of %s: %s %s", command.command_id, command.kind, command.target.name(), outcome, text)
        result = ActionResult(
            command_id=command.command_id,
            site_id=self._settings.site_id,
            actuator_id=self._settings.actuator_id,
            event_time_ns=self._clock_ns(),
            outcome=outcome,
            code=code or None,
            reason=text,
        )
        self._memory.finish(
            result,
            takes=judgement.takes if judgement is not None else None,
            gives_back=judgement.gives_back if judgement is not None else None,
        )
        return code or outcome


def _says_another_site(headers: Iterable[tuple[str, bytes | None]], site_id: str) -> bool:
    """Whether a message says of itself, unsigned, that it comes from the decisions of another site."""
    sources = [value for name, value in headers if name == "ce_source"]
    return bool(sources) and f"/paceline/{site_id}".encode() not in sources


def _name(place: Evidence) -> str:
    return f"{place.topic}/{place.partition}/{place.offset}"

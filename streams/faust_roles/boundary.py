"""The one place where a Kafka message becomes an engine's record, and where everything that goes wrong is caught.

Faust acknowledges an event whose body raised, so nothing may escape: what cannot be processed goes to the dead-letter
topic with its original bytes, confirmed, before the next event is taken. When that write fails the process ends at once,
with its offsets uncommitted.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import structlog

from schemas.codec import decode, message
from schemas.errors import InvalidRecordError, SchemaError
from schemas.remediation import Approval
from schemas.topics import DEAD_LETTER, LATE, topic_named
from streams.core.admission import refusal
from streams.core.position import Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from schemas.base import Record
    from streams.faust_roles.command_signer import CommandSigner
    from streams.faust_roles.consent_check import ConsentCheck
    from streams.faust_roles.metrics import WorkerMetrics
    from streams.faust_roles.state_keeper import Engine, StateKeeper

__all__ = ["Boundary"]

_log = structlog.get_logger(__name__)
EXIT_DEAD_LETTER_FAILED = 70
EXIT_RESTORE_FAILED = 72


class Boundary:
    """Feeds one role's engines.

    Args:
        keeper: the engines of this worker's partitions.
        send: publishes (topic, key, value, headers) and returns once the broker has confirmed it.
        metrics: what is counted.
        signer: signs commands, where there is a key.
        consents: checks approvals, where they are read.
    """

    def __init__(
        self,
        keeper: StateKeeper,
        send: Callable[[str, bytes | None, bytes | None, list[tuple[str, bytes]]], Awaitable[None]],
        metrics: WorkerMetrics,
        signer: CommandSigner | None = None,
        consents: ConsentCheck | None = None,
    ) -> None:
        self._signer, self._consents = signer, consents
        self._keeper = keeper
        self._send = send
        self._metrics = metrics

    async def on_message(self, raw: Any) -> None:
        """Process one message of Faust: never raises."""
        self._metrics.taken(raw.topic, raw.partition, raw.offset)
        try:
            turn = self._keeper.begin(raw.partition)
        except Exception:  # noqa: BLE001
            # Without its state the partition must not go on: everything would be judged anew, and acknowledged.
            _log.exception("state cannot be restored; ending", topic=raw.topic, partition=raw.partition)
            os._exit(EXIT_RESTORE_FAILED)
        try:
            outputs = await self._process(raw, turn.engine)
            await self._publish(outputs)
        except SchemaError as error:
            await self._dead_letter(raw, "invalid_record", str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 (the boundary: whatever it is, the bytes are kept)
            _log.exception("record could not be processed", topic=raw.topic, offset=raw.offset)
            await self._dead_letter(raw, "processing_failed", f"{type(error).__name__}: {error}")
        try:
            self._keeper.finish(turn, raw.topic, raw.offset)
        except Exception:  # noqa: BLE001 (an older snapshot still counts; the age of it is a metric)
            _log.exception("snapshot failed", topic=raw.topic, partition=raw.partition)

    async def _process(self, raw: Any, engine: Engine) -> list[Record]:
        topic = topic_named(raw.topic)
        if raw.value is None:
            raise InvalidRecordError("no value")
        record = decode(raw.topic, raw.value)
        position = Position(raw.topic, raw.partition, raw.offset, round((raw.timestamp or 0) * 1000))
        refused = refusal(record, raw.key, _schema_header(raw), position)
        if refused is not None:
            await self._publish(_of_refused(engine, raw, record, position))
            raise InvalidRecordError(refused)
        outputs = self._judged(raw, engine, record, position)
        self._metrics.record_in(topic.family, record, raw.partition, engine)
        take_late = getattr(engine, "take_late", None)
        if take_late is not None and take_late():
            # A record turns out to be late when it is offered, so the late one is this one.
            self._metrics.late(topic.family)
            await self._send(LATE.name, raw.key, raw.value, self._origin(raw, "late", "its step or place was closed"))
        return outputs

    def _judged(self, raw: Any, engine: Engine, record: Record, position: Position) -> list[Record]:
        on_approval = getattr(engine, "on_approval", None)
        if not isinstance(record, Approval) or on_approval is None or self._consents is None:
            return engine.on_record(record, position)
        word = self._consents.refusal(record, raw.value, getattr(raw, "headers", None) or ())
        outputs: list[Record] = on_approval(record, word, position)
        return outputs

    async def _publish(self, outputs: Iterable[Record]) -> None:
        sends = []
        for record in outputs:
            wire = message(record)
            if self._signer is not None:
                wire = self._signer.signed(record, wire)
            self._metrics.record_out(record)
            sends.append(self._send(wire.topic, wire.key, wire.value, list(wire.headers)))
        if sends:
            await asyncio.gather(*sends)

    async def _dead_letter(self, raw: Any, reason: str, text: str) -> None:
        self._metrics.dead_letter(reason)
        # The client sends no message that has neither key nor value.
        key = b"" if raw.key is None and raw.value is None else raw.key
        try:
            await self._send(DEAD_LETTER.name, key, raw.value, self._origin(raw, reason, text))
        except Exception as error:  # noqa: BLE001
            _log.critical(
                "dead letter could not be written; ending so that the offset is not committed",
                topic=raw.topic,
                partition=raw.partition,
                offset=raw.offset,
                error=f"{type(error).__name__}: {error}",
            )
            os._exit(EXIT_DEAD_LETTER_FAILED)

    @staticmethod
    def _origin(raw: Any, reason: str, text: str) -> list[tuple[str, bytes]]:
        return [
            ("dlq.topic", raw.topic.encode()),
            ("dlq.partition", str(raw.partition).encode()),
            ("dlq.offset", str(raw.offset).encode()),
            ("dlq.timestamp_ms", str(round((raw.timestamp or 0) * 1000)).encode()),
            ("dlq.reason", reason.encode()),
            ("dlq.text", text.encode(errors="replace")[:1000].decode(errors="ignore").encode()),
        ]


def _schema_header(raw: Any) -> str | None:
    """The message's `schema` header, or None when it has none."""
    for name, value in getattr(raw, "headers", None) or ():
        if name == "schema":
            return bytes(value).decode(errors="replace")
    return None


def _of_refused(engine: Engine, raw: Any, record: Record, position: Position) -> list[Record]:
    """What a record says that is refused for its time alone: that its publisher's clock is ahead."""
    take_refused = getattr(engine, "on_refused", None)
    untimed = Position(position.topic, position.partition, position.offset, append_ms=0)
    if take_refused is None or refusal(record, raw.key, _schema_header(raw), untimed) is not None:
        return []
    outputs: list[Record] = take_refused(record, position)
    return outputs

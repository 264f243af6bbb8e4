"""Strict reading: the short way to a validated record, for what holds a family's fields exactly as they are declared.

What is read here is the record that pydantic would have made: fields, types of the entries, which fields were given. What
is not read here may still be a record (pydantic takes `"5"` for 5), and pydantic alone says what is wrong with it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import orjson

from schemas.base import Record
from schemas.payload_forms import Forms
from schemas.strict_types import FamilyTypes, Inexact, family_types

__all__ = ["ReadingByName", "StrictReading", "reading_of", "strict_reading"]

_MAX_OPENED = 200
"""pydantic refuses what is nested deeper, msgspec only what is nested 1,000 deep: what opens no more cannot be deeper."""

_NAMED = b'{"record":"'
_VALUE_NAMED = b'"value":' + _NAMED

_REFUSED = (msgspec.MsgspecError, ValueError, AssertionError, RecursionError)
"""What says that a payload is not read here: by its types, or by the family's own check of its fields together."""


class StrictReading:
    """Reads one family.

    Args:
        family: its types.
    """

    __slots__ = ("_decode", "_enclosed", "_forms", "_record_of")

    def __init__(self, family: FamilyTypes) -> None:
        self._forms = Forms(family)
        self._record_of = family.lift()
        fields = family.open()
        self._decode = msgspec.json.Decoder(fields).decode
        # To find the type of a TypedDict costs a microsecond a call; of a Struct that holds one it is known.
        self._enclosed: Any = msgspec.defstruct("Enclosed", [("fields", fields)], array_like=True)

    def of_json(self, payload: bytes) -> Record | None:
        """The record in a payload of a known form; None where it has to be read another way."""
        for form in self._forms.known:
            try:
                record: Record = form.record_of(form.decode(payload))
            except _REFUSED:
                continue
            self._forms.came(form)
            return record
        return None

    def of_any_json(self, payload: bytes) -> Record | None:
        """The record in a payload; None where pydantic has to say.

        The numbers in fields that the family does not know are not looked at.
        """
        # Neither is their encoding, and their depth only from 1,000 on.
        if not payload.isascii() or payload.count(b"[") + payload.count(b"{") > _MAX_OPENED:
            return None
        try:
            given = self._decode(payload)
            record: Record = self._record_of(given)
        except _REFUSED:
            return None
        self._forms.learn(given, lambda form: _is_read(form.decode, payload))
        return record

    def of_value(self, value: object) -> Record | None:
        """The record in an already parsed JSON value; None where pydantic has to say."""
        try:
            # Half a surrogate pair, which some parsers let through, is text to msgspec and none to pydantic.
            orjson.dumps(value)
        except orjson.JSONEncodeError:
            return None
        for form in self._forms.known:
            try:
                record: Record = form.record_of(msgspec.convert(value, form.type))
            except _REFUSED:
                continue
            self._forms.came(form)
            return record
        try:
            given = msgspec.convert((value,), self._enclosed).fields
            record = self._record_of(given)
        except _REFUSED:
            return None
        self._forms.learn(given, lambda form: _is_read(lambda told: msgspec.convert(told, form.type), value))
        return record

    def of_line(self, line: bytes) -> tuple[tuple[Any, ...], Record] | None:
        """What an archive's line says (`Form.line`), and its record; None where it is of no known form."""
        for form in self._forms.known:
            try:
                said = form.line(line)
                record: Record = form.record_of(said[-1])
            except _REFUSED:
                continue
            self._forms.came(form)
            return said, record
        return None


def _is_read(read: Any, told: object) -> bool:
    try:
        read(told)
    except _REFUSED:
        return False
    return True


class ReadingByName:
    """Reads the families of one topic by the name in their field `record`; without families nothing is read.

    Args:
        readings: by that name.
    """

    __slots__ = ("_by_bytes", "_by_name")

    def __init__(self, readings: dict[str, StrictReading]) -> None:
        self._by_name = readings
        self._by_bytes = {name.encode(): reading for name, reading in readings.items()}

    def of_json(self, payload: bytes) -> Record | None:
        """As `StrictReading.of_json`, of payloads that begin with their name, as `encode` writes them."""
        reading = self._named(payload, _NAMED) if payload.startswith(_NAMED) else None
        return None if reading is None else reading.of_json(payload)

    def of_any_json(self, payload: bytes) -> Record | None:
        """As `StrictReading.of_any_json`, of payloads that begin with their name."""
        reading = self._named(payload, _NAMED) if payload.startswith(_NAMED) else None
        return None if reading is None else reading.of_any_json(payload)

    def of_line(self, line: bytes) -> tuple[tuple[Any, ...], Record] | None:
        """As `StrictReading.of_line`, of lines whose value begins with its name."""
        reading = self._named(line, _VALUE_NAMED)
        return None if reading is None else reading.of_line(line)

    def _named(self, told: bytes, before: bytes) -> StrictReading | None:
        begun = told.find(before)
        if begun < 0:
            return None
        # Should this be no name, or the name come again and be another, the family does not take it.
        return self._by_bytes.get(told[begun + len(before) : told.find(b'"', begun + len(before))])

    def of_value(self, value: object) -> Record | None:
        """As `StrictReading.of_value`."""
        name = value.get("record") if isinstance(value, dict) else None
        reading = self._by_name.get(name) if isinstance(name, str) else None
        return None if reading is None else reading.of_value(value)


def reading_of(families: tuple[type[Record], ...]) -> StrictReading | ReadingByName:
    """The strict reading of a topic that carries these families."""
    found = {family: reading for family in families if (reading := strict_reading(family)) is not None}
    if len(families) == 1 and found:
        return found[families[0]]
    return ReadingByName({str(family.model_fields["record"].default): reading for family, reading in found.items()})


@cache
def strict_reading(family: type[Record]) -> StrictReading | None:
    """The strict reading of a family, or None where its schema cannot be told to msgspec exactly."""
    try:
        return StrictReading(family_types(family))
    except Inexact:
        return None

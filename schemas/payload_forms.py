"""Forms of payloads: which fields of a family are given, in which order, and how long their columns are.

A publisher says the same few forms over and over. A form that has come often gets a type of its own in which each of its fields
is required, no other is taken, and every column has its length: it is read in half the time, and what is only a matter of the form
has been checked when the form was learned. Forms speed reading up and change nothing: what is of no known form is read without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from schemas.base import is_of_lengths_alone
from schemas.strict_types import FamilyTypes, Lift, Told, filled

__all__ = ["Form", "Forms"]

_MAX_KNOWN = 3
"""Tried one after the other; the frames of a GPU node have three (each tick, each 10 s, each minute)."""

_MAX_MADE = 16
"""A form costs a millisecond and some kilobytes to make; who sends ever new ones is read without."""

_LOOK_EVERY, _OFTEN = 16, 4
"""Of what is of no known form every 16th is looked at, and its form is learned when it has come four times."""

_MAX_SEEN = 256

_MAX_VOTES = 8
"""So many of other forms, more than its own, take a form from the first place; with one place for the last that came, the frames of
switches among those of nodes changed the order at every third."""

_MAX_COLUMN = 128
"""The type of a longer column would itself be large; a node has 8 GPUs or 16, and a switch up to 128 ports."""

_WHOLE = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_LINE: list[Any] = [
    ("topic", str),
    ("partition", _WHOLE, 0),
    ("offset", _WHOLE, 0),
    ("timestamp_ms", _WHOLE, 0),
    ("key", str | None, None),
    ("headers", dict[str, str], {}),
]

_NOTHING = Annotated[int, msgspec.Meta(gt=1, lt=1)]
"""No value is of this type."""

_NULL = -1
_Key = tuple[tuple[str, int | None], ...]
"""Names of the given fields in their order, and of each the length if it is a column, or that it is null."""


class Form:
    """One form of one family.

    Args:
        family: the family.
        key: which form.
    """

    __slots__ = ("_line", "decode", "record_of", "type")

    def __init__(self, family: FamilyTypes, key: _Key) -> None:
        self.type = _struct_of(family, dict(key))
        self.decode = msgspec.json.Decoder(self.type).decode
        self.record_of = _record_of(family, {name for name, _ in key})
        self._line: Any = None

    def line(self, line: bytes) -> tuple[Any, ...]:
        """Of a whole line of an archive `topic`, `partition`, `offset`, `timestamp_ms`, `key`, `headers` and the `value`.

        Raises:
            msgspec.MsgspecError: the line is another, or none.
        """
        if self._line is None:
            line_type = msgspec.defstruct(
                "Line", [*_LINE, ("value", self.type)], kw_only=True, forbid_unknown_fields=True
            )
            self._line = msgspec.json.Decoder(line_type).decode
        return msgspec.structs.astuple(self._line(line))


def _struct_of(family: FamilyTypes, lengths: dict[str, int | None]) -> Any:
    """All fields of the family in the order of the model, so that those of a record are there at once; none is taken but the given ones."""
    factories = dict(family.factories)

    def unset(name: str) -> Any:
        return msgspec.field(default_factory=factories[name]) if name in factories else family.defaults[name]

    fields = [
        (name, _type_of(told, lengths[name])) if name in lengths else (name, _NOTHING, unset(name))
        for name, told in family.fields.items()
    ]
    return msgspec.defstruct(family.model.__name__, fields, kw_only=True, forbid_unknown_fields=True, gc=False)


def _type_of(told: Told, length: int | None) -> Any:
    if length is None:
        return told.closed
    return None if length == _NULL else tuple[(told.entry,) * length]  # type: ignore[misc]


def _length_of(told: Told, value: object) -> int | None:
    if value is None:
        return _NULL
    # A column of records is no column of this kind: its entries are checked one by one.
    return len(value) if type(value) is tuple and told.entry is not None and told.lift is None else None


def _record_of(family: FamilyTypes, names: set[str]) -> Lift:
    model = family.model
    lifts = [(name, lift) for name in names if (lift := family.fields[name].lift) is not None]
    checks = [check for check in family.checks if not is_of_lengths_alone(check)]
    fields_of = msgspec.structs.asdict

    def record_of(struct: Any) -> Any:
        fields = fields_of(struct)
        for name, lift in lifts:
            fields[name] = lift(fields[name])
        # One set of names for all records of the form: a record is never changed, and its copies copy the set.
        record = filled(model, fields, names)
        for check in checks:
            record = check(record)
        return record

    return record_of


class Forms:
    """The forms that are known of one family, the one that comes most at the moment first.

    Args:
        family: the family.
    """

    __slots__ = ("_family", "_made", "_seen", "_unknown", "_votes", "known")

    def __init__(self, family: FamilyTypes) -> None:
        self._family = family
        self._made: dict[_Key, Form] = {}
        self._seen: Counter[_Key] = Counter()
        self._unknown = 0
        self._votes = 0
        self.known: tuple[Form, ...] = ()

    def learn(self, given: dict[str, Any], fits: Callable[[Form], bool]) -> None:
        """Take note of a record that was of no known form.

        Args:
            given: its fields as they were given, unknown ones left out; the record has passed its family's checks.
            fits: whether the record can be read by a form.
        """
        self._unknown += 1
        if self._unknown % _LOOK_EVERY:
            return
        fields = self._family.fields
        key = tuple((name, _length_of(fields[name], value)) for name, value in given.items())
        self._seen[key] += 1
        is_often = self._seen[key] >= _OFTEN
        if is_often or len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        if not is_often:
            return
        form = self._made.get(key) or self._make(key)
        if form is not None and fits(form):
            self._put_first(form)

    def came(self, form: Form) -> None:
        """Take note of a record of a known form: to try one in vain costs a quarter of a reading."""
        if form is self.known[0]:
            if self._votes < _MAX_VOTES:
                self._votes += 1
        elif self._votes:
            self._votes -= 1
        else:
            self._put_first(form)

    def _put_first(self, form: Form) -> None:
        self.known = (form, *(other for other in self.known if other is not form))[:_MAX_KNOWN]

    def _make(self, key: _Key) -> Form | None:
        if len(self._made) >= _MAX_MADE or any(length is not None and length > _MAX_COLUMN for _, length in key):
            return None
        form = self._made[key] = Form(self._family, key)
        return form

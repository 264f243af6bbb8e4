"""Redacts an archive in two passes: first every name is learnt, then every record is written anew with pseudonyms.

What is written is made of the models alone: payload, key and headers of a record are encoded anew from the redacted fields, so
that nothing goes along that the table does not name. Partitions, offsets and times are kept. What is no record, or
would be refused by a worker, is left out and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from schemas.archive import decode_line
from schemas.codec import decode_value, message
from schemas.errors import SchemaError
from schemas.findings import Finding
from schemas.topics import topic_named
from streams.core.admission import refusal_of_name
from streams.decisions.advice import ADVICE
from streams.recording.taken import Taken
from streams.redaction.ids import Ids, finding_id
from streams.redaction.names import Names
from streams.redaction.table import LEFT_OUT, TABLE, Entries, How, Inner
from streams.redaction.text import is_link, is_part, line, said
from streams.redaction.words import SYSTEM_PATHS, is_usual

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.archive import ArchiveLine
    from schemas.base import Record
    from streams.redaction.table import Treatment

__all__ = ["Redactor"]

_STATEMENTS = frozenset({"findings", "incidents", "actions"})
_PCI = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?", re.ASCII)
_SHIPPED_ADVICE = tuple(ADVICE.values())
_SEEN = " Seen: "
_SHORTEST_LIMIT = 64
"""Characters that every field takes; what is masked may be longer than it was."""
_VERSION = re.compile(r"v?\d{1,5}(?:\.\d{1,5})*(?:(?:a|b|rc|\.dev|\.post)\d{1,5})?")
_NUMBERINGS = re.compile(r"(?:before-|fabric-manager-)*")
_NAMES = frozenset({How.NAME, How.NAMES, How.WHOLE})
_OF_ITSELF = frozenset(How) - {How.KEPT, How.SAID, How.ADVICE, How.LINE, How.PATTERNS, How.FIGURES, How.CLEARED}
"""Treatments whose result depends on the text alone."""
_VENDORS = ("NVIDIA ", "AMD ")
"""How the names begin that drivers print of parts which the table does not have yet."""


class Redactor:
    """Redacts the lines of one archive.

    Args:
        key: random bytes of the pseudonyms.

    Attributes:
        left_out: lines that are not written, by reason.
        unknown_fields: fields that this code does not know and that were dropped, by record family.
    """

    def __init__(self, key: bytes) -> None:
        self.names = Names(key)
        self.left_out: Counter[str] = Counter()
        self.unknown_fields: Counter[str] = Counter()
        self._ids = Ids(self.names)
        self._nodes: set[str] = set()
        self._told: list[dict[str, str]] = [{} for _ in range(len(How) + 1)]
        self._is_learning = True
        self._is_foreign = False
        self._process: str | None = None

    def learn(self, line: ArchiveLine) -> None:
        """First pass: take the names of a line."""
        record = self._record(line)
        if record is None:
            return
        if (node_id := getattr(record, "node_id", None)) is not None:
            self._nodes.add(node_id)
        fields = self._fields(type(record), line.value)
        if topic_named(line.topic).family in _STATEMENTS:
            with suppress(SchemaError):
                self._ids.learn(record, decode_value(line.topic, fields))

    def learnt(self) -> None:
        """Between the passes: all names are known."""
        self._ids.settle()
        for told in self._told:
            told.clear()
        self.left_out.clear()
        self.unknown_fields.clear()
        self._is_learning = False

    def redacted(self, line: ArchiveLine) -> Taken | None:
        """Second pass: a line without its names, or None if it is left out."""
        record = self._record(line)
        if record is None:
            return None
        self._is_foreign = isinstance(record, Finding) and finding_id(record) != record.finding_id
        try:
            written = message(decode_value(line.topic, self._fields(type(record), line.value)))
        except SchemaError:
            self.left_out["no record any more"] += 1
            return None
        return Taken(
            written.topic, line.partition, line.offset, line.timestamp_ms, written.key, written.value, written.headers
        )

    def _record(self, line: ArchiveLine) -> Record | None:
        try:
            topic = topic_named(line.topic)
        except SchemaError:
            self.left_out["unknown topic"] += 1
            return None
        if topic.family in LEFT_OUT or not isinstance(line.value, dict):
            self.left_out[topic.family if topic.family in LEFT_OUT else "no record"] += 1
            return None
        try:
            record = decode_line(line)
        except SchemaError:
            self.left_out["no record"] += 1
            return None
        if line.key is not None:
            schema = line.headers.get("schema")
            if refusal_of_name(record, line.key.encode(), schema, line.topic) is not None:
                self.left_out["refused"] += 1
                return None
        return record

    def _fields(self, family: type[Record], value: dict[str, Any]) -> dict[str, Any]:
        table, found = TABLE[family], {}
        process = value.get("process")
        self._process = process if isinstance(process, str) else None
        for name, inner in value.items():
            treatment = table.get(name)
            if treatment is None:
                self.unknown_fields[family.__name__] += 1
            elif treatment is How.KEPT:
                found[name] = inner
            elif treatment is not How.CLEARED and inner is not None:
                found[name] = self._value(treatment, inner)
        return found

    def _value(self, treatment: Treatment, value: Any) -> Any:
        if isinstance(treatment, How):
            return self._by_how(treatment, value)
        if not isinstance(value, dict):
            return [self._value(treatment, each) for each in value]
        if isinstance(treatment, Inner):
            return self._fields(treatment.family, value)
        return self._entries(treatment, value)

    def _by_how(self, how: How, value: Any) -> Any:
        if how is How.KEPT:
            return value
        if isinstance(value, str):
            return self._text(how, value)
        if isinstance(value, list | tuple):
            if how is How.PATTERNS:
                return self._nodes_of(value)
            told = self._told[how.value]
            # Frames say the same names again and again.
            found = [
                told.get(each) or self._by_how(how, each) if type(each) is str else self._by_how(how, each)
                for each in value
            ]
            return sorted(found) if how is How.NAMES else found
        return value if isinstance(value, int | float) else None

    def _entries(self, treatment: Entries, entries: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for key, value in entries.items():
            of_value = treatment.by_key.get(key)
            if of_value is None and treatment.is_closed:
                self.unknown_fields["dictionaries"] += 1
            elif of_value is not How.CLEARED:
                found[self._value(treatment.keys, key)] = self._value(of_value or treatment.values, value)
        return found

    def _nodes_of(self, patterns: Iterable[str]) -> list[str]:
        """What scopes of a mode say by patterns, said by the names that they fit; a pattern that fits none fits none still."""
        found: list[str] = []
        for pattern in patterns:
            fitting = [self.names.of(node) for node in sorted(self._nodes) if fnmatchcase(node, pattern)]
            found += fitting or [self.names.of(pattern)]
        return sorted(set(found))

    def _text(self, how: How, text: str) -> str | None:
        if how in _OF_ITSELF:
            told = self._told[how.value]
            return told.get(text) or told.setdefault(text, self._renamed(how, text))
        if how is How.FIGURES:
            return None
        if self._is_learning:
            return ""
        if how is How.LINE or self._is_foreign:
            return line(text, self.names, self._process)[: max(len(text), _SHORTEST_LIMIT)]
        if how is How.ADVICE and not text.startswith(_SHIPPED_ADVICE):
            # A site's own, and behind it what was seen (`streams.decisions.advice`).
            own, mark, seen = text.partition(_SEEN)
            return self.names.of(own) + mark + said(seen, self.names)
        return self.names.known(text) or said(text, self.names)

    def _renamed(self, how: How, text: str) -> str:
        """What depends on the text alone."""
        names = self.names
        if how in _NAMES:
            return names.of(text)
        if how is How.WORD:
            return text if is_usual(text) else names.of(text)
        if how is How.LINK:
            return text if is_link(text) else names.of(text)
        if how is How.PEER:
            head, *ports = text.split("/")
            return "/".join([names.of(head), *(self._renamed(How.LINK, port) for port in ports)])
        if how is How.PCI:
            return text if _PCI.fullmatch(text) else names.of(text)
        if how is How.PART:
            return text if is_part(text) or text.startswith(_VENDORS) else names.of(text)
        if how is How.VERSION:
            return text if _VERSION.fullmatch(text) else names.of(text)
        if how is How.BOOT:
            numbering = _NUMBERINGS.match(text)
            head = numbering[0] if numbering is not None else ""
            return text if text[len(head) :] == "unknown" else head + names.of(text[len(head) :])
        if how is How.AUDIENCE:
            head, mark, site = text.partition("/")
            return f"actuators/{names.of(site)}" if head == "actuators" and mark else names.of(text)
        if how is How.PATH:
            return text if text in SYSTEM_PATHS else f"/{names.of(text)}"
        if how is How.TOPIC:
            return _topic(text) or names.of(text)
        assert how is How.SHA256
        return names.masked_sha256(text)


def _topic(name: str) -> str | None:
    try:
        return topic_named(name).name
    except SchemaError:
        return None

"""JSON of DCGM values, `{"entityId": N, "fields": {NAME: value}}`: an object, a list, or one object a line.

Guarantees: integers keep all their digits, so every blank is recognised; a document that is cut or broken costs
itself and not the ones beside it. It takes the text whole, since a list has its end at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agents.decode import pci_address
from agents.decode.dcgm_fields import by_dcgm_name, by_dmon_name
from agents.decode.dcgm_sample import canonical, entity_named, identify, new_sample, put, stated, whole
from agents.decode.quantity import bounded
from agents.decode.record import Record, malformed

_BETWEEN = re.compile(r"[\s,\]]*")
_NEXT_START = re.compile(r"^[ \t]*[\[{]", re.MULTILINE)
_DECODER = json.JSONDecoder()

_OPENED = 16
"""Lists that are opened at most because they cannot be read whole."""

_ENTITY_KEYS = ("entity", "entitytype", "entitygroup", "entitygroupid", "entitygroupname")
_UUID_FIELDS = frozenset({"DCGM_FI_DEV_UUID", "DCGM_FI_DEV_GPU_UUID"})
_ADDRESS_FIELDS = frozenset({"DCGM_FI_DEV_PCI_BUSID", "DCGM_FI_DEV_PCI_BUS_ID"})


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON value of a text, or the place where one could not be read.

    Attributes:
        line: Where it begins, counted from 1.
        value: The value; None where it could not be read.
        error: Why it could not be read, None where it could.
        raw: Its text, where it could not be read.
    """

    line: int
    value: Any = None
    error: str | None = None
    raw: str = ""


def documents(text: str) -> Iterator[Document]:
    """The JSON values of `text` that follow each other, and the elements of lists in their place."""
    position = 0
    line, counted, opened = 1, 0, 0
    while True:
        position = _matched_end(_BETWEEN, text, position)
        line += text.count("\n", counted, position)
        counted = position
        if position >= len(text):
            return
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            if text[position] == "[" and opened < _OPENED:
                opened += 1
                position += 1  # the list is broken somewhere; its elements may be whole
                continue
            reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            yield Document(line, None, f"JSON cannot be read: {reason}", _line_at(text, position))
            following = _NEXT_START.search(text, text.find("\n", position) + 1 or len(text))
            position = following.start() if following else len(text)
            continue
        yield from (Document(line, item) for item in (value if isinstance(value, list) else [value]))
        position = end


def is_sample(value: Any) -> bool:
    """Whether a JSON value is meant as the values of an entity."""
    return isinstance(value, dict) and any(canonical(key) in {"entityid", "fields"} for key in value)


def parse_document(document: Document) -> Record | None:
    """The sample of one document; `malformed` where it is meant as one and is not; None for any other value."""
    value = document.value
    if document.error is not None:
        return malformed(document.error, document.raw, document.line)
    if not isinstance(value, dict):
        return malformed("not an object", json.dumps(value)[:500], document.line)
    by_key = {canonical(key): item for key, item in value.items()}
    if not is_sample(value):
        message = by_key.get("error")
        return {"kind": "collector_error", "message": message} if isinstance(message, str) else None
    fields = by_key.get("fields")
    if not isinstance(fields, dict):
        return malformed("no object under fields", json.dumps(value)[:500], document.line)
    word = next((by_key[key] for key in _ENTITY_KEYS if isinstance(by_key.get(key), (str, int))), "gpu")
    sample = new_sample(entity_named(word), _index(by_key.get("entityid", by_key.get("gpu", by_key.get("gpuindex")))))
    identify(sample, {key: str(item) for key, item in by_key.items() if isinstance(item, (str, int))})
    for name, cell in fields.items():
        _identify_by_field(sample, name, cell)
        put(sample, by_dcgm_name(name) or by_dmon_name(name), name, cell)
    return sample


def _identify_by_field(sample: Record, name: str, cell: Any) -> None:
    if not isinstance(cell, str):
        return
    if name.upper() in _UUID_FIELDS:
        sample["gpu_uuid"] = sample["gpu_uuid"] or stated(cell)
    elif name.upper() in _ADDRESS_FIELDS:
        sample["pci_bus_id"] = sample["pci_bus_id"] or pci_address.normalise(cell)


def _index(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return bounded(value)
    return whole(value) if isinstance(value, str) else None


def _matched_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found else position


def _line_at(text: str, position: int) -> str:
    end = text.find("\n", position)
    return text[position : end if end >= 0 else len(text)][:500]

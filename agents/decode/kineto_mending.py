"""The value of a JSON text as profilers print it, which is not always JSON.

Guarantees: what is JSON is read as such; `nan` and `inf` become null, a lone backslash stands for itself, bytes that are not
UTF-8 become U+FFFD; times since the epoch keep their nanoseconds, as text. Deliberately not: quotes that are missing
or too many, because what was meant by them cannot be told.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

# Microseconds since the epoch with a fraction do not fit into a double. As text they keep their digits.
LONG_TIME: Final = re.compile(rb'("ts"\s*:\s*)(\d{14,}\.\d+)')
"""A time with more digits than a double keeps; `\\1"\\2"` in its place makes a text of it."""

_STRING_OR_WORD: Final = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*+")|-?\b(?:nan(?:\(\w*\))?|inf(?:inity)?)(?!\w)', re.IGNORECASE | re.DOTALL
)
_LONE_BACKSLASH: Final = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')

NOT_JSON: Final = object()
"""What `parsed` gives where there is no value."""


def parsed(raw: bytes) -> Any:
    """The value of a JSON text, mended where it must be; `NOT_JSON` where that does not help."""
    raw = LONG_TIME.sub(rb'\1"\2"', raw)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    text = raw.decode("utf-8", "replace")
    for mended in (text, _STRING_OR_WORD.sub(_mended, text)):
        try:
            return json.loads(mended, strict=False)
        except (ValueError, RecursionError):
            continue
    return NOT_JSON


def _mended(found: re.Match[str]) -> str:
    if found["string"] is None:
        return "null"
    return _LONE_BACKSLASH.sub(lambda lone: lone[1] or "\\\\", found["string"])

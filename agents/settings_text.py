"""Settings as the TOML file that would give them, each with a comment that says where it came from.

Guarantees: what `load` reads back is what was written, but for secrets: passwords, keys and tokens are never written.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents.settings import AgentSettings

__all__ = ["HIDDEN", "as_toml"]

HIDDEN = "(not shown)"
"""Stands for a secret."""

_SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|\.key\b|jaas|private|(^|\.)sasl\.oauthbearer\.config", re.IGNORECASE
)
_NO_SECRET = re.compile(r"\.(location|url|uri|endpoint\.url)$|^ssl\.key\.location$", re.IGNORECASE)
"""A path or an address of a secret is none."""

_PASSWORD_IN_URL = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://[^/@:\s]*):[^/@\s]*@", re.IGNORECASE)
_DEFAULT = "default"


def as_toml(settings: AgentSettings, origins: Mapping[str, str]) -> str:
    """The effective settings.

    Args:
        settings: what holds.
        origins: where those came from that are no defaults, by name.
    """
    lines = ["[agent]"]
    for setting in dataclasses.fields(settings):
        value = getattr(settings, setting.name)
        if not isinstance(value, Mapping):
            lines.append(f"{setting.name} = {_value(value)}  # {origins.get(setting.name, _DEFAULT)}")
    for setting in dataclasses.fields(settings):
        value = getattr(settings, setting.name)
        if isinstance(value, Mapping) and value:
            lines += ["", f"[agent.{setting.name}]  # {origins.get(setting.name, _DEFAULT)}"]
            lines += [f"{_text(name)} = {_entry(name, entry)}" for name, entry in sorted(value.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return _text(_PASSWORD_IN_URL.sub(rf"\g<head>:{HIDDEN}@", str(value)))


def _entry(name: str, value: Any) -> str:
    if _SECRET.search(name) and not _NO_SECRET.search(name):
        return _text(HIDDEN)
    return _value(value)


def _text(text: str) -> str:
    # A JSON text is a TOML one, but for the characters beyond 16 bits, which JSON writes in pairs, and DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

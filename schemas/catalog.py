"""The catalogues of GPU (Xid) and NVSwitch (SXid) error codes: what a code means and what to do about it.

The tables are the JSON files in `schemas/data`, read on first use and kept; a code that is not in them is None,
never a guess. Severity and action are of the code alone: the text of an event and the events around it can say
otherwise, which is why `conditional_actions` come before `suggested_action`. Nothing here judges an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import orjson

Severity = Literal["info", "app", "degraded", "fatal"]

HardwareSuspect = bool | Literal["possible"]
"""Whether the code points at hardware. `possible` is true as a condition: only False clears the hardware."""

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class ConditionalAction:
    """An action that replaces the plain one under a condition, which is prose for people and rule authors."""

    when: str
    action: str


@dataclass(frozen=True, slots=True)
class XidEntry:
    """One Xid code of the GPU driver.

    Attributes:
        code: The code, as in `NVRM: Xid (...): CODE`.
        mnemonic: The driver's symbol, None where no public source names one.
        name: A short name in words.
        severity: `app` is a fault of the program that ran, not of the device.
        category: The part of the system concerned, as `gpu_memory` or `nvlink`.
        suggested_action: What to do about one such event when no condition holds.
        conditional_actions: Actions that go before the suggested one when their condition holds.
        companion_codes: Xids that the same fault often brings along.
        hardware_suspect: Whether hardware may be the cause.
    """

    code: int
    mnemonic: str | None
    name: str
    severity: Severity
    category: str
    suggested_action: str
    conditional_actions: tuple[ConditionalAction, ...]
    companion_codes: tuple[int, ...]
    hardware_suspect: HardwareSuspect


@dataclass(frozen=True, slots=True)
class SxidEntry:
    """One SXid code of the NVSwitch driver; fields as in `XidEntry`, except that companions are Xids of GPUs."""

    code: int
    mnemonic: str | None
    name: str
    severity: Severity
    category: str
    suggested_action: str
    conditional_actions: tuple[ConditionalAction, ...]
    companion_codes: tuple[int, ...]
    hardware_suspect: HardwareSuspect


def xid(code: int) -> XidEntry | None:
    """The entry of an Xid code, or None for a code that is not in the catalogue."""
    return xids().get(code)


def sxid(code: int) -> SxidEntry | None:
    """The entry of an SXid code, or None for a code that is not in the catalogue."""
    return sxids().get(code)


@cache
def xids() -> Mapping[int, XidEntry]:
    """All Xid entries by code, in the file's order."""
    rows = _rows("xid_catalog.json")
    return MappingProxyType({row["code"]: XidEntry(**_fields(row, "companion_codes")) for row in rows})


@cache
def sxids() -> Mapping[int, SxidEntry]:
    """All SXid entries by code, in the file's order."""
    rows = _rows("sxid_catalog.json")
    return MappingProxyType({row["code"]: SxidEntry(**_fields(row, "companion_xids")) for row in rows})


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = orjson.loads((_DATA / name).read_bytes())
    return rows


def _fields(row: dict[str, Any], companions: str) -> dict[str, Any]:
    plain = ("code", "mnemonic", "name", "severity", "category", "suggested_action", "hardware_suspect")
    fields = {name: row[name] for name in plain}
    fields["conditional_actions"] = tuple(
        ConditionalAction(item["when"], item["action"]) for item in row["conditional_actions"]
    )
    fields["companion_codes"] = tuple(row[companions])
    return fields

"""The failure table: what answers each class of incidents, as packaged, and what a site's policy may change of it.

The table stands in `schemas/data/policy-defaults.toml` under `failures`, beside thresholds and guards. This module reads it and
holds a site's changes against it; which incident has which class is not decided here.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, cast

from schemas import catalog
from schemas.remediation import COMMAND_KINDS, CommandKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.fleet import FailurePolicy

__all__ = [
    "COSTS_A_NODE",
    "NEVER_A_NODE",
    "Row",
    "changed",
    "code_name",
    "known_failures",
    "refusal_of_code",
    "refusal_of_failure",
]

COSTS_A_NODE = frozenset({"cordon_node", "drain_node", "reboot_node", "reset_gpu", "swap_spare", "replace_hardware"})
"""Kinds that take a node, or a part of it, from somebody."""

NEVER_A_NODE = frozenset(
    {
        *("cooling", "shared_place", "common_mode", "facility"),
        *("whole_job", "partition", "workload", "storage"),
        *("hang", "hang_mismatch", "hang_network", "pause_storm_unlocalised"),
    }
)
"""Classes that blame nobody, or a place: no site can give them an act that costs a node."""

_LONGEST_NS = 24 * 3_600_000_000_000
"""Actuators refuse commands that are valid for longer."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table; `act` is None for advice alone, and for a class whose act the catalogue gives."""

    act: CommandKind | None = None
    when: Literal["now", "after_checkpoint"] = "now"
    valid_ns: int = 3_600_000_000_000
    taint: str | None = None
    restarts_job: bool = False


@cache
def known_failures() -> dict[str, Row]:
    """The packaged rows, by class."""
    text = resources.files("schemas").joinpath("data", "policy-defaults.toml").read_text(encoding="utf-8")
    return {name: _row(fields) for name, fields in tomllib.loads(text)["failures"].items()}


def code_name(source: str, code: int) -> str:
    """A kernel code as policies name it: `xid-79`."""
    return f"{source}-{code}"


def refusal_of_failure(cause_class: str, setting: Mapping[str, Any]) -> str | None:
    """Why a site cannot say this of a class, in one line; None when it can."""
    act = setting.get("act")
    if cause_class in NEVER_A_NODE and act in COSTS_A_NODE:
        return f"act {act} costs a node, and {cause_class} blames none"
    return _refusal(setting)


def refusal_of_code(name: str, setting: Mapping[str, Any]) -> str | None:
    """Why a site cannot say this of a code, in one line; None when it can."""
    source, _, number = name.partition("-")
    if source not in {"xid", "sxid"} or not number.isdecimal() or code_name(source, int(number)) != name:
        return f"no code {name}; names are like xid-79 and sxid-12028"
    entry = catalog.xid(int(number)) if source == "xid" else catalog.sxid(int(number))
    if entry is None:
        return f"no code {name} in the catalogue"
    act = setting.get("act")
    if entry.severity == "app" and act in COSTS_A_NODE:
        return f"act {act} costs a node, and {name} is a fault of the application"
    return _refusal(setting)


def _refusal(setting: Mapping[str, Any]) -> str | None:
    act, valid_ns = setting.get("act"), setting.get("valid_ns")
    if isinstance(act, str) and act not in {*COMMAND_KINDS, "none"}:
        return f"no act {act}; there are {', '.join(sorted({*COMMAND_KINDS, 'none'}))}"
    # Who stands for what was taken out and may come back is decided by what came of the act, not by a fault.
    if act == "uncordon_node":
        return "act uncordon_node answers no failure"
    if isinstance(valid_ns, int) and valid_ns > _LONGEST_NS:
        return f"valid_ns is {valid_ns}; actuators refuse what is valid for more than {_LONGEST_NS}"
    return None


def changed(row: Row, setting: FailurePolicy) -> Row:
    """A row as a site has changed it."""
    act = row.act if setting.act is None else _act(setting.act)
    return Row(
        act,
        setting.when or row.when,
        setting.valid_ns or row.valid_ns,
        # A taint belongs to the act that it was given with.
        setting.taint if setting.taint is not None else (row.taint if act == row.act else None),
        setting.restarts_job if setting.restarts_job is not None else row.restarts_job,
    )


def _row(fields: Mapping[str, Any]) -> Row:
    given = {name: value for name, value in fields.items() if name != "enabled"}
    return Row(**{**given, "act": _act(given.get("act", "none"))})


def _act(word: str) -> CommandKind | None:
    return cast("CommandKind", word) if word in COMMAND_KINDS else None

"""The grammar of one SXid line of the NVSwitch driver, and of the Fabric Manager's line about the same error.

Reads a payload without its transport prefix and gives fields, or says why the line is malformed. The driver prints
several lines for one error, of which one has the severity word and the link and the others have registers; each is
read for itself, and what a line does not say is null. Joining them is done downstream.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.pci_address import normalise
from agents.decode.record import Record
from schemas import catalog

_UNKNOWN_SEVERITY: Final = "unknown"

_OPENING = re.compile(r"nvidia-nvswitch\d+:? *SXid\b|detected NVSwitch\b.*\berror\b", re.ASCII)
_HEAD = re.compile(
    r"nvidia-nvswitch(?P<index>\d{1,9}):? *SXid *\((?P<where>[^()]*)\)(?P<rest>.*)", re.ASCII | re.DOTALL
)
_CODE = re.compile(r"(?: *:)? *(?P<code>\d{1,18})(?!\w)(?P<tail>.*)", re.ASCII | re.DOTALL)
_MANAGER = re.compile(
    r"detected NVSwitch (?:(?P<severity>fatal|non-?fatal) )?error:? +(?P<code>\d{1,18})(?!\w)(?P<tail>.*)",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_MANAGER_ADDRESS = re.compile(r"\bpci bus id:? +(?P<address>\S+)", re.ASCII | re.IGNORECASE)
_MANAGER_PORT = re.compile(r"\bport +(?P<port>-?\d{1,9})(?!\w)", re.ASCII | re.IGNORECASE)

_SEVERITY = re.compile(r"(?:^|, *)(?P<word>fatal|non-?fatal)\b", re.ASCII | re.IGNORECASE)
_LINK = re.compile(r"\blink +(?P<link>-?\d{1,9})(?!\w)", re.ASCII | re.IGNORECASE)


def is_sxid(payload: str) -> bool:
    """Whether the payload begins as one of the two forms does, well formed or not."""
    return _OPENING.match(payload) is not None


def parse(payload: str) -> Record | str:
    """The fields of an SXid line without its times, or the reason why it is malformed."""
    if payload.startswith("detected"):
        return _parse_manager(payload)
    head = _HEAD.match(payload)
    if head is None:
        return "no address in parentheses"
    found = _CODE.match(head["rest"])
    if found is None:
        return "no decimal code after the address"
    text = found["tail"].lstrip(", \t").rstrip()
    severity = _SEVERITY.search(text)
    record = _record(int(found["code"]), normalise(head["where"]), text)
    record["reported_severity"] = None if severity is None else _severity(severity["word"])
    record["link"] = _number(_LINK.search(text), "link")
    record["switch_index"] = int(head["index"])
    return record


def _parse_manager(payload: str) -> Record | str:
    found = _MANAGER.match(payload)
    if found is None:
        return "no decimal code after the word error"
    text = found["tail"].lstrip(", \t").rstrip()
    address = _MANAGER_ADDRESS.search(text)
    record = _record(int(found["code"]), None if address is None else normalise(address["address"]), text)
    record["reported_severity"] = None if found["severity"] is None else _severity(found["severity"])
    # The manager's port is the driver's link.
    record["link"] = _number(_MANAGER_PORT.search(text), "port")
    return record


def _record(code: int, pci_bus_id: str | None, text: str) -> Record:
    entry = catalog.sxid(code)
    return {
        "kind": "sxid",
        "code": code,
        "severity": _UNKNOWN_SEVERITY if entry is None else entry.severity,
        "pci_bus_id": pci_bus_id,
        "reported_severity": None,
        "link": None,
        "text": text,
    }


def _severity(word: str) -> str:
    return "fatal" if word.lower() == "fatal" else "non_fatal"


def _number(found: re.Match[str] | None, name: str) -> int | None:
    """The number that was found; None where there is none or -1 stands for none."""
    if found is None:
        return None
    number = int(found[name])
    return number if number >= 0 else None

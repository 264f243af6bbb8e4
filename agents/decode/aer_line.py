"""The grammar of one line of the kernel's PCIe services: advanced error reporting, containment, and slots.

Reads a payload without its transport prefix and gives fields, or None where the line is none of them. Knows the wordings
of old kernels (`Corrected`, `id=00e8(Receiver ID)`, `Bad TLP`) and new ones (`Correctable`, `(Receiver ID)`, `BadTLP`).
Keeps no state: an error prints three to six lines, and each is read for itself. Reports that firmware hands over in the
CPER form (`[Hardware Error]:` blocks) are not read, only the lines that the kernel adds to them.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.pci_address import normalise
from agents.decode.record import Record

_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"
_HEAD = re.compile(rf"(?P<driver>[\w.-]{{1,64}}) (?P<address>{_ADDRESS}):(?P<rest> .*)", re.ASCII | re.DOTALL)
_BUS_ERROR = re.compile(
    r" (?:AER: )?PCIe Bus Error: severity=(?P<severity>[^,]{1,40})(?:, *type=(?P<layer>[^,]{1,40}))?"
    r"(?:, *(?:id=[0-9a-fA-F]{1,8})?\((?P<agent>[^()]{1,40})\))?",
    re.ASCII,
)
_MESSAGE = re.compile(
    r" AER: (?:Multiple )?(?P<severity>(?:Uncorrect(?:ed|able)|Correct(?:ed|able))(?: \([\w-]{1,12}\))?) error "
    rf"(?:message )?received(?::| from) *(?:(?P<source>{_ADDRESS})|id=[0-9a-fA-F]{{1,8}})?",
    re.ASCII,
)
_ERROR = re.compile(
    r" (?:AER: )? *\[ ?(?P<bit>\d{1,2})\] (?P<name>[A-Za-z][\w -]{1,30}?) *(?P<first>\(First\))? *\Z", re.ASCII
)
_STATUS = re.compile(r" (?:AER: )?aer_status: 0x[0-9a-fA-F]{1,8}, aer_mask: 0x[0-9a-fA-F]{1,8}", re.ASCII)
_RECOVERY = re.compile(r" AER: [Dd]evice recovery (?P<outcome>successful|failed)", re.ASCII)
_CONTAINMENT = re.compile(r" DPC: containment event", re.ASCII)
_SLOT = re.compile(r" pciehp: Slot\([^()]{1,20}\): (?P<what>Link Down|Card not present)", re.ASCII)

_CORRECTED: Final = frozenset(
    {
        *("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF"),
        *("Receiver Error", "Bad TLP", "Bad DLLP", "RELAY_NUM Rollover", "Replay Timer Timeout"),
        *("Advisory Non-Fatal", "Advisory Non-Fatal Error", "Corrected Internal Error", "Header Log Overflow"),
    }
)
_UNCORRECTED: Final = frozenset(
    {
        *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC"),
        *("UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked"),
        *("DMWrReqBlocked", "IDECheck", "MisIDETLP", "PCRC_CHECK", "TLPXlatBlocked"),
        *("Data Link Protocol", "Surprise Down Error", "Poisoned TLP", "Flow Control Protocol", "Completion Timeout"),
        *("Completer Abort", "Unexpected Completion", "Receiver Overflow", "Malformed TLP", "Unsupported Request"),
        *("ACS Violation", "Uncorrectable Internal Error", "MC Blocked TLP", "AtomicOp Egress Blocked"),
    }
)
_LAYERS = {"physical layer": "physical", "data link layer": "data_link", "transaction layer": "transaction"}


def parse(payload: str) -> Record | None:
    """The fields of such a line without its times.

    Returns:
        A record of kind `aer`: `condition` (`bus_error`, `message`, `error`, `status`, `recovered`, `recovery_failed`,
        `containment`, `slot_link_down`, `slot_empty`), `corrected` (None where the line does not tell),
        `reported_severity` (`fatal`, `non_fatal`, None), `severity` in the catalogue's words, `pci_bus_id` of the
        device that has the error, `driver`, `error_name`, `layer`, `agent`, `text`. None for any other line.
    """
    head = _HEAD.match(payload)
    if head is None:
        return None
    rest, text = head["rest"], head["rest"].strip()
    address = normalise(head["address"])
    if found := _BUS_ERROR.match(rest):
        record = _record("bus_error", address, head["driver"], text, found["severity"])
        layer, agent = found["layer"], found["agent"]
        record["layer"] = None if layer is None else _LAYERS.get(layer.strip().lower())
        record["agent"] = None if agent is None else agent.removesuffix(" ID").strip().lower()
        return record
    if found := _MESSAGE.match(rest):
        # The port that tells is not the device that has the error.
        source = None if found["source"] is None else normalise(found["source"])
        return _record("message", source, head["driver"], text, found["severity"])
    if found := _ERROR.match(rest):
        return _named_error(found, address, head["driver"], text)
    if found := _RECOVERY.match(rest):
        condition = "recovered" if found["outcome"] == "successful" else "recovery_failed"
        return _record(condition, address, head["driver"], text)
    if found := _SLOT.match(rest):
        condition = "slot_link_down" if found["what"] == "Link Down" else "slot_empty"
        return _record(condition, address, head["driver"], text)
    if _CONTAINMENT.match(rest):
        return _record("containment", address, head["driver"], text)
    if _STATUS.match(rest):
        return _record("status", address, head["driver"], text)
    return None


def _named_error(found: re.Match[str], address: str | None, driver: str, text: str) -> Record | None:
    name = found["name"].strip()
    if name not in _CORRECTED and name not in _UNCORRECTED:
        return None  # some other driver's list
    record = _record("error", address, driver, text)
    record["corrected"] = name in _CORRECTED
    record["severity"] = "info" if record["corrected"] else "degraded"
    record["error_name"] = name
    return record


_CONDITION_SEVERITY = {
    "recovered": "info",
    "recovery_failed": "fatal",
    "containment": "degraded",
    "slot_link_down": "degraded",
    "slot_empty": "degraded",
}


def _record(condition: str, address: str | None, driver: str, text: str, word: str | None = None) -> Record:
    corrected = reported = None
    severity = _CONDITION_SEVERITY.get(condition, "unknown")
    if word is not None:
        plain = word.strip().lower()
        if plain.startswith("correct"):
            corrected, severity = True, "info"
        elif plain.startswith("uncorrect"):
            corrected = False
            # Old kernels and a cut line have no word in parentheses: then the milder one is not taken for granted.
            reported = "non_fatal" if "non" in plain else "fatal" if "fatal" in plain else None
            severity = "fatal" if reported == "fatal" else "degraded"
    return {
        "kind": "aer",
        "condition": condition,
        "severity": severity,
        "reported_severity": reported,
        "corrected": corrected,
        "pci_bus_id": address,
        "driver": driver,
        "text": text,
    }

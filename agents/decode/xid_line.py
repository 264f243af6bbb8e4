"""The grammar of one `NVRM: Xid` line of the GPU driver, and of the lines that name or lose a GPU beside it.

Reads a payload without its transport prefix and gives fields, or says why the line is malformed. A code is kept
whatever follows it, because terminals and posters cut lines. Keeps no state: joining the lines of one message and
leaving out what accompanies an Xid is the reader's part. What the fields mean is the catalogue's.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.pci_address import normalise
from agents.decode.record import Record
from schemas import catalog

LOST_GPU: Final = 79
"""The Xid of a GPU that has fallen off the bus."""

_UNKNOWN_SEVERITY: Final = "unknown"

_OPENING = re.compile(r"NVRM: *Xid\b", re.ASCII)
_HEAD = re.compile(r"NVRM: *Xid *\((?P<where>[^()]*)\)(?P<rest>.*)", re.ASCII | re.DOTALL)
# Eighteen digits fit 64 bits; no driver prints more than three.
_CODE = re.compile(r"(?: *:)? *(?P<code>\d{1,18})(?!\w)(?P<tail>.*)", re.ASCII | re.DOTALL)

_PID = re.compile(r"""pid=(?P<pid>'[^']*'|"[^"]*"|<[^>]*>|\[[^\]]*\]|[^,\s]*)(?P<end>[,\s]+|$)""", re.ASCII)
_INTEGER = re.compile(r"\d{1,18}", re.ASCII)
_UNKNOWN_WORDS = frozenset({"", "-", "?", "unknown", "n/a", "none", "null", "not found", "not available"})
# How the driver's texts begin. A process name may hold `, `, so what ends it is the first `, ` before one of these.
_KNOWN_TEXT = re.compile(
    r", (?="
    r"Ch(?:ID|Id)? +(?:0x)?[0-9a-f]|[Cc]hannel\b|CHID\b"
    r"|Graphics |Class Error|Head +[0-9a-f]|CMDre|MMU Fault|(?:intr|engmask|errorString)\b"
    r"|An? (?:uncorrectable|corrected|double|single)|DBE\b|SM SBE|Disabling |Uncorrectable |Corrected |Unrecovered "
    r"|GDDR|HBM|SRAM\b|DRAM |FBPA|LTC |L2 |Row Remap|Bank Remap|Dynamic Page|Page Retire"
    r"|NVLink|GPU (?:has|recovery|is|[Rr]eset|[Mm]emory|at)\b|GPU\d+ |Timeout |GSP |RPC "
    r"|Contained|Uncontained|C2C|CTX SWITCH|Preemptive|PMU|PBDMA|SEC2|FECS|FSP|SPI|ISINK|CHI\b|NVENC|NVDEC"
    r"|Error |Retiring |Unable |Marking |Repairing |Non-?fatal |Fatal |Key rotation|InfoROM|INFOROM|VGPU|vGPU"
    r"|[A-Z][A-Z0-9_/]{2,} +(?:Fatal|Non-?fatal|interrupt)\b"
    r"|[0-9a-f]{2,16}(?:\([0-9a-f]+\))?(?: +[0-9a-f]{4,16})+(?:\W|$)"
    r")",
    re.ASCII,
)
_NAME_LIMIT = 100
"""Characters of the longest process name that the driver prints."""
_TEXT_START = 80
"""Characters behind it that show whether a known text begins there."""

_INSTANCE = re.compile(r"GPU-(?P<what>C?I):(?P<id>\d{1,9})\b", re.ASCII)
_LINK_CODES = frozenset({74, 137, *range(144, 151)})
_LINK = re.compile(r"\blink +(?P<link>-?\d{1,9})(?!\w)", re.ASCII | re.IGNORECASE)
_RECOVERY_CODE: Final = 154
_RECOVERY = re.compile(r"\bto +(?:(?:0x[0-9a-f]+|\d+) *)?\((?P<label>[^()]*)\)", re.ASCII | re.IGNORECASE)
_RECOVERY_ACTIONS = {
    "none": "none",
    "gpu reset": "gpu_reset",
    "node reboot": "node_reboot",
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_and_reset",
    "recover imex domain": "recover_imex_domain",
}
_CLEANUP_CODE: Final = 45
_CAUSE = re.compile(r"\bcaused by previous Xid (?P<code>\d{1,18})", re.ASCII | re.IGNORECASE)

_IDENTITY = re.compile(r"NVRM: GPU at (?P<address>[^\s,]+?):? +(?P<uuid>GPU-[0-9a-fA-F-]{8,})", re.ASCII)
_FALLEN = re.compile(r"NVRM: GPU (?:at )?(?P<address>\S+?):? +(?:GPU )?has fallen off the bus", re.ASCII)
_LOST_OPENING = re.compile(r"NVRM: The NVIDIA GPU (?P<address>[\w:.]+)", re.ASCII)


def is_xid(payload: str) -> bool:
    """Whether the payload begins as an Xid line does, well formed or not."""
    return _OPENING.match(payload) is not None


def parse(payload: str) -> Record | str:
    """The fields of an Xid line without its times, or the reason why it is malformed."""
    head = _HEAD.match(payload)
    if head is None:
        return "no address in parentheses"
    found = _CODE.match(head["rest"])
    if found is None:
        return "no decimal code after the address"
    where = head["where"]
    pid, process, text = _owner(found["tail"].lstrip(", \t"))
    record = blank(int(found["code"]), normalise(where.strip().removeprefix("PCI:").lstrip().partition(" ")[0]))
    record.update(pid=pid, process=process, text=text)
    for instance in _INSTANCE.finditer(where):
        name = "gpu_instance_id" if instance["what"] == "I" else "compute_instance_id"
        record[name] = int(instance["id"])
    _read_text(record)
    return record


def blank(code: int, pci_bus_id: str | None) -> Record:
    """An Xid record with nothing but a code, its severity and an address."""
    entry = catalog.xid(code)
    return {
        "kind": "xid",
        "code": code,
        "severity": _UNKNOWN_SEVERITY if entry is None else entry.severity,
        "pci_bus_id": pci_bus_id,
        "pid": None,
        "process": None,
        "text": "",
    }


def identity(payload: str) -> tuple[str, str] | None:
    """(address, UUID) of the line by which the driver names a GPU before its first Xid."""
    found = _IDENTITY.match(payload)
    if found is None:
        return None
    address = normalise(found["address"])
    return None if address is None else (address, found["uuid"])


def fallen(payload: str) -> tuple[str | None, str] | None:
    """(address, text) of `NVRM: GPU <address>: GPU has fallen off the bus.`, in any driver's wording."""
    found = _FALLEN.match(payload)
    if found is None:
        return None
    return normalise(found["address"]), payload[found.start("address") :].partition(" ")[2].strip()


def is_lost_opening(payload: str) -> bool:
    """Whether the payload is the first line of a message about a GPU that the driver names by its address."""
    return _LOST_OPENING.match(payload) is not None


def lost_address(payload: str) -> str | None:
    """The address in such a line, None if it cannot be read."""
    found = _LOST_OPENING.match(payload)
    return None if found is None else normalise(found["address"].rstrip(":."))


def _owner(body: str) -> tuple[int | None, str | None, str]:
    """(pid, process, text) of what follows the code."""
    pid: int | None = None
    if found := _PID.match(body):
        word = found["pid"].strip("'\"")
        pid = int(word) if _INTEGER.fullmatch(word) else None
        body = body[found.end() :]
    if not body.startswith("name="):
        return pid, None, body.strip()
    name, text = _split_name(body.removeprefix("name="))
    return pid, None if _is_unknown(name) else name, text.strip()


def _split_name(body: str) -> tuple[str, str]:
    """Cuts a name off a text that follows it. The name is not escaped, so the text decides where it ends."""
    first, _, rest = body.partition(",")
    if _is_unknown(first):
        return "", rest
    known = _KNOWN_TEXT.search(body, 0, _NAME_LIMIT + _TEXT_START)
    at = known.start() if known and known.start() <= _NAME_LIMIT else body.find(", ")
    if at < 0:
        return body.strip().removesuffix(","), ""
    return body[:at].strip(), body[at + 2 :]


def _is_unknown(name: str) -> bool:
    return name.strip("'\"<>[] ").lower() in _UNKNOWN_WORDS


def _read_text(record: Record) -> None:
    """Adds what the text of some codes states besides."""
    code, text = record["code"], record["text"]
    if code in _LINK_CODES and (found := _LINK.search(text)):
        link = int(found["link"])
        record["link"] = link if link >= 0 else None
    elif code == _RECOVERY_CODE and (found := _RECOVERY.search(text)):
        label = " ".join(found["label"].lower().removesuffix("required").split())
        record["recovery_action"] = _RECOVERY_ACTIONS.get(label)
    elif code == _CLEANUP_CODE and (found := _CAUSE.search(text)):
        record["caused_by_xid"] = int(found["code"])

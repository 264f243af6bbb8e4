"""The grammar of one line of a network driver that tells of a link, of the firmware's health, or of a stuck queue.

Reads a payload without its transport prefix and gives fields, or None where the line is none of them. Knows mlx5_core,
bnxt_en, ice and the wordings that most drivers share (`NIC Link is Down`, the transmit watchdog, bonding). A line that a
driver prints for information alone (versions, speeds, power budgets that suffice) is none. Keeps no state; that a link
went down because an operator took it down cannot be told from the line.
"""

from __future__ import annotations

import re
from typing import Final

from agents.decode.pci_address import normalise
from agents.decode.record import Record

_NAME = r"[\w.:@-]{1,32}"
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"

# `driver address[ interface][ (state)]: text`; mlx5 puts function, line and pid before its text.
_DEVICE = re.compile(
    rf"(?P<driver>[a-z][\w-]{{1,31}}) (?P<address>{_ADDRESS})(?: (?P<interface>(?!\()[\w.@-]{{1,32}}))?"
    r"(?: \([\w ]{1,40}\)){0,2}: (?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
# `driver: interface[:] text` and `driver: text`, of drivers that do not name their device.
_PLAIN = re.compile(
    rf"(?P<driver>mlx[45]_core|mlx4_en|bnxt_en|e1000e?|igb|igc|ixgbe|i40e|ice|tg3|qede|bonding): "
    rf"(?:(?:INFO|WARN|ERROR|ERR): )?(?:(?P<interface>{_NAME}?)(?::|(?= (?:NIC )?[Ll]ink)) )?(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_WATCHDOG = re.compile(
    rf"(?:(?P<first>[a-z][\w-]{{1,31}}) (?P<address>{_ADDRESS}) (?P<named>{_NAME}): )?NETDEV WATCHDOG: "
    rf"(?:CPU: \d{{1,5}}: )?(?:(?P<interface>{_NAME}) \((?P<driver>[\w-]{{1,32}})\): )?transmit queue \d{{1,6}} timed out",
    re.ASCII,
)
_BOND = re.compile(
    rf"(?:bonding: )?(?P<bond>{_NAME}): (?:\(slave (?P<slave>{_NAME})\): )?link status (?:definitely|now) "
    rf"(?P<state>down|up)(?: for (?:active )?interface (?P<other>{_NAME}))?",
    re.ASCII,
)
_PLACE_IN_SOURCE = re.compile(r"(?:[a-z_]\w{1,60}:\d{1,6}:(?:\(pid \d{1,10}\): )? *)", re.ASCII)

_LINK = re.compile(
    rf"(?:{_NAME}: ){{0,2}}(?:{_NAME} )?(?:NIC |Copper |ENA )?[Ll]ink (?:is |status is )?(?P<state>[Dd]own|DOWN|[Uu]p|UP)\b",
    re.ASCII,
)
_NOT_NETWORK = frozenset(
    {"pcieport", "pci", "ahci", "nvidia", "nvme", "vfio-pci", "xhci_hcd", "snd_hda_intel", "amdgpu"}
)

_Rule = tuple[re.Pattern[str], str, str]


def _rules(*rows: tuple[str, str, str]) -> tuple[_Rule, ...]:
    return tuple(
        (re.compile(pattern, re.ASCII | re.IGNORECASE), condition, severity) for pattern, condition, severity in rows
    )


_SHARED: Final = _rules(
    (r"(?:tx_timeout|tx timeout|transmit timeout)\b", "transmit_timeout", "degraded"),
    (r"transmit queue \d{1,6} timed out", "transmit_timeout", "degraded"),
)
_BY_DRIVER: Final[dict[str, tuple[_Rule, ...]]] = {
    "mlx5_core": _rules(
        (r"fatal error \d{1,9} detected", "firmware_fatal", "fatal"),
        (r"device's health compromised", "health_lost", "fatal"),
        (r"health issue observed, .*\bseverity\([0-2]\)", "health_issue", "fatal"),
        (r"health issue observed\b", "health_issue", "degraded"),
        (r"synd 0x[0-9a-f]{1,4}: unrecoverable hardware error", "hardware_error", "fatal"),
        (r"synd 0x[0-9a-f]{1,4}: high temperature", "high_temperature", "degraded"),
        (r"handling bad device here", "device_error", "fatal"),
        (r"health recovery (?:flow aborted|aborted|failed)", "recovery_failed", "fatal"),
        (r"health (?:recovery|revovery) succe", "recovered", "info"),
        (r"high temperature on sensors", "high_temperature", "degraded"),
        (r"detected insufficient power", "insufficient_power", "degraded"),
        (r"port module event\[error\]: module \d{1,4}, ", "module_error", "degraded"),
        (r"port module event: module \d{1,4}, cable unplugged", "cable_unplugged", "degraded"),
        (r"port module event: module \d{1,4}, cable plugged", "cable_plugged", "info"),
        (r".{1,80} timeout\. will cause a leak of a command resource", "command_timeout", "fatal"),
        (r"mlx5_pci_err_detected\b", "pci_error", "degraded"),
        (r"error cqe on cqn ", "queue_error", "degraded"),
    ),
    "bnxt_en": _rules(
        (r"(?:detected )?firmware fatal\b|fw(?:_|ware )?fatal\b", "firmware_fatal", "fatal"),
        (r"firmware (?:not responding|non-responsive|heartbeat stopped)", "health_lost", "fatal"),
        (r"firmware reset\b.*\b(?:failed|timeout|aborted)", "recovery_failed", "fatal"),
        (r"error \(timeout: \d{1,9}\) msg ", "command_timeout", "degraded"),
        (r"hwrm req_type 0x[0-9a-f]{1,8} seq id 0x[0-9a-f]{1,8} error ", "command_error", "degraded"),
    ),
    "ice": _rules(
        (r"malicious driver detection\b", "driver_error", "degraded"),
        (r"(?:unrecoverable|uncorrectable) (?:ecc )?error", "hardware_error", "fatal"),
        (r"(?:emp|global|core|pf) ?reset(?: \w{1,20})? failed|rebuild failed", "recovery_failed", "fatal"),
        (
            r"(?:the driver (?:for the device )?)?(?:has )?detected (?:a )?(?:non-?supported|unsupported) module",
            "module_error",
            "degraded",
        ),
    ),
}
_BY_DRIVER["mlx4_core"] = _rules((r"internal error detected", "firmware_fatal", "fatal"))


def parse(payload: str) -> Record | None:
    """The fields of such a line without its times.

    Returns:
        A record of kind `nic`: `condition` (`link_down`, `link_up`, `firmware_fatal`, `health_lost`, `health_issue`,
        `hardware_error`, `device_error`, `pci_error`, `recovered`, `recovery_failed`, `high_temperature`,
        `insufficient_power`, `module_error`, `cable_unplugged`, `cable_plugged`, `command_timeout`, `command_error`,
        `queue_error`, `driver_error`, `transmit_timeout`), `severity` in the catalogue's words, `pci_bus_id`, `driver`,
        `interface`, `text`. None for any other line.
    """
    if found := _WATCHDOG.match(payload):
        address = None if found["address"] is None else normalise(found["address"])
        return _record(
            "transmit_timeout",
            "degraded",
            address,
            found["driver"] or found["first"],
            found["interface"] or found["named"],
            payload,
        )
    if found := _BOND.match(payload):
        condition, severity = _link(found["state"])
        return _record(condition, severity, None, "bonding", found["slave"] or found["other"] or found["bond"], payload)
    found = _DEVICE.match(payload)
    address = None if found is None else normalise(found["address"])
    if found is None:
        found = _PLAIN.match(payload)
        if found is None:
            return None
    driver, interface, text = found["driver"], found["interface"], found["rest"]
    if driver in _NOT_NETWORK:
        return None
    body = _PLACE_IN_SOURCE.sub("", text, count=1) if _PLACE_IN_SOURCE.match(text) else text
    for rules in (_BY_DRIVER.get(driver, ()), _SHARED):
        for pattern, condition, severity in rules:
            if pattern.match(body):
                return _record(condition, severity, address, driver, interface, text)
    if state := _LINK.match(body):
        condition, severity = _link(state["state"])
        return _record(condition, severity, address, driver, interface, text)
    return None


def _link(state: str) -> tuple[str, str]:
    return ("link_down", "degraded") if state.lower() == "down" else ("link_up", "info")


def _record(
    condition: str, severity: str, address: str | None, driver: str | None, interface: str | None, text: str
) -> Record:
    return {
        "kind": "nic",
        "condition": condition,
        "severity": severity,
        "pci_bus_id": address,
        "driver": driver,
        "interface": interface,
        "text": text.strip(),
    }

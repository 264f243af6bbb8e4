"""Health events of NVIDIA's NVSentinel, a JSON value a line, to kernel events and findings.

A code of the kernel (checks of Xid and SXid, a GPU off the bus) becomes a kernel event, so that every rule and guard treats it
as the word of the node's agent. Everything that is unhealthy, a code too, is also a finding of kind `health_event`, which
`isHealthy` clears; no rule and no decision counts it as evidence. What NVSentinel recommends is text for people here. Guarantees: an
event gives the same records again; one that is not understood is refused with a reason, alone. It judges nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from agents.decode import xid_line
from agents.decode.pci_address import normalise
from agents.importers.nvsentinel_event import HealthEvent, HealthEventError, events_in
from schemas import catalog
from schemas.base import deterministic_id
from schemas.events import KernelEvent
from schemas.findings import Finding, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.base import Record

__all__ = ["HealthEvents", "Refused"]

_SESSION: Final = "nvsentinel"
_RULE: Final = "nvsentinel"
_KIND: Final = "health_event"

_AHEAD_NS: Final = 60_000_000_000
"""An event that is further ahead of this clock says a wrong time, and would hold everybody else's back."""

_ORDINALS: Final = 16
"""Events of a node that can share a microsecond before a number is borrowed from the next; as for lines without a number."""

_MOST_OPEN: Final = 65_536

_CODE = re.compile(r"(\d{1,6})(?:\.\w+)?", re.ASCII)
"""A code, with the name of its part behind a dot: `79`, `145.RLW_SRC_TRACK`."""

_CHECK = re.compile(r"(?:SysLogs|Gpu)?(?P<source>S?XID)(?:Error|Watch)?", re.IGNORECASE | re.ASCII)
"""Checks of one line of the kernel. Others have the word in their names too, and say what somebody made of several lines."""

_FALLEN: Final = "GPU_FALLEN_OFF_BUS"
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}")
_KERNEL_SAYS = re.compile(r"NVRM: |nvidia-nvswitch\d+: ", re.ASCII)
"""How the driver's lines begin. A line that a program wrote into the journal mostly has something in front."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What was not taken.

    Attributes:
        reason: why, in one line.
        value: the event, or the line as text where it is none.
    """

    reason: str
    value: Any


@dataclass(frozen=True, slots=True)
class _Device:
    """Whose event it is, as far as the entities say."""

    gpu_uuid: str | None
    pci_bus_id: str | None
    switch: int | None
    link: int | None


@dataclass(slots=True)
class _Open:
    """A finding that stands: its check, entities and code on a node."""

    node_id: str
    check: str
    entities: frozenset[str]
    code: str
    finding: Finding


class HealthEvents:
    """Makes records of health events, in their order.

    Args:
        site_id: the site that findings are of.
        now_ns: wall time; events that are further ahead of it than a minute are refused.
    """

    def __init__(self, site_id: str, now_ns: int) -> None:
        self.counts: Counter[str] = Counter()
        """Events and records by what they are."""
        self.now_ns = now_ns
        self._site_id = site_id
        self._open: dict[tuple[str, str, frozenset[str], str], _Open] = {}
        self._numbers: dict[str, int] = {}

    def feed(self, line: str) -> Iterator[Record | Refused]:
        """The records of one line: an event, a CloudEvent around one, a batch, or a document of NVSentinel's store."""
        if not line.strip():
            return
        try:
            found = events_in(json.loads(line))
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, HealthEventError) else "no JSON"
            self.counts["refused"] += 1
            yield Refused(reason, line)
            return
        for value in found:
            try:
                records = self._records(HealthEvent.read(value))
            except HealthEventError as error:
                self.counts["refused"] += 1
                yield Refused(str(error), value)
                continue
            self.counts["events"] += 1
            yield from records

    def _records(self, event: HealthEvent) -> list[Record]:
        if event.time_ns > self.now_ns + _AHEAD_NS:
            raise HealthEventError(f"its time is {(event.time_ns - self.now_ns) / 1e9:.0f} s ahead of this clock")
        device = _device_of(event)
        if event.is_healthy:
            return list(self._cleared(event))
        # A code that cannot be read refuses the event before anything of it is kept.
        kernel = [self._kernel_event(event, device, *coded) for coded in _codes(event)]
        return [*kernel, *self._opened(event, device)]

    def _kernel_event(self, event: HealthEvent, device: _Device, source: str, code: int, is_inferred: bool) -> Record:
        line = event.metadata.get("JOURNAL_MESSAGE", "")
        told = _told_by_line(line, source, code)
        entry = catalog.xid(code) if source == "xid" else catalog.sxid(code)
        try:
            record = KernelEvent(
                node_id=event.node_name,
                agent_session=_SESSION,
                boot_id=_SESSION,
                kmsg_seq=self._number(event),
                event_time_ns=event.time_ns,
                source="xid" if source == "xid" else "sxid",
                code=code,
                severity=entry.severity if entry is not None else "unknown",
                pci_bus_id=device.pci_bus_id,
                gpu_uuid=device.gpu_uuid if source == "xid" else None,
                switch_index=device.switch,
                reported_severity=("fatal" if event.is_fatal else "non_fatal") if source == "sxid" else None,
                link=device.link if device.link is not None else told.get("link"),
                pid=told.get("pid"),
                process=told.get("process"),
                recovery_action=told.get("recovery_action"),
                caused_by_xid=told.get("caused_by_xid"),
                text=str(told.get("text") or event.message)[:2000],
                raw=(line or event.message)[:2000],
                trusted=_is_trusted(event, line),
                inferred=is_inferred,
            )
        except ValidationError as error:
            raise HealthEventError(f"no kernel event: {error.errors()[0]['msg']}") from None
        self.counts["kernel_events"] += 1
        return record

    def _number(self, event: HealthEvent) -> int:
        number = max(event.time_ns // 1000 * _ORDINALS, 0)
        last = self._numbers.get(event.node_name, -1)
        if last // _ORDINALS == number // _ORDINALS:
            number = last + 1
        self._numbers[event.node_name] = number
        return number

    def _opened(self, event: HealthEvent, device: _Device) -> Iterator[Finding]:
        entities = _entities(event)
        for code in event.error_code or ("",):
            key = (event.node_name, event.check_name, entities, code)
            if key in self._open:
                self.counts["repeated"] += 1
                continue
            subject = _subject(event, device)
            finding = Finding(
                finding_id=deterministic_id(
                    "find", _RULE, self._site_id, event.check_name, code, subject.key(), event.time_ns
                ),
                site_id=self._site_id,
                rule=_RULE,
                kind=_KIND,
                severity="warning" if event.is_fatal and not event.is_for_the_record else "info",
                state="open",
                subject=subject,
                event_time_ns=event.time_ns,
                onset_ns=event.time_ns,
                values={
                    "agent": event.agent,
                    "component": event.component_class,
                    "check": event.check_name,
                    "error_code": code,
                    "is_fatal": event.is_fatal,
                    "recommended_action": event.recommended_action,
                    "entities": sorted(entities),
                    "message": event.message[:300],
                },
                explanation=f"NVSentinel's {event.agent or 'monitor'}: {event.check_name} {code}".rstrip(),
            )
            if len(self._open) >= _MOST_OPEN:
                # The oldest stands for ever then; it was never evidence of anything.
                self._open.pop(next(iter(self._open)))
            self._open[key] = _Open(*key, finding)
            self.counts["opened"] += 1
            yield finding

    def _cleared(self, event: HealthEvent) -> Iterator[Finding]:
        """What the event clears: a code, all codes of its entities, or with neither named all of the check on the node."""
        entities = _entities(event)
        found = [
            key
            for key, one in self._open.items()
            if one.node_id == event.node_name
            and one.check == event.check_name
            and (entities <= one.entities or (one.entities and one.entities <= entities))
            and (not event.error_code or one.code in event.error_code)
        ]
        for key in found:
            opened = self._open.pop(key).finding
            self.counts["cleared"] += 1
            yield opened.model_copy(
                update={"state": "cleared", "event_time_ns": max(event.time_ns, opened.event_time_ns)}
            )
        if not found:
            # Monitors say so at their start too, of everything that is well.
            self.counts["healthy"] += 1


def _codes(event: HealthEvent) -> list[tuple[str, int, bool]]:
    """(source, code, whether it is inferred) of each code of the kernel that the event is about.

    Raises:
        HealthEventError: its check is of the kernel's codes, and what it gives is none.
    """
    if event.check_name == "SysLogsGPUFallenOff" or _FALLEN in event.error_code:
        # The driver says so without a code as well; it means the one of a GPU off the bus.
        return [("xid", xid_line.LOST_GPU, True)]
    check = _CHECK.fullmatch(event.check_name)
    if check is None:
        return []
    source = check["source"].lower()
    if not event.error_code:
        raise HealthEventError(f"{event.check_name} without an errorCode")
    found = []
    for text in event.error_code:
        code = _CODE.fullmatch(text)
        if code is None:
            raise HealthEventError(f"{event.check_name}: {text[:40]!r} is no code of the kernel")
        found.append((source, int(code[1]), False))
    return found


def _told_by_line(line: str, source: str, code: int) -> dict[str, Any]:
    """What the kernel's own line adds.

    Raises:
        HealthEventError: it has another code than the event.
    """
    if source != "xid" or not xid_line.is_xid(line):
        return {}
    told = xid_line.parse(line)
    if isinstance(told, str):
        return {}
    if told["code"] != code:
        raise HealthEventError(f"errorCode says {code}, and the line from the journal Xid {told['code']}")
    return dict(told)


def _is_trusted(event: HealthEvent, line: str) -> bool:
    """Whether an act may rest on it: not if a site has put it aside, and not on a line that a program may have written."""
    return not event.is_for_the_record and (not line or _KERNEL_SAYS.match(line) is not None)


def _entities(event: HealthEvent) -> frozenset[str]:
    return frozenset(f"{entity.entity_type.upper()}={entity.entity_value}" for entity in event.entities_impacted)


def _device_of(event: HealthEvent) -> _Device:
    """Devices by UUID and address; an index means another device on each node and after each reboot, and is left out."""
    gpu_uuid = pci_bus_id = None
    switch = link = None
    for entity in event.entities_impacted:
        kind, value = entity.entity_type.upper(), entity.entity_value.strip()
        if kind in {"GPU_UUID", "GPU"} and _UUID.fullmatch(value):
            gpu_uuid = gpu_uuid or value
        elif kind == "PCI":
            pci_bus_id = pci_bus_id or normalise(value)
        elif kind in {"NVSWITCH", "NVLINK"} and re.fullmatch(r"\d{1,6}", value, re.ASCII):
            switch = int(value) if kind == "NVSWITCH" else switch
            link = int(value) if kind == "NVLINK" else link
    return _Device(gpu_uuid, pci_bus_id, switch, link)


def _subject(event: HealthEvent, device: _Device) -> Subject:
    if device.switch is not None:
        return Subject(level="switch", node_id=event.node_name, pci_bus_id=device.pci_bus_id, link=device.link)
    if device.gpu_uuid is None and device.pci_bus_id is None:
        return Subject(level="node", node_id=event.node_name)
    return Subject(level="gpu", node_id=event.node_name, gpu_uuid=device.gpu_uuid, pci_bus_id=device.pci_bus_id)

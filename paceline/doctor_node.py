"""What `paceline doctor` looks at on a node: sources, clock, rights, and the places that the agent writes to.

Every note says what was found and, where something is missing, what would help. Nothing is changed: a directory that is
not there is not made, and no source is read beyond being asked whether it is here.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from agents.identity import AgentIdentity
from agents.source_registry import SourceNameError, chosen, known_sources
from paceline.doctor_check import Check

if TYPE_CHECKING:
    from agents.collectors.base import Collector
    from agents.settings import AgentSettings

__all__ = ["capability_checks", "clock_check", "place_checks", "source_checks"]

_SOURCE_TIMEOUT_S = 10.0
_SOCKET_PATH_BYTES = 107
"""What fits into a Unix socket's address, beside its ending zero."""

_CAPABILITIES = (
    ("CAP_SYSLOG", 34, "/dev/kmsg where kernel.dmesg_restrict is 1"),
    ("CAP_DAC_READ_SEARCH", 2, "files that only root may read, as a kernel log of mode 0640"),
)

_STA_UNSYNC = 0x40
_UNSYNCHRONISED = (
    "nothing keeps this clock in step: run chrony, ntpd or systemd-timesyncd; a node more than 2 s off is a finding"
)
_TIMEX = struct.Struct("@I4xqqqqi")
"""The head of struct timex where a long has 64 bits: modes, offset, freq, maxerror, esterror, status."""


def source_checks(settings: AgentSettings) -> list[Check]:
    """A check per source that there is: whether it can be read here, and whether these settings would."""
    try:
        asked = {source.name for source in chosen(settings.sources, settings.disable)}
    except SourceNameError as error:
        return [Check("sources", False, True, str(error))]
    identity = AgentIdentity("doctor", "doctor", "doctor")
    checks = []
    for source in known_sources():
        reason = _asked(source.collector_class.from_settings(settings, identity))
        note = reason or "can be read here"
        if source.name not in asked:
            disabled = source.name in settings.disable
            note += "; left out by `disable`" if disabled else "; not read unless `sources` names it"
        checks.append(Check(f"source {source.name}", reason is None, False, note))
    return checks


def _asked(collector: Collector) -> str | None:
    answers: list[str | None] = []

    def ask() -> None:
        try:
            answers.append(collector.is_supported())
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            answers.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_SOURCE_TIMEOUT_S)
    return answers[0] if answers else f"no answer within {_SOURCE_TIMEOUT_S:g} s: its driver or service hangs"


def clock_check() -> Check:
    """Whether the kernel counts its clock as synchronised."""
    found = _kernel_clock()
    if found is None:
        return Check("clock", True, False, "the kernel does not tell whether its clock is synchronised")
    status, error_us = found
    if status & _STA_UNSYNC:
        return Check("clock", False, False, _UNSYNCHRONISED)
    return Check("clock", True, False, f"synchronised, estimated error {error_us / 1000:.3g} ms")


def _kernel_clock() -> tuple[int, int] | None:
    """Status bits and estimated error in microseconds from adjtimex(2); None where it cannot be asked."""
    if struct.calcsize("@l") != 8:
        return None
    buffer = ctypes.create_string_buffer(512)
    try:
        outcome = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (AttributeError, OSError):
        return None
    if outcome < 0:
        return None
    _, _, _, _, error_us, status = _TIMEX.unpack_from(buffer)
    return status, error_us


def capability_checks(status: Path = Path("/proc/self/status")) -> list[Check]:
    """The rights that sources may ask for, of this process: the agent's may differ, its unit says which it has."""
    try:
        line = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
        held = int(line.split()[1], 16)
    except (OSError, StopIteration, IndexError, ValueError):
        return []
    checks = []
    for name, bit, purpose in _CAPABILITIES:
        has = bool(held >> bit & 1)
        note = f"held by this process; for {purpose}" if has else f"not held; needed only for {purpose}"
        checks.append(Check(f"capability {name}", has, False, note))
    return checks


def place_checks(settings: AgentSettings, needed: bool) -> list[Check]:
    """The trainers' socket, and the spool's directory.

    Args:
        settings: the agent's.
        needed: whether an agent runs here, or is about to; else nothing fails without them.
    """
    checks = []
    if settings.socket:
        checks.append(_socket_check(Path(settings.socket), needed))
    spool = settings.spool_dir
    if spool == "auto":
        spool = str(Path(settings.state_dir, "spool")) if settings.state_dir else ""
    if spool:
        reason = _not_writable(Path(spool))
        if reason is None and settings.spool_dir != "auto" and not Path(spool).parent.exists():
            reason = f"{Path(spool).parent} does not exist: make it, or mount what belongs there"
        note = reason or f"{spool} can be written"
        checks.append(Check("spool", reason is None, needed, note))
    return checks


def _socket_check(path: Path, needed: bool) -> Check:
    name = "trainers' socket"
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        return Check(name, False, needed, f"{path} is longer than the {_SOCKET_PATH_BYTES} bytes of a socket's address")
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except OSError:
                pass  # left behind by an agent that is gone: the next one replaces it
            else:
                return Check(name, True, True, f"an agent serves {path}")
    elif path.exists():
        return Check(name, False, needed, f"{path} is taken by something that is no socket: remove it, or set `socket`")
    reason = _not_writable(path.parent)
    return Check(name, reason is None, needed, reason or f"{path} can be made")


def _not_writable(directory: Path) -> str | None:
    """Why a directory, or where it is missing the nearest one above it, cannot be written; None if it can."""
    nearest = directory
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        return f"{nearest} is no directory"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return (
            f"{nearest} cannot be written: run as its owner, or have systemd make it (RuntimeDirectory, StateDirectory)"
        )
    return None

"""Counters of a SONiC switch, read on the switch itself or on a host that its output is brought to.

Guarantees: receive and transmit are the switch's, so a port that *transmits* pause is known as such; commands run as
lists without a shell and are killed when they take too long; files that have not changed since the last reading are not
published again, which would pass for counters that stand still. A counter that the switch does not tell stays unknown.
It sets nothing on the switch, and knows of no queue but the watchdog's, whose storms it adds up by port.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agents.collectors.base import CollectorError, Readings, Row
from agents.collectors.program import ProgramError, run_program
from agents.decode import fabric
from agents.decode.record import Damaged, Tally, UnknownFormat
from agents.frame_assembly import FabricAssembly
from schemas.frames import FabricFrame

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["DEFAULT_COMMANDS", "SonicCollector"]

DEFAULT_COMMANDS = ("show pfc counters", "show pfcwd stats")

_MOST_FILES = 256
_MOST_BYTES = 64 << 20

# Of the hundred counters that SAI has for each of a hundred ports: traffic, errors, drops, pause, marking, line quality.
_WANTED = re.compile(
    r"(?:SAI|EST)_PORT_STAT_(?:IF_(?:IN|OUT)_(?:OCTETS|DISCARDS|ERRORS)|(?:IN|OUT)_DROPPED_PKTS|PAUSE_[RT]X_PKTS|\w*ECN\w*"
    r"|\w*WRED\w*|IF_IN_FEC_\w*FRAMES|ETHER_(?:RX|TX)_OVERSIZE_PKTS|ETHER_STATS_(?:CRC_ALIGN_ERRORS|FRAGMENTS))",
    re.ASCII,
)
_BYTES = {"SAI_PORT_STAT_IF_IN_OCTETS": "rx_data_bytes", "SAI_PORT_STAT_IF_OUT_OCTETS": "tx_data_bytes"}
_WATCHDOG = {
    "storms_detected": "pfcwd_storms_detected",
    "storms_restored": "pfcwd_storms_restored",
    "rx_dropped_packets": "pfcwd_rx_dropped_packets",
    "tx_dropped_packets": "pfcwd_tx_dropped_packets",
}

_Signature = tuple[tuple[str, int, int, int], ...]


class SonicCollector:
    """Reads one switch.

    Args:
        switch_id: the switch's name, under which its frames are published.
        agent_session: names this run of the agent.
        commands: what prints counters; each is a program with its arguments.
        paths: files, or directories whose files are read.
        timeout_s: when a command is killed.
        run: runs a command.
    """

    name = "sonic"
    precedence = 80

    def __init__(
        self,
        switch_id: str,
        agent_session: str,
        commands: Sequence[Sequence[str]] = (),
        paths: Sequence[str | Path] = (),
        timeout_s: float = 5.0,
        run: Callable[[Sequence[str], float], bytes] = run_program,
    ) -> None:
        self.failed: dict[str, str] = {}
        """Commands and paths that could not be read the last time, and why."""
        self.malformed = 0
        """Rows and values so far that could not be read."""
        self._switch_id = switch_id
        self._agent_session = agent_session
        self._commands = tuple(tuple(command) for command in commands)
        self._paths = tuple(Path(path) for path in paths)
        self._timeout_s = timeout_s
        self._run = run
        self._ports = FabricAssembly()
        self._seq = 0
        self._read_before: _Signature | None = None

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> SonicCollector:
        """The collector of the switch that the settings name, if they name one."""
        commands = settings.switch_commands or (() if settings.switch_paths else DEFAULT_COMMANDS)
        return cls(
            settings.switch_id,
            identity.agent_session,
            [_words(command) for command in commands],
            settings.switch_paths,
            settings.collect_deadline_s,
        )

    def is_supported(self) -> str | None:
        """None if there is a switch to read, else why not."""
        if not self._switch_id:
            return "no switch is named: set switch_id on the switch, or where its counters are brought to"
        for command in self._commands:
            if not command:
                return "switch_commands has an entry that is no command: check its quotes"
            if shutil.which(command[0]) is None:
                return (
                    f"{command[0]} is not on PATH: run the agent on the switch, or set switch_commands or switch_paths"
                )
        return None

    def collect(self, now_ns: int) -> Readings:
        """Read the counters; no frame if nothing is new.

        Raises:
            CollectorError: nothing could be read.
        """
        self.failed = {}
        files = self._files()
        signature = _signature(files)
        is_news = bool(self._commands) or signature != self._read_before
        texts = [*self._printed(), *(self._content(file) for file in files)] if is_news else []
        rows = self._rows(b"\n".join(text for text in texts if text))
        if not rows and self.failed:
            place, reason = next(iter(self.failed.items()))
            raise CollectorError(f"no counter of {self._switch_id} could be read; {place}: {reason}")
        columns = self._ports.columns([rows]) if rows else None
        if columns is None:
            return Readings()
        self._read_before = signature
        try:
            frame = FabricFrame(
                view="switch",
                switch_id=self._switch_id,
                agent_session=self._agent_session,
                seq=self._seq,
                event_time_ns=now_ns,
                **columns,
            )
        except ValidationError as error:
            reason = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise CollectorError(f"the counters of {self._switch_id} make no frame: {reason}") from None
        self._seq += 1
        return Readings(records=(frame,))

    def _printed(self) -> Iterable[bytes]:
        for command in self._commands:
            try:
                yield self._run(command, self._timeout_s)
            except ProgramError as error:
                self.failed[" ".join(command)] = str(error)

    def _files(self) -> list[Path]:
        found: list[Path] = []
        for path in self._paths:
            try:
                found += sorted(entry for entry in path.iterdir() if entry.is_file()) if path.is_dir() else [path]
            except OSError as error:
                self.failed[str(path)] = error.strerror or str(error)
        for left_out in found[_MOST_FILES:]:
            self.failed[str(left_out)] = f"only {_MOST_FILES} files are read"
        return found[:_MOST_FILES]

    def _content(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except OSError as error:
            self.failed[str(path)] = error.strerror or str(error)
            return b""
        if len(content) > _MOST_BYTES:
            self.failed[str(path)] = f"the file has more than {_MOST_BYTES} bytes"
            return b""
        return content

    def _rows(self, text: bytes) -> list[Row]:
        """Rows of a frame from the output of commands and files, which may explain each other."""
        if not text:
            return []
        try:
            records = [record for record in fabric.decode(io.BytesIO(text), Tally()) if record.get("view") != "host"]
        except (UnknownFormat, Damaged) as error:
            self.failed["output"] = str(error)
            return []
        self.malformed += sum(record["kind"] == "malformed" for record in records)
        rows: list[Row] = [record for record in records if record["kind"] == "pfc"]
        rows += [_port(record) for record in records if record["kind"] == "port"]
        return rows + _watchdogs(record for record in records if record["kind"] == "pfc_watchdog")


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote without its end
        return []


def _signature(files: Iterable[Path]) -> _Signature:
    """What tells whether files have changed."""
    found = []
    for path in files:
        try:
            status = os.stat(path)  # noqa: PTH116 - one call for all of it
        except OSError:
            continue
        found.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _port(record: Row) -> Row:
    counters = record["counters"]
    stated = {field: counters[name] for name, field in _BYTES.items() if name in counters}
    wanted = {name: value for name, value in counters.items() if name not in _BYTES and _WANTED.fullmatch(name)}
    return {**record, **stated, "counters": wanted}


def _watchdogs(records: Iterable[Row]) -> list[Row]:
    """A row for each port with watched queues, its counts added up."""
    ports: dict[str, dict[str, Any]] = {}
    for record in records:
        if record["port"].startswith("oid:"):
            continue  # a queue that no map leads to its port
        counters = ports.setdefault(record["port"], {})
        for field, name in _WATCHDOG.items():
            value = record.get(field)
            if value is not None:
                counters[name] = counters.get(name, 0) + value
    return [
        {"kind": "port", "view": "switch", "device": None, "port": port, "counters": counters}
        for port, counters in ports.items()
        if counters
    ]

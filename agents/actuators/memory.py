"""What an actuator has been told and has done, on its disk: the reason why a crash repeats nothing.

Guarantees: a write is on the disk when the call returns (SQLite, full synchronisation); a command's id, its sequence and its
result are kept in one transaction each; one process at a time has the memory. A memory that was lost is begun anew at a time,
and commands from before it are told apart. A file that is damaged or of another actuator is refused, never repaired. It
decides nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.codec import decode, encode
from schemas.remediation import ActionResult, Command
from schemas.topics import topic_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["ActuatorMemory", "ActuatorMemoryError", "Remembered", "digest_of"]

_FORMAT = 1
_KEEP_NS = 400 * 24 * 3_600_000_000_000
"""Longer than the actions topic keeps a command: until then it may be delivered again."""

_ACTIONS = topic_of(Command).name
_RESULTS = topic_of(ActionResult).name

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS commands (
    command_id TEXT PRIMARY KEY, digest TEXT NOT NULL, place TEXT NOT NULL, payload BLOB NOT NULL, kind TEXT NOT NULL,
    target TEXT NOT NULL, accepted_ns INTEGER NOT NULL, begun_ns INTEGER, before TEXT, outcome TEXT, finished_ns INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unfinished ON commands (accepted_ns) WHERE outcome IS NULL;
CREATE INDEX IF NOT EXISTS begun ON commands (begun_ns) WHERE begun_ns IS NOT NULL;
CREATE TABLE IF NOT EXISTS sequences (target TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owned (name TEXT PRIMARY KEY, command_id TEXT NOT NULL, since_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, result BLOB NOT NULL);
"""


class ActuatorMemoryError(Exception):
    """A memory that cannot be used; the text names its file and says why, in one line."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A command that was taken before.

    Attributes:
        command: as it came.
        digest: of its bytes.
        place: topic, partition and offset at which it came first.
        before: what the target was like when the act began; None when it did not begin.
        outcome: of its result; None while it is under way.
    """

    command: Command
    digest: str
    place: str
    before: dict[str, Any] | None
    outcome: str | None


def digest_of(payload: bytes) -> str:
    """SHA-256 of a message's bytes, in hexadecimal digits."""
    return hashlib.sha256(payload).hexdigest()


class ActuatorMemory:
    """The memory of one actuator.

    Args:
        path: its file; made, with its directory, when it is missing.
        actuator_id: whose memory it is.
        now_ns: this machine's clock.

    Raises:
        ActuatorMemoryError: it is damaged, another's, in use, or cannot be written.
    """

    def __init__(self, path: Path, actuator_id: str, now_ns: int) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ActuatorMemoryError(f"{path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ActuatorMemoryError(f"{path}: another process has it") from None
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            with self._told():
                self._prepare(actuator_id, now_ns)
        except BaseException:
            os.close(self._lock)
            raise

    def _prepare(self, actuator_id: str, now_ns: int) -> None:
        self._path.chmod(0o600)
        if self._database.execute("PRAGMA quick_check").fetchone() != ("ok",):
            raise ActuatorMemoryError(f"{self._path}: is damaged; what was done is not known, so nothing may be")
        self._database.execute("PRAGMA journal_mode=DELETE")
        self._database.execute("PRAGMA synchronous=EXTRA")
        self._database.executescript(_TABLES)
        with self._transaction():
            facts = {"format": str(_FORMAT), "actuator_id": actuator_id, "born_ns": str(now_ns)}
            for name, value in facts.items():
                self._database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            self._database.execute(
                "DELETE FROM commands WHERE outcome IS NOT NULL AND finished_ns < ?", (now_ns - _KEEP_NS,)
            )
        kept = dict(self._database.execute("SELECT name, value FROM facts"))
        if kept["format"] != str(_FORMAT) or kept["actuator_id"] != actuator_id:
            raise ActuatorMemoryError(
                f"{self._path}: is of format {kept['format']} and of actuator {kept['actuator_id']!r}, not {actuator_id!r}"
            )
        self.born_ns = int(kept["born_ns"])
        """When this memory began: what was decided earlier may have been done, and nobody would know."""

    @property
    def lock(self) -> int:
        """Descriptor of the lock. A program that inherits it keeps the memory taken for as long as it runs."""
        return self._lock

    def known(self, command_id: str) -> Remembered | None:
        """A command of an id, if one was taken."""
        with self._told():
            row = self._database.execute(
                "SELECT payload, digest, place, before, outcome FROM commands WHERE command_id = ?", (command_id,)
            ).fetchone()
        return _remembered(row) if row is not None else None

    def unfinished(self) -> list[Remembered]:
        """Commands that were taken and have no result, in the order in which they were taken."""
        with self._told():
            rows = self._database.execute(
                "SELECT payload, digest, place, before, outcome FROM commands WHERE outcome IS NULL "
                "ORDER BY accepted_ns, command_id"
            ).fetchall()
        return [_remembered(row) for row in rows]

    def last_sequence(self, target: str) -> int:
        """Highest sequence that was taken for a target; -1 without any."""
        with self._told():
            row = self._database.execute("SELECT sequence FROM sequences WHERE target = ?", (target,)).fetchone()
        return int(row[0]) if row is not None else -1

    def begun_since(self, since_ns: int, kinds: frozenset[str], without: str = "") -> list[int]:
        """Times at which acts of some kinds were begun after a time, but for the one of a command."""
        with self._told():
            rows = self._database.execute(
                "SELECT begun_ns, kind FROM commands WHERE begun_ns > ? AND command_id != ?", (since_ns, without)
            )
            return [int(begun_ns) for begun_ns, kind in rows if kind in kinds]

    def owner_of(self, name: str) -> str | None:
        """Id of the command by which something was taken out from here; None when it was not, or was given back."""
        with self._told():
            row = self._database.execute("SELECT command_id FROM owned WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row is not None else None

    def accept(self, command: Command, payload: bytes, place: str, now_ns: int) -> None:
        """Take a command: from here on its id is used, and so are all sequences up to its own."""
        with self._told(), self._transaction():
            self._database.execute(
                "INSERT INTO commands (command_id, digest, place, payload, kind, target, accepted_ns) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    command.command_id,
                    digest_of(payload),
                    place,
                    payload,
                    command.kind,
                    command.target.name(),
                    now_ns,
                ),
            )
            self._database.execute(
                "INSERT INTO sequences VALUES (?, ?) ON CONFLICT (target) DO UPDATE SET sequence = MAX(sequence, "
                "excluded.sequence)",
                (command.target.name(), command.sequence),
            )

    def begin(self, command_id: str, before: dict[str, Any], now_ns: int) -> None:
        """Say that an act begins, and what the target is like before it."""
        with self._told(), self._transaction():
            self._database.execute(
                "UPDATE commands SET begun_ns = COALESCE(begun_ns, ?), before = ? WHERE command_id = ?",
                (now_ns, json.dumps(before), command_id),
            )

    def finish(self, result: ActionResult, takes: str | None = None, gives_back: str | None = None) -> None:
        """Keep a command's result, what it took out or gave back, and that the result is to be sent.

        Args:
            result: of a command that was taken.
            takes: name of what is owned from here on.
            gives_back: name of what no longer is.
        """
        with self._told(), self._transaction():
            self._database.execute(
                "UPDATE commands SET outcome = ?, finished_ns = ? WHERE command_id = ?",
                (result.outcome, result.event_time_ns, result.command_id),
            )
            if takes is not None:
                self._database.execute(
                    "INSERT OR REPLACE INTO owned VALUES (?, ?, ?)", (takes, result.command_id, result.event_time_ns)
                )
            if gives_back is not None:
                self._database.execute("DELETE FROM owned WHERE name = ?", (gives_back,))
            self._database.execute("INSERT INTO outbox (result) VALUES (?)", (encode(result),))

    def report(self, result: ActionResult) -> None:
        """Keep a result that is of no command that was taken, to be sent."""
        with self._told(), self._transaction():
            self._database.execute("INSERT INTO outbox (result) VALUES (?)", (encode(result),))

    def outbox(self) -> list[tuple[int, ActionResult]]:
        """Results that are to be sent, with their numbers, in order."""
        with self._told():
            rows = self._database.execute("SELECT number, result FROM outbox ORDER BY number").fetchall()
        results = []
        for number, text in rows:
            result = decode(_RESULTS, text)
            assert isinstance(result, ActionResult)
            results.append((int(number), result))
        return results

    def sent(self, number: int) -> None:
        """A result has arrived where it belongs."""
        with self._told(), self._transaction():
            self._database.execute("DELETE FROM outbox WHERE number = ?", (number,))

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()
        os.close(self._lock)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise ActuatorMemoryError(f"{self._path}: {error}") from None


def _remembered(row: tuple[bytes, str, str, str | None, str | None]) -> Remembered:
    payload, digest, place, before, outcome = row
    command = decode(_ACTIONS, payload)
    assert isinstance(command, Command)
    return Remembered(command, digest, place, json.loads(before) if before is not None else None, outcome)

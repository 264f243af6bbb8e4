"""Dumps of PyTorch's flight recorder: which have been written here, and whether they are whole.

Guarantees: a dump is told of once, when its size and time of change have stood still for two seconds, and again if it is
written anew; it is `complete` if its pickle or JSON ends where the file does. Files are read as bytes: nothing of a
pickle is built, links are not followed, and of one reading at most one file is read. Nothing is published of them yet:
dumps stand in the readings and are counted, and the log names them. The rank is only in the file's name.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.collectors.base import CollectorError, Dump, Readings
from agents.collectors.dump_end import encoding_of, is_whole

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["DumpDirectoryCollector", "rank_of_dump"]

_LOG = logging.getLogger(__name__)

_STILL_NS = 2 * 10**9
_MOST_BYTES = 64 << 20
"""2,000 entries with their stacks take a few MB; of a longer file the end is not looked at."""

_CHUNK_BYTES = 1 << 20
_MOST_FILES = 4096
"""Far above the ranks of a node over all its jobs; pipes beside the dumps are none."""

_RANK = re.compile(r"(?:rank|dump)[_-]?(\d{1,7})(?:\.(?:json|pkl|pickle))?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _State:
    """What a file looked like; a change of any of it is a new dump."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int


@dataclass(slots=True)
class _Seen:
    state: _State
    since_ns: int
    is_told: bool = False


class DumpDirectoryCollector:
    """Watches for dumps.

    Args:
        patterns: of their files.
    """

    name = "flight-recorder-dumps"

    def __init__(self, patterns: Sequence[str]) -> None:
        self.counters: Counter[str] = Counter()
        """`complete`, `truncated` (stood still and does not end) and `unreadable` dumps."""
        self._patterns = tuple(patterns)
        self._seen: dict[str, _Seen] = {}

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> DumpDirectoryCollector:  # noqa: ARG003
        """A collector for one run of the agent."""
        return cls(settings.flight_recorder_dumps)

    @property
    def malformed(self) -> int:
        """Dumps that are truncated, or could not be read."""
        return self.counters["truncated"] + self.counters["unreadable"]

    def is_supported(self) -> str | None:
        """None if there are patterns; dumps that are not there yet are waited for."""
        return None if self._patterns else "flight_recorder_dumps names none: give the recorder's prefix and a *"

    def collect(self, now_ns: int) -> Readings:
        """The dump that has come to stand still, if any; of several the first by path.

        Raises:
            CollectorError: such a file cannot be read.
        """
        found: dict[str, _State] = {}
        for path in sorted({path for pattern in self._patterns for path in glob.iglob(pattern, recursive=True)}):  # noqa: PTH207 - Path.glob takes no absolute pattern
            state = _state(path)
            if state is not None and len(found) < _MOST_FILES:
                found[path] = state
        self._seen = {path: seen for path, seen in self._seen.items() if path in found}
        for path, state in found.items():
            seen = self._seen.get(path)
            if seen is None or seen.state != state:
                self._seen[path] = _Seen(state, now_ns)
        for path, seen in self._seen.items():
            if not seen.is_told and now_ns - seen.since_ns >= _STILL_NS:
                seen.is_told = True
                return Readings(dumps=self._read(path, seen.state))
        return Readings(dumps=())

    def _read(self, path: str, state: _State) -> tuple[Dump, ...]:
        try:
            digest, data = _content(path, state)
        except OSError as error:
            self.counters["unreadable"] += 1
            raise CollectorError(f"{path} cannot be read: {error.strerror or error}") from None
        if digest is None:  # it changed after all: it is looked at again when it stands still
            del self._seen[path]
            return ()
        complete = is_whole(data) if data is not None else None
        dump = Dump(
            path=path,
            rank=rank_of_dump(path),
            size_bytes=state.size_bytes,
            modified_ns=state.modified_ns,
            sha256=digest,
            encoding=encoding_of(data[:64]) if data is not None else "unknown",
            complete=complete,
        )
        self.counters["truncated" if complete is False else "complete" if complete else "unchecked"] += 1
        how = {True: "complete", False: "truncated, or no dump", None: f"above {_MOST_BYTES >> 20} MiB, unchecked"}
        _LOG.info(
            "dump %s: rank %s, %d bytes, %s, sha256 %s",
            path,
            "unknown" if dump.rank is None else dump.rank,
            dump.size_bytes,
            how[complete],
            digest,
        )
        return (dump,)


def rank_of_dump(path: str) -> int | None:
    """The rank that a dump's name ends with, as `nccl_trace_rank_3` or `job_dump_3.json`; None if it has none."""
    found = _RANK.search(os.path.basename(path))  # noqa: PTH119 - a name may end in a blank or a dot
    return int(found[1]) if found else None


def _state(path: str) -> _State | None:
    """What a regular file looks like; None for all else, and for what is gone."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return _State(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _content(path: str, expected: _State) -> tuple[str | None, bytes | None]:
    """Digest and bytes of a file; no digest if it is not what was seen, no bytes if there are too many."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if _as_state(os.fstat(file)) != expected:
            return None, None
        digest = hashlib.sha256()
        kept = bytearray() if expected.size_bytes <= _MOST_BYTES else None
        left = expected.size_bytes
        while left > 0 and (chunk := os.read(file, min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            digest.update(chunk)
            if kept is not None:
                kept += chunk
        if left > 0 or _as_state(os.fstat(file)) != expected:
            return None, None
        return digest.hexdigest(), bytes(kept) if kept is not None else None
    finally:
        os.close(file)


def _as_state(found: os.stat_result) -> _State:
    return _State(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

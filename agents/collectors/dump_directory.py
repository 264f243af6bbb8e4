"""Dumps of PyTorch's flight recorder: which have been written here, whether they are whole, and their digests.

Guarantees: a dump is told of once, when its size and time of change have not moved from one reading to the next and it is whole,
or when they have stood still for two seconds, and again if it is written anew; it is `complete` if its pickle or JSON
ends where the file does. Links are not followed, nothing of a pickle is built that is no plain data, and of one reading at most
64 MiB are read. A whole dump of a rank that runs here, or lately ran, gives a digest, published with its time of change; the
dump stays where it is. The rank is only in the file's name; whose it is, its owner says (`rank_places`).
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.collectors.base import CollectorError, Dump, Readings
from agents.collectors.dump_end import encoding_of, is_whole
from agents.decode.flight_recorder import dumps_in
from agents.decode.flight_recorder_dump import Dump as DecodedDump
from agents.decode.flight_recorder_dump import rank_in_name
from agents.digest import collective_digest
from agents.rank_places import RankPlace, place_of_file

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings
    from schemas.steps import CollectiveDigest

__all__ = ["DumpDirectoryCollector", "rank_of_dump"]

_LOG = logging.getLogger(__name__)

_STILL_NS = 2 * 10**9
_MOST_BYTES = 64 << 20
"""2,000 entries with their stacks take a few MB; of a longer file the end is not looked at."""

_CHUNK_BYTES = 1 << 20
_MOST_FILES = 4096
"""Far above the ranks of a node over all its jobs; pipes beside the dumps are none."""


@dataclass(frozen=True, slots=True)
class _State:
    """What a file looked like; a change of any of it is a new dump."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    uid: int


@dataclass(slots=True)
class _Seen:
    state: _State
    since_ns: int
    is_told: bool = False
    is_looked_at: bool = False
    """It was no whole document at the second reading: then it must stand still for longer."""


class DumpDirectoryCollector:
    """Watches for dumps.

    Args:
        patterns: of their files.
        node_id: under which digests are published.
        agent_session: likewise.
    """

    name = "flight-recorder-dumps"

    def __init__(self, patterns: Sequence[str], node_id: str = "local", agent_session: str = "none") -> None:
        self.counters: Counter[str] = Counter()
        """`complete`, `truncated` (stood still and does not end) and `unreadable` dumps; `digests` of them, and those
        `without_job` (of no rank that is known here) or `refused` by the decoder."""
        self._node_id = node_id
        self._agent_session = agent_session
        self._number = 0
        self._places: Callable[[], Iterable[RankPlace]] = tuple
        self._patterns = tuple(patterns)
        self._seen: dict[str, _Seen] = {}

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> DumpDirectoryCollector:
        """A collector for one run of the agent."""
        return cls(settings.flight_recorder_dumps, identity.node_id, identity.agent_session)

    def know_ranks(self, places: Callable[[], Iterable[RankPlace]]) -> None:
        """Whom dumps can be of."""
        self._places = places

    @property
    def malformed(self) -> int:
        """Dumps that are truncated, or could not be read."""
        return self.counters["truncated"] + self.counters["unreadable"]

    def is_supported(self) -> str | None:
        """None if there are patterns; dumps that are not there yet are waited for."""
        return None if self._patterns else "flight_recorder_dumps names none: give the recorder's prefix and a *"

    def collect(self, now_ns: int) -> Readings:
        """The dumps that have come to stand still, by path, as many as may be read at once, and their digests.

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
        dumps: list[Dump] = []
        digests: list[CollectiveDigest] = []
        left = _MOST_BYTES
        for path, seen in list(self._seen.items()):
            still_ns = now_ns - seen.since_ns
            is_due = still_ns >= _STILL_NS or (still_ns > 0 and not seen.is_looked_at)
            if seen.is_told or not is_due:
                continue
            if dumps and seen.state.size_bytes > left:
                break
            left -= seen.state.size_bytes
            try:
                told = self._read(path, seen, now_ns)
            except CollectorError:
                if dumps:  # those of this reading are handed on first; this one is read again with the next
                    seen.is_told = False
                    break
                self.counters["unreadable"] += 1
                raise
            if told is not None:
                dumps.append(told[0])
                digests += told[1]
        return Readings(dumps=tuple(dumps), records=tuple(digests))

    def _read(self, path: str, seen: _Seen, now_ns: int) -> tuple[Dump, list[CollectiveDigest]] | None:
        """A dump and its digest if it has one; None if it is not to be told of yet."""
        state = seen.state
        seen.is_told = True
        try:
            digest, data = _content(path, state)
        except OSError as error:
            raise CollectorError(f"{path} cannot be read: {error.strerror or error}") from None
        if digest is None:  # it changed after all: it is looked at again when it stands still
            del self._seen[path]
            return None
        complete = is_whole(data) if data is not None else None
        if not complete and now_ns - seen.since_ns < _STILL_NS:
            seen.is_told, seen.is_looked_at = False, True
            return None
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
        return dump, self._digests(dump, data, state.uid, now_ns) if complete and data is not None else []

    def _digests(self, dump: Dump, data: bytes, uid: int, now_ns: int) -> list[CollectiveDigest]:
        place = place_of_file(self._places(), dump.rank, uid, dump.modified_ns) if dump.rank is not None else None
        if place is None:
            self.counters["without_job"] += 1
            return []
        decoded = next(iter(dumps_in(data, os.path.basename(dump.path))), None)  # noqa: PTH119 - as below
        if not isinstance(decoded, DecodedDump) or decoded.rank is None:
            self.counters["refused"] += 1
            return []
        self.counters["digests"] += 1
        self._number += 1
        return [
            collective_digest(
                decoded,
                job_id=place.job_id,
                epoch=place.epoch,
                node_id=self._node_id,
                agent_session=self._agent_session,
                seq=self._number - 1,
                event_time_ns=now_ns,
                written_ns=min(max(dump.modified_ns, 0), now_ns),
                dump_path=dump.path,
                dump_sha256=dump.sha256,
            )
        ]


def rank_of_dump(path: str) -> int | None:
    """The rank that a dump's name ends with, as `nccl_trace_rank_3` or `job_dump_3.json`; None if it has none."""
    return rank_in_name(os.path.basename(path))  # noqa: PTH119 - a name may end in a blank or a dot


def _state(path: str) -> _State | None:
    """What a regular file looks like; None for all else, and for what is gone."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return _as_state(found)


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
    return _State(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_uid)

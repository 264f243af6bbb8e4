"""Dumps and traces of a job's ranks to shares of collectives: joins the decoders with the pure figures.

Guarantees: the content tells a dump from a trace; a file that cannot be read costs the others nothing and is named; what
has no duration, size, members or bandwidth is left out and counted. Deliberately not: printing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agents.decode.flight_recorder import LARGEST_DUMP_BYTES, dumps_in
from agents.decode.flight_recorder_dump import Collective, Dump
from agents.decode.kineto_collectives import read_collectives
from agents.decode.record import Damaged, Record, UnknownFormat
from paceline.profile_reading import rank_in_name
from streams.profiles.bandwidth import bytes_of, operation_of
from streams.profiles.communicators import Communicator, Share

__all__ = ["CollectiveSource", "files_in", "read_sources"]

_MOST_SHARES: Final = 4_000_000
_DUMP_WORDS: Final = (b'"pg_config"', b'"pg_status"', b'"record_id"')
_MESSAGES: Final = frozenset({"send", "recv"})


@dataclass(slots=True)
class CollectiveSource:
    """What was read of all files.

    Attributes:
        shares: One per collective and rank.
        ranks: That had any.
        left_out: Why how many operations are in no figure.
        unreadable: Files that gave nothing, with the reason.
    """

    shares: list[Share] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def take(self, share: Share) -> None:
        """Take a share in, as long as there is room."""
        if len(self.shares) >= _MOST_SHARES:
            self.left_out["no room"] += 1
            return
        self.shares.append(share)
        self.ranks.add(share.rank)


def files_in(paths: Iterable[Path]) -> list[Path]:
    """The files among some paths, and those in the directories among them.

    Raises:
        OSError: A directory cannot be read, or a path is not there.
    """
    found = []
    for path in paths:
        if path.is_dir():
            found += [entry for entry in sorted(path.iterdir()) if entry.is_file()]
        else:
            path.stat()
            found.append(path)
    return found


def read_sources(paths: Sequence[Path]) -> CollectiveSource:
    """All collectives of some files, dumps and traces."""
    source = CollectiveSource()
    for path in paths:
        try:
            if _is_dump(path):
                _take_dumps(source, path)
            else:
                _take_trace(source, path)
        except (OSError, Damaged, UnknownFormat) as error:
            source.unreadable.append((path.name, str(error) or type(error).__name__))
    return source


def _is_dump(path: Path) -> bool:
    with path.open("rb") as stream:
        head = stream.read(1 << 16)
    if head[:1] == b"\x80":
        return True
    return b'"traceEvents"' not in head and any(word in head for word in _DUMP_WORDS)


def _take_dumps(source: CollectiveSource, path: Path) -> None:
    with path.open("rb") as stream:
        data = stream.read(LARGEST_DUMP_BYTES + 1)
    for found in dumps_in(data, path.name):
        if not isinstance(found, Dump):
            source.unreadable.append((found.name, found.reason))
            continue
        if found.rank is None:
            source.unreadable.append((path.name, "its name does not end with rank_N or dump_N"))
            continue
        for entry in found.collectives:
            share = _share_of_entry(entry, found.rank)
            if isinstance(share, Share):
                source.take(share)
            else:
                source.left_out[share] += 1


def _share_of_entry(entry: Collective, rank: int) -> Share | str:
    """A rank's share, or why there is none."""
    operation = operation_of(entry.op)
    if operation is None or operation in _MESSAGES or entry.is_p2p or entry.seq is None:
        return "no collective with a bandwidth"
    if entry.group is None or entry.group.ranks is None:
        return "members unknown"
    if entry.duration_ms is None:
        return "no duration"
    dtype = entry.dtypes[0] if entry.dtypes and len(set(entry.dtypes)) == 1 else None
    size = bytes_of(_elements(entry.input_sizes), _elements(entry.output_sizes), dtype)
    if size is None:
        return "size unknown"
    ranks = tuple(sorted(entry.group.ranks))
    communicator = Communicator(entry.group.desc, ranks, len(ranks))
    return Share(communicator, operation, entry.seq, rank, size, entry.duration_ms * 1000)


def _elements(sizes: tuple[tuple[int, ...], ...] | None) -> int | None:
    return None if not sizes else sum(math.prod(dimensions) for dimensions in sizes)


def _take_trace(source: CollectiveSource, path: Path) -> None:
    with path.open("rb") as stream:
        found = read_collectives(stream)
    rank = found.rank if found.rank is not None else rank_in_name(path)
    if rank is None:
        source.unreadable.append((path.name, "neither the trace nor its name says whose it is"))
        return
    if found.left_out:
        source.left_out["kernel without a time, or no room"] += found.left_out
    for share in _shares_of_kernels(source, found.kernels, rank):
        source.take(share)


def _shares_of_kernels(source: CollectiveSource, kernels: Sequence[Record], rank: int) -> Iterator[Share]:
    """Numbered by the trace where all kernels of a communicator have numbers, else in the order of their starts."""
    known: dict[Communicator, list[tuple[Record, str, int]]] = defaultdict(list)
    for kernel in kernels:
        operation = operation_of(kernel.get("collective"))
        if operation is None or operation in _MESSAGES:
            source.left_out["no collective with a bandwidth"] += 1
            continue
        communicator = _communicator(kernel)
        if communicator is None:
            source.left_out["members unknown"] += 1
            continue
        size = bytes_of(kernel.get("in_elements"), kernel.get("out_elements"), kernel.get("dtype"))
        if size is None:
            source.left_out["size unknown"] += 1
            continue
        known[communicator].append((kernel, operation, size))
    for communicator, found in known.items():
        numbers = [kernel.get("seq") for kernel, _, _ in found]
        is_numbered = None not in numbers and len(set(numbers)) == len(numbers)
        for place, (kernel, operation, size) in enumerate(found):
            number = kernel["seq"] if is_numbered else place
            yield Share(communicator, operation, number, rank, size, float(kernel["duration_us"]))


def _communicator(kernel: Record) -> Communicator | None:
    desc = kernel.get("group_desc")
    desc = desc if desc and desc != "undefined" else None
    listed = kernel.get("group_ranks")
    if listed:
        ranks = tuple(sorted(set(listed)))
        return Communicator(desc, ranks, len(ranks))
    size, name = kernel.get("group_size"), kernel.get("group_name")
    if not size or name is None:
        return None
    return Communicator(f"{desc or 'group'} {name}", None, size)

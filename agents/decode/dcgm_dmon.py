"""`dcgmi dmon` text, and plain `ENTITY ID FIELD VALUE` lines: one sample a row.

Guarantees: columns are taken from the header above the row and by position, so that a blank cell shifts nothing;
both spellings of the header and both alignments are read; a cell cut with `...` is null. Where a row fits its header
in no way, the nearest column is taken. Rows have no time, so samples have none.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agents.decode.dcgm_fields import Field, by_dcgm_name, by_dmon_name
from agents.decode.dcgm_sample import entity_named, new_sample, put, whole
from agents.decode.quantity import Unreadable, number
from agents.decode.record import Record, malformed

_HEADER = re.compile(r"\s*#?\s*Entity(?=\s|$)", re.IGNORECASE)
_UNITS = re.compile(r"\s*#?\s*Id(?=\s|$)", re.IGNORECASE)
_ENTITY = re.compile(
    r"\s*(?P<entity>GPU-CI|GPU-I|vGPU|GPU|NvSwitch|Switch|CPU[ -]Core|CPU|LINK|CX)\s+(?P<id>[0-9]+)"
    r"(?:\s+(?P<part>LINK|CORE|PORT)\s+(?P<part_id>[0-9]+))?(?=\s|$)",
    re.IGNORECASE | re.ASCII,
)
# An entity whose number is none: negative, broken, or in another base.
_MISNUMBERED = re.compile(
    r"\s*(?:GPU-CI|GPU-I|vGPU|GPU|NvSwitch|Switch|CPU[ -]Core|CPU|LINK|CX)\s+[+-]?[0-9]\S*\s+(?P<cells>\S.*)",
    re.IGNORECASE | re.ASCII,
)
# What follows a cut directly is the next cell: the cut one filled its column.
_TOKEN = re.compile(r"\S+?\.\.\.(?=[^\s.])|\S+")
_CHUNK = re.compile(r"\S+(?: \S+)*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.#]*", re.ASCII)

_TAB = 8


class Span(NamedTuple):
    """A piece of a line: its text and where it begins and ends."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Header:
    """The columns behind the entity, and where in the line they begin and end."""

    columns: tuple[Span, ...]
    starts: dict[int, int]
    ends: dict[int, int]


@dataclass(frozen=True, slots=True)
class Entity:
    """The entity that begins a row.

    Attributes:
        sample: A record that names it and has no readings.
        end: Where it ends in the line.
        readable: Whether its numbers could be read; those beyond 64 bits cannot.
    """

    sample: Record
    end: int
    readable: bool


def samples(text: str) -> Iterator[Record]:
    """The samples of a whole output of `dcgmi dmon` or of plain lines, for a collector. Other lines are left out."""
    header: Header | None = None
    for line in text.splitlines():
        found = parse_header(line)
        if found is not None:
            header = found
            continue
        record = parse_row(line, header)
        if record is not None and record["kind"] == "gpu_sample":
            yield record


def parse_header(line: str) -> Header | None:
    """The columns of a line `#Entity  SMCLK ...` or `# Entity  SMCLK ...`, None for any other line."""
    line = line.expandtabs(_TAB)
    found = _HEADER.match(line)
    if found is None:
        return None
    columns = tuple(_spans(_TOKEN, line, found.end()))
    return Header(
        columns,
        starts={column.start: index for index, column in enumerate(columns)},
        ends={column.end: index for index, column in enumerate(columns)},
    )


def is_unit_line(line: str) -> bool:
    """Whether this is the second line of a header: `ID`, with or without the columns' units."""
    return _UNITS.match(line) is not None


def parse_entity(line: str) -> Entity | None:
    """The entity at the start of a line: two tokens (`GPU 0`), more with a link or core (`GPU 0 LINK 3`)."""
    line = line.expandtabs(_TAB)
    found = _ENTITY.match(line)
    if found is None:
        return None
    word = found["entity"]
    name = entity_named(word)
    entity_id = whole(found["id"])
    readable = entity_id is not None
    sample = new_sample(name, entity_id)
    if word.lower().endswith("core"):
        sample["cpu_index"] = None
        sample["core_index"] = entity_id
    if found["part"]:
        part_id = whole(found["part_id"])
        readable = readable and part_id is not None
        sample[f"{found['part'].lower()}_index"] = part_id
    return Entity(sample, found.end(), readable)


def parse_row(line: str, header: Header | None, number_of_line: int | None = None) -> Record | None:
    """The sample of one line; None for a line that begins with no entity, or that no header explains.

    Args:
        line: The line as printed.
        header: The nearest header above it, if there was one.
        number_of_line: For the record of a row that cannot be read.

    Returns:
        A `gpu_sample`, or `malformed` for a row of values that has no header above it or no readable number
        of its entity.
    """
    line = line.expandtabs(_TAB)
    entity = parse_entity(line)
    if entity is None:
        return _misnumbered(line, header, number_of_line)
    record = _row(line, entity, header, number_of_line)
    if record is not None and not entity.readable:
        return malformed("the entity's number has more than 64 bits", line, number_of_line)
    return record


def _misnumbered(line: str, header: Header | None, number_of_line: int | None) -> Record | None:
    """`malformed` for a row of values under a header whose entity has something else than a number."""
    found = _MISNUMBERED.match(line) if header is not None else None
    if found is None or not all(_is_value(word) for word in found["cells"].split()):
        return None
    return malformed("the entity has no readable number", line, number_of_line)


def _row(line: str, entity: Entity, header: Header | None, number_of_line: int | None) -> Record | None:
    words = line[entity.end :].split(None, 1)
    if words and _is_plain(words, header):
        field = _field(words[0])
        put(entity.sample, field, words[0], words[1] if len(words) > 1 else None)
        return entity.sample
    if header is not None:
        for column, cell in zip(header.columns, _cells(header, line, entity.end), strict=True):
            _put_column(entity.sample, column.text, cell)
        return entity.sample
    if words and all(_is_value(word) for word in line[entity.end :].split()):
        return malformed("row of values without a header above it", line, number_of_line)
    return None


def _put_column(sample: Record, name: str, cell: str) -> None:
    if name.upper().rstrip("#") == "UUID" and cell.startswith(("GPU-", "MIG-")):
        sample["gpu_uuid"] = cell
        return
    put(sample, _field(name), name, cell)


def _field(name: str) -> Field | None:
    return by_dmon_name(name) or by_dcgm_name(name)


def _is_plain(words: list[str], header: Header | None) -> bool:
    """Whether a line names its field itself. Under a header, only a known name does: cells may hold words too."""
    if _NAME.fullmatch(words[0]) is None or _is_value(words[0]):
        return False
    if _field(words[0]) is not None or words[0].upper().startswith("DCGM_"):
        return True
    return header is None and len(words) > 1 and _is_value(words[1].split(None, 1)[0])


def _is_value(word: str) -> bool:
    try:
        number(word)
    except Unreadable:
        return False
    return True


def _spans(pattern: re.Pattern[str], line: str, start: int) -> list[Span]:
    return [Span(*found.span(), found[0]) for found in pattern.finditer(line, start)]


def _cells(header: Header, line: str, start: int) -> list[str]:
    """The cells of a row, one for each column, empty where the row has none."""
    columns, starts, ends = header.columns, header.starts, header.ends
    tokens = _spans(_TOKEN, line, start)
    if len(tokens) == len(columns) and all(token.start in starts for token in tokens):
        return [token.text for token in tokens]
    for spans in (tokens, _spans(_CHUNK, line, start)):
        if spans is not tokens and any(_reaches_next(span, columns, starts) for span in spans):
            continue
        placed: list[int | None]
        for placed in (
            [starts.get(span.start) for span in spans],
            [ends.get(span.end) for span in spans],
        ):
            if None not in placed and len(set(placed)) == len(placed) and not _overlong(spans, columns, starts):
                return _fill(columns, spans, placed)
        if len(spans) == len(columns):
            return [span.text for span in spans]
    return _nearest(columns, tokens, starts, ends)


def _reaches_next(span: Span, columns: tuple[Span, ...], starts: dict[int, int]) -> bool:
    """Whether a run of words is wider than its column, and so more than one cell."""
    index = starts.get(span.start)
    return index is not None and index + 1 < len(columns) and span.end > columns[index + 1].start


def _overlong(spans: list[Span], columns: tuple[Span, ...], starts: dict[int, int]) -> bool:
    return len(spans) < len(columns) and any(_reaches_next(span, columns, starts) for span in spans)


def _nearest(columns: tuple[Span, ...], tokens: list[Span], starts: dict[int, int], ends: dict[int, int]) -> list[str]:
    """Each token to the column whose edge it lies at or behind; several in one column are one cell of words."""
    left = sum(token.start in starts for token in tokens)
    right = sum(token.end in ends for token in tokens)
    if right > left:
        edges = [column.end for column in columns]
        return _fill(columns, tokens, [min(bisect_left(edges, token.end), len(edges) - 1) for token in tokens])
    edges = [column.start for column in columns]
    pieces = [piece for token in tokens for piece in _split(token, columns, starts)]
    return _fill(columns, pieces, [max(bisect_right(edges, piece.start) - 1, 0) for piece in pieces])


def _split(token: Span, columns: tuple[Span, ...], starts: dict[int, int]) -> list[Span]:
    """A token that fills its column and goes on is two cells that touch: a cell never outgrows its column."""
    pieces: list[Span] = []
    while token.text and _reaches_next(token, columns, starts):
        border = columns[starts[token.start] + 1].start
        pieces.append(Span(token.start, border, token.text[: border - token.start]))
        token = Span(border, token.end, token.text[border - token.start :])
    if token.text:
        pieces.append(token)
    return pieces


def _fill(columns: tuple[Span, ...], spans: list[Span], placed: Sequence[int | None]) -> list[str]:
    words: list[list[str]] = [[] for _ in columns]
    for span, index in zip(spans, placed, strict=True):
        if index is not None and words:
            words[index].append(span.text)
    return [" ".join(cell) for cell in words]

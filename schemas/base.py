"""What all records share: frozen models, columns, and the rule for numbers on the wire.

A record is validated once, where bytes enter a process. Readers ignore fields that they do not know, so that a newer
writer can run beside an older reader. Times are integer nanoseconds since the epoch, UTC.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sized

_Check = TypeVar("_Check", bound="Callable[[Any], Any]")

__all__ = [
    "Column",
    "DeviceKey",
    "EventTimeNs",
    "Identifier",
    "Int64",
    "Record",
    "check_columns",
    "deterministic_id",
    "is_of_lengths_alone",
    "of_lengths_alone",
    "round_significant",
]

Identifier = Annotated[str, Field(min_length=1, max_length=253)]
"""A name of a node, job, site or switch. 253 is the longest host name that DNS allows."""

EventTimeNs = Annotated[int, Field(ge=0, lt=2**63)]
"""Event time in nanoseconds since the epoch, UTC."""

DeviceKey = Annotated[str, Field(min_length=1, max_length=96)]
"""A GPU UUID (`GPU-...`, `MIG-...`) or a PCI address (`dddd:bb:dd`)."""

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63), WithJsonSchema({"type": "integer"})]
"""An integer that is kept in an array of 64-bit integers; the exported schema leaves the bound out."""

Column = tuple[int | None, ...] | None
"""One integer per subject of a frame; a null entry is unknown, a null column was not carried by the source."""


class Record(BaseModel):
    """Base of all record families: immutable, tolerant of unknown fields, strict about the known ones."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def check_columns(length: int, columns: Mapping[str, Sized | None], names: Iterable[str] | None = None) -> None:
    """Hold every given column against the number of subjects.

    Args:
        length: number of subjects of the frame.
        columns: columns by name; null ones are not carried and pass.
        names: which of them are held against it; all by default.

    Raises:
        ValueError: a column has another length.
    """
    for name in columns if names is None else names:
        column = columns[name]
        if column is not None and len(column) != length:
            raise ValueError(f"column {name} has {len(column)} entries for {length} subjects")


def of_lengths_alone(check: _Check) -> _Check:
    """Mark a check that looks at nothing but which columns a record has and how long they are.

    Its answer is the same for all records of one form, so it need not be asked for each.
    """
    check.of_lengths_alone = True  # type: ignore[attr-defined]
    return check


def is_of_lengths_alone(check: Callable[[Any], Any]) -> bool:
    """Whether a check is so marked."""
    return getattr(check, "of_lengths_alone", False) is True


def deterministic_id(prefix: str, *parts: object) -> str:
    """An identifier that depends on its parts alone: same input, same id, in every process and on every replay.

    Args:
        prefix: a short word that says what is named, as `find` or `cmd`.
        *parts: what makes the thing itself; `str()` of each is hashed, separated.

    Returns:
        `prefix-` and 20 hexadecimal digits of SHA-256 (80 bits: a collision among 10^9 ids has odds below 10^-6).
    """
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()
    return f"{prefix}-{digest[:20]}"


def round_significant(value: float, digits: int = 6) -> float:
    """Round to significant digits, so that emitted floats do not depend on the order of a sum's last bits."""
    return float(f"{value:.{digits - 1}e}")

"""Which of a fleet's records are reference data, which stand before its measurements are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.fleet import Job, Node, Policy, RankPlacement

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["is_reference"]


def is_reference(record: Record) -> bool:
    """Whether a record says what there is, and not how it runs."""
    return isinstance(record, Job | RankPlacement | Node | Policy)

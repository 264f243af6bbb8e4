"""Members for groups whose digest has none: of ranks that only watchdog lines tell of, and of the group of all ranks.

Guarantees: a group of a watchdog's line is that of the same description in another rank's dump if exactly one such group
has the rank in it; the group of all ranks has as many as the caller says. What stays without members is judged by nobody.
Operations in watchdog lines have other names, and no types: they are compared among themselves and with no dump's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from schemas.steps import CollectiveDigest

__all__ = ["is_watchdog", "with_members"]

WORLD: Final = "default_pg"
"""What PyTorch calls the group of all ranks."""


def is_watchdog(record: CollectiveDigest) -> bool:
    """Whether a digest is of watchdog lines and not of a dump."""
    return bool(record.groups) and all(table.get("is_watchdog") for table in record.groups)


def with_members(records: Iterable[CollectiveDigest], rank_count: int | None) -> list[CollectiveDigest]:
    """The digests with the members of groups as far as they follow.

    Args:
        records: One per rank of a job.
        rank_count: How many ranks the job has; None if nobody said.
    """
    kept = list(records)
    dumps = [record for record in kept if not is_watchdog(record)]
    needing = [i for i, record in enumerate(kept) if any(_can_be_filled(table) for table in record.groups)]
    if not needing:
        return kept
    known = _known_groups(dumps)
    has_sizes = all(operation.get("input_sizes") for record in kept for operation in record.pending)
    for i in needing:
        record = kept[i]
        tables = [_filled(table, record.rank, known, rank_count) for table in record.groups]
        update: dict[str, Any] = {"groups": tuple(tables)}
        if is_watchdog(record):
            update["pending"] = () if dumps else tuple(_sized(one, has_sizes) for one in record.pending)
        kept[i] = record.model_copy(update=update)
    return kept


def _can_be_filled(table: dict[str, Any]) -> bool:
    return table.get("ranks") is None and bool(table.get("is_watchdog") or table.get("desc") == WORLD)


def _known_groups(dumps: Iterable[CollectiveDigest]) -> dict[str, list[dict[str, Any]]]:
    """By description the distinct groups of all dumps, as tables of members and ordinal."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for record in dumps:
        for table in record.groups:
            if table.get("ranks") is not None and table.get("desc") is not None:
                group = {"ranks": table["ranks"], "ordinal": table.get("ordinal") or 0}
                found.setdefault(str(table["desc"]), {}).setdefault(str(group), group)
    return {desc: list(groups.values()) for desc, groups in found.items()}


def _filled(
    table: dict[str, Any], rank: int, known: dict[str, list[dict[str, Any]]], rank_count: int | None
) -> dict[str, Any]:
    if table.get("ranks") is not None:
        return table
    if table.get("is_watchdog"):
        own = [group for group in known.get(str(table.get("desc")), ()) if _has(group["ranks"], rank)]
        if len(own) == 1:
            return {**table, **own[0]}
    if table.get("desc") == WORLD and rank_count is not None and rank < rank_count:
        return {**table, "ranks": [[0, 1, rank_count]]}
    return table


def _has(runs: Sequence[Sequence[int]], rank: int) -> bool:
    return any(rank in range(first, first + step * count, step) for first, step, count in runs if step > 0)


def _sized(operation: dict[str, Any], has_sizes: bool) -> dict[str, Any]:
    return operation if has_sizes else {key: value for key, value in operation.items() if key != "input_sizes"}

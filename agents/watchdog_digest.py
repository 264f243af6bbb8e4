"""What the watchdog's lines in a trainer's log say of a rank, as a digest: for ranks of which there is no dump.

A line tells of one operation of one group that timed out, and how far its rank had come there. Guarantees: the latest
numbers of each group count, and lines about one operation add up; each table of such a digest says `is_watchdog`, so that
nobody takes the groups of which it is silent for groups in which nothing was issued. The members of a group are in no
line; whoever knows other ranks' dumps, or how many ranks there are, may find them.
"""

from __future__ import annotations

from typing import Any, Final

from agents.decode.record import Record
from schemas.steps import CollectiveDigest

__all__ = ["WatchdogLines"]

_MOST_GROUPS: Final = 64
"""Of a rank; a process has some tens."""

_MOST_RANKS: Final = 4096

_OPERATIONS: Final = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
}
"""What the recorder calls the operations that it does not call by the same word in small letters."""

_NO_SUM: Final = "0" * 64
"""A log that is being written has no sum that anybody could check later."""

_MESSAGES: Final = frozenset({"SEND", "RECV", "RECVANYSOURCE", "COALESCED"})
_NUMBERS: Final = ("last_enqueued_seq", "last_started_seq", "last_completed_seq", "op_type", "in_elements")

_Group = tuple[str | None, str | None]
"""Id in its process and description, as far as the line has them."""


class WatchdogLines:
    """Folds the lines of one job, from one log or many."""

    def __init__(self) -> None:
        self._by_rank: dict[int, dict[_Group, Record]] = {}

    def take(self, record: Record, rank: int | None = None) -> int | None:
        """Take a record of kind `watchdog` in.

        Args:
            record: As decoded.
            rank: Whose log it is from, for lines that name none.

        Returns:
            The rank that it told of; None where none is known, or the line says nothing that could be judged.
        """
        told: int | None = record["rank"] if record["rank"] is not None else rank
        if told is None or record["seq"] is None:
            return None
        if told not in self._by_rank and len(self._by_rank) >= _MOST_RANKS:
            return None
        groups = self._by_rank.setdefault(told, {})
        key = (record.get("pg_id"), record.get("group_desc"))
        if key == (None, None) and len(groups) == 1:
            key = next(iter(groups))  # some wordings leave out the group that others of the same failure give
        elif (None, None) in groups and not any(group != (None, None) for group in groups):
            groups[key] = groups.pop((None, None))
        known = groups.get(key)
        if known is not None and known["seq"] == record["seq"]:
            for name in _NUMBERS:
                if record.get(name) is not None:
                    known[name] = record[name]
        elif known is not None or len(groups) < _MOST_GROUPS:
            groups[key] = dict(record)
        return told

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that lines told of, sorted."""
        return tuple(sorted(self._by_rank))

    def digest(
        self,
        rank: int,
        *,
        job_id: str,
        epoch: int,
        node_id: str,
        agent_session: str,
        seq: int,
        event_time_ns: int,
        log_path: str,
    ) -> CollectiveDigest:
        """The digest of a rank of `ranks`.

        Args:
            rank: Whose.
            job_id: The job.
            epoch: Its attempt.
            node_id: Whose agent reads the log.
            agent_session: Of that agent.
            seq: Counts its digests.
            event_time_ns: When the last line was read or written.
            log_path: Of the log that a person would look at.
        """
        tables: list[dict[str, Any]] = []
        pending: list[dict[str, Any]] = []
        total = 0
        for order, ((pg_id, desc), record) in enumerate(self._by_rank[rank].items()):
            stuck = record["seq"]
            enqueued = max(record.get("last_enqueued_seq") or stuck, stuck)
            completed = record.get("last_completed_seq")
            completed = stuck - 1 if completed is None else min(completed, stuck - 1)
            table: dict[str, Any] = {"desc": desc, "ranks": None, "is_watchdog": True}
            table |= {"enqueued": enqueued, "completed": completed}
            if pg_id is not None:
                table["id"] = pg_id
            op_type = record.get("op_type")
            if op_type in _MESSAGES:
                table["is_p2p"] = True
            elif op_type is not None:
                operation = {"group": order, "op": _OPERATIONS.get(op_type, op_type.lower()), "seq": stuck}
                if record.get("in_elements") is not None:
                    operation["input_sizes"] = [[record["in_elements"]]]
                pending.append({**operation, "order": order})
            tables.append(table)
            total += enqueued - completed
        return CollectiveDigest(
            job_id=job_id,
            epoch=epoch,
            node_id=node_id,
            agent_session=agent_session,
            seq=seq,
            event_time_ns=event_time_ns,
            rank=rank,
            version="watchdog",
            dump_path=log_path,
            dump_sha256=_NO_SUM,
            groups=tuple(tables),
            pending=tuple(pending),
            pending_total=total,
        )

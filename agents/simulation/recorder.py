"""What the flight recorder of each rank writes after a run: a ring of entries, the progress of groups, in any of its forms.

Guarantees: entries are as a process would have recorded them, in its own order and with ids and names of its own; a
completion stands in them only if the watchdog came round before the device broke; without timing nothing reads `started` and
numbers of what was started are -1; the parts of a batch never complete, only the entry that closes it; in groups with sends
and receives the status holds whichever number came last. Deliberately knows nothing of what is at fault: it sees a
run, and for each rank the moment after which its watchdog saw nothing.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agents.simulation.collective_programs import JobGroup
from agents.simulation.collective_run import Action, Issued, Never, RankRun

__all__ = ["RecorderStyle", "base_counts", "dump_bytes", "dump_of", "dump_table"]

_EPOCH_NS: Final = 1_760_000_000_000_000_000
_OTHER_GROUPS: Final = 3
"""Groups that a process makes for the CPU between those of the GPU; they use up ids, and have no recorder."""


@dataclass(frozen=True, slots=True)
class RecorderStyle:
    """How a recorder is built and set.

    Attributes:
        version: Of the dump.
        is_active_only: Completed entries are left out.
        ring: Entries that it keeps.
        has_timing: Starts are known.
        encoding: `pickle` or `json`.
        protocol: Of the pickle.
    """

    version: str = "2.9"
    is_active_only: bool = False
    ring: int = 2000
    has_timing: bool = False
    encoding: str = "pickle"
    protocol: int = 2


def base_counts(
    groups: Sequence[JobGroup], one_step: Mapping[int, Sequence[Action]], steps: int
) -> dict[int, dict[int, tuple[int, int]]]:
    """By rank and group, what has been counted after some steps of a job that has been running.

    Args:
        groups: Of the job.
        one_step: By rank, what it calls in a step.
        steps: That lie behind.
    """
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for rank, actions in one_step.items():
        collectives: Counter[int] = Counter()
        pairs: Counter[int] = Counter()
        batches: set[tuple[int, int]] = set()
        for action in actions:
            if action.kind == "collective":
                collectives[action.group] += 1
            elif action.kind in {"send", "recv"} and (not action.batch or (action.group, action.batch) not in batches):
                batches.add((action.group, action.batch))
                pairs[action.group] += 1
        found[rank] = {index: (collectives[index] * steps, pairs[index] * steps) for index in range(len(groups))}
    return found


def dump_of(run: RankRun, groups: Sequence[JobGroup], style: RecorderStyle, seen_until_us: float = Never) -> bytes:
    """One rank's dump as it stands in a file.

    Args:
        run: What the rank did.
        groups: All of the job's.
        style: Of the recorder.
        seen_until_us: After this its watchdog saw nothing any more.
    """
    return dump_bytes(dump_table(run, groups, style, seen_until_us), style)


def dump_bytes(table: dict[str, Any], style: RecorderStyle) -> bytes:
    """A dump's table in the encoding of the style."""
    if style.encoding == "json":
        return json.dumps(_as_json(table)).encode()
    return pickle.dumps(table, protocol=style.protocol)


def dump_table(
    run: RankRun, groups: Sequence[JobGroup], style: RecorderStyle, seen_until_us: float = Never
) -> dict[str, Any]:
    """One rank's dump as plain data, in the pickle's form."""
    own = [index for index, group in enumerate(groups) if run.rank in group.ranks]
    names = {index: str(index if index == 0 else 2 * index + 1) for index in own}
    ids = {index: place + place // _OTHER_GROUPS for place, index in enumerate(own)}
    entries = _entries(run, groups, names, ids, style, seen_until_us)
    kept = entries[-style.ring :]
    if style.is_active_only:
        kept = [entry for entry in kept if entry["state"] != "completed"]
    # The table is sorted by text, as the process keeps it.
    config = {
        name: {"name": name, "desc": groups[index].desc, "ranks": str(list(groups[index].ranks))}
        for index, name in sorted(names.items(), key=lambda item: item[1])
    }
    table: dict[str, Any] = {
        "version": style.version,
        "pg_config": config,
        "pg_status": _status(run, ids, style, seen_until_us),
        "entries": kept,
    }
    table["comm_lib_version" if style.version == "2.10" else "nccl_version"] = "2.27.3"
    return table


def _entries(
    run: RankRun,
    groups: Sequence[JobGroup],
    names: Mapping[int, str],
    ids: Mapping[int, int],
    style: RecorderStyle,
    seen_until_us: float,
) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    open_batch: list[Issued] = []
    op_ids: Counter[int] = Counter()

    def add(operation: Issued, name: str, sizes: list[list[int]], end_us: float | None) -> None:
        index = operation.action.group
        op_ids[index] += 1
        is_p2p = operation.action.kind in {"send", "recv"}
        is_seen = end_us is not None and end_us <= seen_until_us and end_us != Never
        entries.append(
            {
                "frames": [{"name": "forward_step", "filename": "/workspace/train.py", "line": 42}],
                "record_id": len(entries),
                "pg_id": ids[index],
                "process_group": (names[index], groups[index].desc),
                "collective_seq_id": operation.seq,
                "p2p_seq_id": operation.p2p_seq,
                "op_id": op_ids[index],
                "profiling_name": f"nccl:{name}",
                "time_created_ns": _EPOCH_NS + int(operation.issued_us * 1000),
                "input_sizes": sizes,
                "input_dtypes": [operation.action.dtype] if sizes else [],
                "output_sizes": sizes,
                "output_dtypes": [operation.action.dtype] if sizes else [],
                "state": "completed" if is_seen else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": _EPOCH_NS + int((end_us or 0) * 1000) if is_seen else None,
                "retired": is_seen,
                "timeout_ms": 600_000,
                "is_p2p": is_p2p,
            }
        )
        if style.has_timing and is_seen:
            entries[-1]["duration_ms"] = operation.action.us / 1000
            entries[-1]["time_discovered_started_ns"] = entries[-1]["time_created_ns"]

    def close() -> None:
        if open_batch:
            # A batch ends when all its parts have.
            add(open_batch[-1], "coalesced", [], max(part.end_us for part in open_batch))
            open_batch.clear()

    for operation in run.issued:
        action = operation.action
        if open_batch and (action.group, action.batch) != (open_batch[0].action.group, open_batch[0].action.batch):
            close()
        name = action.op
        if action.kind in {"send", "recv"}:
            ranks = groups[action.group].ranks
            arrow = "->" if action.kind == "send" else "<-"
            name = f"{action.kind} {ranks.index(run.rank)}{arrow}{ranks.index(action.peer)}"
        add(operation, name, [[action.elements]], None if action.batch else operation.end_us)
        if action.batch:
            open_batch.append(operation)
    close()
    return entries


def _status(
    run: RankRun, ids: Mapping[int, int], style: RecorderStyle, seen_until_us: float
) -> dict[str, dict[str, int]]:
    enqueued: dict[int, int] = {}
    completed: dict[int, tuple[float, int]] = {}
    for operation in run.issued:
        index = operation.action.group
        number = operation.p2p_seq if operation.action.kind in {"send", "recv"} else operation.seq
        enqueued[index] = number
        if operation.end_us <= seen_until_us and operation.end_us != Never:
            completed[index] = max(completed.get(index, (-1.0, -1)), (operation.end_us, number))
    found = {}
    for index, number in enqueued.items():
        done = completed.get(index, (0.0, -1))[1]
        first = next(operation for operation in run.issued if operation.action.group == index)
        if done < 0:
            before = first.p2p_seq if first.action.kind in {"send", "recv"} else first.seq
            done = before - 1 if before > 1 else -1
        found[str(ids[index])] = {
            "last_enqueued_collective": number,
            "last_started_collective": done if style.has_timing else -1,
            "last_completed_collective": done,
        }
    return found


def _as_json(table: dict[str, Any]) -> dict[str, Any]:
    """The form of a dump that is asked for over HTTP."""
    entries = [
        {key: (0 if value is None else value) for key, value in entry.items() if key != "frames"}
        for entry in table["entries"]
    ]
    status = {
        pg_id: {key: str(value) for key, value in numbers.items()} for pg_id, numbers in table["pg_status"].items()
    }
    found = {**table, "pg_status": status, "entries": entries}
    if not entries:
        del found["entries"]
    return found

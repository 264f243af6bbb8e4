"""Flight-recorder dumps written down by hand, for tests: what a rank of a small job would have left."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from agents.decode.flight_recorder_dump import read_dump
from agents.digest import collective_digest
from schemas.steps import CollectiveDigest
from streams.detectors.hang import judge
from streams.detectors.hang_verdict import HangVerdict

Group = tuple[str, str, list[int]]  # name, description, members


def entry(
    seq: int,
    op: str = "all_reduce",
    group: tuple[str, str] = ("0", "default_pg"),
    *,
    state: str = "scheduled",
    sizes: list[list[int]] | None = None,
    dtype: str = "Float",
    p2p: int | None = None,
    pg_id: int | None = None,
    record: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One entry as the recorder writes it into a pickle."""
    is_done = state == "completed"
    sizes = [[8]] if sizes is None else sizes
    return {
        "frames": [],
        "record_id": seq if record is None else record,
        "pg_id": int(group[0]) if pg_id is None else pg_id,
        "process_group": group,
        "collective_seq_id": seq,
        "p2p_seq_id": p2p or 0,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_700_000_000_000_000_000 + seq,
        "input_sizes": sizes,
        "input_dtypes": [dtype] * len(sizes),
        "output_sizes": sizes,
        "output_dtypes": [dtype] * len(sizes),
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1_700_000_000_000_000_999 if is_done else None,
        "retired": is_done,
        "timeout_ms": 600_000,
        "is_p2p": p2p is not None,
        **more,
    }


def table(
    groups: list[Group], status: dict[str, tuple[int, int]], entries: list[dict[str, Any]], version: str = "2.5"
) -> dict[str, Any]:
    """A dump: groups, by id the last enqueued and completed number, entries."""
    return {
        "version": version,
        "pg_config": {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, desc, ranks in groups},
        "pg_status": {
            pg_id: {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for pg_id, (enqueued, completed) in status.items()
        },
        "entries": entries,
    }


def world(size: int, enqueued: int, completed: int, **what: Any) -> dict[str, Any]:
    """A rank of a job with one group: everything after `completed` is pending."""
    entries = [entry(seq, state="completed", **what) for seq in range(max(1, completed - 2), completed + 1)]
    entries += [entry(seq, **what) for seq in range(completed + 1, enqueued + 1)]
    return table([("0", "default_pg", list(range(size)))], {"0": (enqueued, completed)}, entries)


def digest_of(rank: int, dump: dict[str, Any], limit_bytes: int | None = 16_000) -> CollectiveDigest:
    return collective_digest(
        read_dump(dump, f"nccl_trace_rank_{rank}"),
        job_id="job",
        epoch=0,
        node_id="node",
        agent_session="session",
        seq=0,
        event_time_ns=0,
        dump_path="/tmp/dump",
        dump_sha256="0" * 64,
        limit_bytes=limit_bytes,
    )


def verdict_of(dumps: dict[int, dict[str, Any]]) -> HangVerdict:
    return judge([digest_of(rank, dump) for rank, dump in dumps.items()])


def write(directory: Path, dumps: dict[int, dict[str, Any]], encoding: str = "pickle") -> Path:
    for rank, dump in dumps.items():
        path = directory / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(dump, 2) if encoding == "pickle" else json.dumps(dump).encode())
    return directory

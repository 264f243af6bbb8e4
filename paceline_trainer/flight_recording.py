"""What PyTorch's flight recorder knows now, in a file that `paceline diagnose hang` reads.

For process groups over Gloo, of which no watchdog writes a dump, and for whoever wants a dump before the watchdog's
timeout. Members of groups are taken from the program, because the recorder of Gloo keeps those of one group only.
Guarantees: the file appears whole or not at all; no exception leaves it; nothing is waited for. Call it from a thread:
a collective that blocks does not hold the interpreter's lock, and a signal handler of Python's would wait behind it. The
recorder must be on (`TORCH_FR_BUFFER_SIZE=2000`, in older builds `TORCH_NCCL_TRACE_BUFFER_SIZE`), and stacks are left out.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

__all__ = ["write_flight_recording"]

_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""In the order in which they are asked; one that has no entry is passed over."""


def write_flight_recording(directory: str) -> str | None:
    """Write this rank's recording to `DIRECTORY/flight_rank_N`.

    Returns:
        The path; None where PyTorch is not imported, has no recorder with entries, or the file could not be written.
    """
    try:
        distributed: Any = sys.modules["torch.distributed"]
        recording = _recording()
        if recording is None:
            return None
        recording["pg_config"] = {**recording.get("pg_config", {}), **_members(distributed)}
        path = os.path.join(directory, f"flight_rank_{distributed.get_rank()}")  # noqa: PTH118 - no pathlib in a hook
        with open(f"{path}.part", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(recording, file)
        os.replace(f"{path}.part", path)  # noqa: PTH105
    except Exception:  # noqa: BLE001 - a hook must not cost the training that it watches
        return None
    return path


def _recording() -> dict[str, Any] | None:
    bindings: Any = sys.modules["torch._C._distributed_c10d"]
    for name in _RECORDERS:
        dump = getattr(bindings, name, None)
        recording = json.loads(dump()) if dump is not None else {}
        if recording.get("entries"):
            found: dict[str, Any] = recording
            return found
    return None


def _members(distributed: Any) -> dict[str, dict[str, str]]:
    """By name the groups of this process, in the form that the recorder gives them."""
    found = {}
    for group in list(distributed.distributed_c10d._world.pg_group_ranks):
        if not hasattr(group, "group_name"):  # what stands for the groups that this rank is no member of
            continue
        name = str(group.group_name)
        ranks = sorted(distributed.get_process_group_ranks(group))
        found[name] = {"name": name, "desc": str(group.group_desc), "ranks": str(ranks)}
    return found

r"""What the hook says to the agent: one JSON object a line over a Unix stream socket, one way.

One connection speaks for one rank of one attempt of one job. Every message has `v` (the version, 1) and `type`:

- `register`, first on every connection, again after a reconnect and when more becomes known:
  `job_id`, `epoch` (attempt, from 0), `rank`, `world_size`, `event_time_ns`, `pid` (as the trainer sees it; the agent
  turns away a pid that the kernel says is another process's), and where known `local_rank`, `local_world_size`,
  `stage`, `role`, `model` and `layout` (objects), `job` (further facts: workload, precision, recompute,
  tokens_per_step, ...), `nccl_env` (the variables `TORCH_NCCL_*`, `TORCH_FR_*`, `NCCL_*`, `TORCH_DISTRIBUTED_DEBUG`),
  `torch_version` and `device`: `{"uuid": "GPU-...", "pci_bus_id": "0000:1a:00", "source": "cuda" | "visible_devices" |
  "given"}`. A device is named by UUID or PCI address, never by index; without one the agent looks for the process in
  the driver.
- `step`, when a step has ended: `step`, `phase`, `event_time_ns`, `step_us`, and what was measured of `own_us`,
  `compute_us`, `forward_us`, `backward_us`, `optimizer_us`, `host_us`, `data_us`, `wait_us`, `tokens`,
  `sum_squared_lengths`, `collectives` (objects of `group`, `instance`, `op`, `duration_us` and, where known, `size_bytes`).
- `progress`: `last_step` and `groups`, by group `[last enqueued, last started, last completed]`; null is unknown. With `phase`
  when the step that begins is of another phase than the one before.
- `end`: the loop is done. A connection that closes without it died.

Durations are integer microseconds, times integer nanoseconds since the epoch. Readers ignore fields that they do not
know; a line is at most `MAX_LINE_BYTES` long. The agent never answers a trainer. Who is none may ask with a line of
type `status` what the ranks here said last, and gets one line of JSON back.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["DEFAULT_SOCKET", "MAX_LINE_BYTES", "PHASES", "VERSION", "encode"]

VERSION = 1

DEFAULT_SOCKET = "/run/paceline/trainer.sock"

MAX_LINE_BYTES = 65_536
"""A registration with its environment takes 2 kB, a step below 1 kB; the agent drops longer lines."""

PHASES = ("train", "warmup", "checkpoint", "evaluation", "compile")
"""What a step may be; a step that is not `train` is counted and never compared."""


def encode(kind: str, fields: dict[str, Any]) -> bytes:
    """One message as a line; fields that are None are left out.

    Raises:
        ValueError: a value is no JSON (NaN, infinity) or the line would be too long.
        TypeError: a value is of no JSON type.
    """
    message = {"v": VERSION, "type": kind}
    message.update({name: value for name, value in fields.items() if value is not None})
    line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a {kind} message of {len(line)} bytes is above the limit of {MAX_LINE_BYTES}")
    return line

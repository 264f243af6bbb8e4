"""A stand-in for Slurm's `scontrol` with a log of its own: `python scontrol_stand_in.py DIRECTORY SEED ARGUMENTS...`.

It knows `show node NAME -o` and `update NodeName=NAME State=DRAIN|RESUME Reason=...`. What nodes are like is read off the
log, so state and log cannot differ, and a line is one write: an end at any moment leaves it whole or absent. A change takes
a while before and after it takes effect, some changes long, so that who asked for it can be gone by then. While the file
`away` is there nobody answers. It imports nothing of the project.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import sys
import time
from pathlib import Path

LOG_NAME = "target.ndjson"
AWAY_NAME = "away"
_SHORT_S, _LONG_S, _LONG_SHARE = 0.5, 3.0, 0.05


def main(directory: Path, seed: str, arguments: list[str]) -> int:
    """Answer as `scontrol` does; 1 when it refuses or nobody is there."""
    if (directory / AWAY_NAME).exists():
        print("slurm_load error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        return 1
    if arguments[:2] == ["show", "node"] and arguments[3:] == ["-o"]:
        print(_record(directory, arguments[2]))
        return 0
    fields = dict(argument.partition("=")[::2] for argument in arguments[1:])
    if arguments[:1] != ["update"] or fields.keys() - {"NodeName", "State", "Reason"}:
        print(f"slurm_update error: not known here: {arguments}", file=sys.stderr)
        return 1
    rng = random.Random(f"{seed} {arguments}")
    said = {
        "node": fields["NodeName"],
        "state": fields["State"],
        "reason": fields.get("Reason", ""),
        "pid": os.getpid(),
    }
    _append(directory, {"word": "came", **said})
    time.sleep(_pause_s(rng))
    _append(directory, {"word": "done", **said})
    time.sleep(_pause_s(rng))
    _append(directory, {"word": "answered", **said})
    return 0


def _pause_s(rng: random.Random) -> float:
    return _LONG_S if rng.random() < _LONG_SHARE else rng.uniform(0.0, _SHORT_S)


def _append(directory: Path, line: dict[str, object]) -> None:
    log = os.open(directory / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fcntl.flock(log, fcntl.LOCK_EX)
    os.write(log, json.dumps({"at_ns": time.time_ns(), **line}).encode() + b"\n")
    os.close(log)


def _record(directory: Path, node: str) -> str:
    state, reason = "IDLE", ""
    log = directory / LOG_NAME
    for text in log.read_text().splitlines() if log.exists() else ():
        line = json.loads(text)
        if line["word"] == "done" and line["node"] == node:
            state, reason = ("IDLE+DRAIN", line["reason"]) if line["state"] == "DRAIN" else ("IDLE", "")
    told = f" Reason={reason} [root@2026-01-01T00:00:00]" if reason else ""
    return f"NodeName={node} Arch=x86_64 State={state} BootTime=2026-01-01T00:00:00 SlurmdStartTime=2026-01-01T00:00:00{told}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))

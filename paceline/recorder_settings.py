"""What the environment of a PyTorch process says about its flight recorder and its time-outs, and what it costs.

Defaults are those of PyTorch's sources. Up to 2.8 the recorder keeps nothing unless it is told to, later releases keep
2,000 operations and dump on a time-out; of a release that is not known the older defaults are taken. Nothing is read
here but the variables given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Judgement", "judged"]

_BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPE_FILE = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)
_DUMP = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
_TIMING = ("TORCH_NCCL_ENABLE_TIMING",)
_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_MONITORING = ("TORCH_NCCL_ENABLE_MONITORING",)
_HEARTBEAT = ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",)

_ON_BY_DEFAULT_AFTER = (2, 8)
"""The last release whose headers have 0 for the buffer's size."""

_DEFAULT_ENTRIES = 2000
_FEW_ENTRIES = 500
"""A step of a model with 80 layers and tensor parallelism issues several hundred operations."""

_LONG_HEARTBEAT_S = 3600
"""PyTorch's own defaults are 480 and 600 s; an hour of a stuck cluster costs more than any dump takes to write."""

_TRUE = frozenset({"1", "y", "yes", "t", "true"})
_FALSE = frozenset({"0", "n", "no", "f", "false"})


@dataclass(frozen=True, slots=True)
class Judgement:
    """One setting.

    Attributes:
        name: the variable.
        ok: whether it is as a hang's diagnosis wants it.
        needed: whether a hang cannot be diagnosed, or is not ended, without it.
        note: what holds, and what it costs.
    """

    name: str
    ok: bool
    needed: bool
    note: str


def judged(env: Mapping[str, str], torch_version: str | None = None) -> list[Judgement]:
    """What the settings of one process come to.

    Args:
        env: its variables; others than those of collectives are not looked at.
        torch_version: its PyTorch, as `2.8.0+cu128`; None if unknown.
    """
    release = _release(torch_version)
    is_newer = release is not None and release > _ON_BY_DEFAULT_AFTER
    return [
        _recorder(env, is_newer),
        _dump_on_timeout(env, is_newer),
        _async_errors(env),
        _blocking_wait(env),
        _monitoring(env),
        _heartbeat(env),
        _dump_file(env),
        _pipe_file(env),
        _timing(env),
        *_forgotten(env),
    ]


def _recorder(env: Mapping[str, str], is_newer: bool) -> Judgement:
    name, value = _given(env, _BUFFER)
    entries = _whole(value)
    cost = "the recorder is off: after a hang nobody can say which rank did not enter the operation"
    if value is None and is_newer:
        return Judgement(name, True, True, f"not set: this PyTorch keeps the last {_DEFAULT_ENTRIES} operations")
    if value is None:
        return Judgement(name, False, True, f"not set, and PyTorch up to 2.8 takes that for 0; {cost}; set it to 2000")
    if entries is None:
        return Judgement(name, False, True, f"{value!r} is no number; PyTorch will not start with it")
    if entries <= 0:
        return Judgement(name, False, True, f"{entries}: {cost}; set it to 2000")
    few = "; so few may not reach back to the operation that is stuck" if entries < _FEW_ENTRIES else ""
    return Judgement(name, True, True, f"the last {entries} operations are kept{few}")


def _dump_on_timeout(env: Mapping[str, str], is_newer: bool) -> Judgement:
    name, value = _given(env, _DUMP)
    cost = "what the recorder holds ends with the process, and no dump is written"
    if _truth(value) is True:
        return Judgement(name, True, True, "on: a time-out writes a dump on every rank")
    if _truth(value) is False:
        return Judgement(name, False, True, f"off: {cost}; set it to 1")
    if value is not None:
        return Judgement(name, False, True, f"{value!r} is neither 0 nor 1; PyTorch will not start with it")
    if is_newer:
        return Judgement(name, True, True, "not set: this PyTorch dumps on a time-out")
    if env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        return Judgement(name, True, True, "not set, and on with TORCH_DISTRIBUTED_DEBUG=DETAIL")
    return Judgement(name, False, True, f"not set, which older releases of PyTorch take for off: {cost}; set it to 1")


def _async_errors(env: Mapping[str, str]) -> Judgement:
    name, value = _given(env, _HANDLING)
    if value is None:
        return Judgement(name, True, True, "not set: an operation that times out ends its process")
    mode = _whole(value)
    if mode == 0:
        return Judgement(
            name,
            False,
            True,
            "0: an operation that times out ends nothing, the job hangs until somebody looks; unset it",
        )
    if mode not in (1, 2, 3):
        return Judgement(name, False, True, f"{value!r} is none of 0, 1, 2, 3")
    if mode == 2:
        return Judgement(
            name, False, False, "2: communicators are aborted and the process lives on, stuck or not; take 3"
        )
    return Judgement(name, True, True, f"{mode}: an operation that times out ends its process")


def _blocking_wait(env: Mapping[str, str]) -> Judgement:
    name, value = _given(env, _BLOCKING)
    if _truth(value) is True:
        return Judgement(
            name,
            False,
            False,
            "on: the host waits in every operation, steps are slower, and errors are not handled beside the loop; unset it",
        )
    return Judgement(name, True, False, "off: the host runs ahead of its operations")


def _monitoring(env: Mapping[str, str]) -> Judgement:
    name, value = _given(env, _MONITORING)
    if _truth(value) is False:
        return Judgement(name, False, False, "off: a process whose watchdog is stuck itself neither dumps nor ends")
    return Judgement(name, True, False, "on: a stuck watchdog is noticed")


def _heartbeat(env: Mapping[str, str]) -> Judgement:
    name, value = _given(env, _HEARTBEAT)
    seconds = _whole(value)
    if value is None:
        return Judgement(name, True, False, "not set: a stuck watchdog is noticed after 8 to 10 minutes")
    if seconds is None or seconds <= 0:
        return Judgement(name, False, False, f"{value!r} is no number of seconds")
    if seconds > _LONG_HEARTBEAT_S:
        return Judgement(name, False, False, f"a stuck watchdog holds the job for {seconds} s before it ends")
    return Judgement(name, True, False, f"a stuck watchdog is noticed after {seconds} s")


def _dump_file(env: Mapping[str, str]) -> Judgement:
    name, value = _given(env, _DUMP_FILE)
    if not value:
        return Judgement(
            name,
            False,
            False,
            "not set: dumps go to /tmp or ~/.cache, in a container lost with it and out of the agent's sight; "
            "set a prefix on a mounted path and name it in flight_recorder_dumps",
        )
    return Judgement(name, True, False, f"dumps are {value}RANK")


def _pipe_file(env: Mapping[str, str]) -> Judgement:
    name, value = _given(env, _PIPE_FILE)
    if not value:
        return Judgement(name, False, False, "not set: a job that is only slow cannot be asked for a dump")
    return Judgement(name, True, False, f"a dump can be asked for through {value}RANK.pipe")


def _timing(env: Mapping[str, str]) -> Judgement:
    name, value = _given(env, _TIMING)
    if _truth(value) is not True:
        return Judgement(
            name,
            False,
            False,
            "off: dumps hold no durations, and an operation that runs looks like one that was never launched",
        )
    return Judgement(name, True, False, "on: dumps tell what has started and how long it took")


def _forgotten(env: Mapping[str, str]) -> list[Judgement]:
    """Settings that are tried once and left behind."""
    found = []
    if env.get("NCCL_DEBUG", "").upper() in {"INFO", "TRACE"}:
        found.append(
            Judgement("NCCL_DEBUG", False, False, f"{env['NCCL_DEBUG']}: every rank writes long logs; WARN will do")
        )
    for name, cost in (
        ("NCCL_P2P_DISABLE", "GPUs of a node talk through host memory instead of NVLink"),
        ("NCCL_SHM_DISABLE", "processes of a node talk through the network instead of shared memory"),
        ("NCCL_IB_DISABLE", "nodes talk through TCP instead of RDMA"),
    ):
        if env.get(name, "0") not in ("", "0"):
            found.append(Judgement(name, False, False, f"{env[name]}: {cost}"))
    return found


def _given(env: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str | None]:
    """The first of these variables that is set, else the first one's name."""
    return next(((name, env[name]) for name in names if name in env), (names[0], None))


def _truth(value: str | None) -> bool | None:
    word = (value or "").strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"\s*-?\d{1,9}\s*", value) else None


def _release(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,3})\.(\d{1,3})", version or "")
    return (int(found[1]), int(found[2])) if found else None

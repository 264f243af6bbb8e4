"""`paceline doctor --job`: which settings of a job's recorder and time-outs are off, and what that costs.

The agent on this node keeps what every rank said of its environment when it registered; it is asked over the trainers'
socket, and tells a user of that user's ranks, root of all. Without an agent the same is read from a file or from this
shell's environment. Other nodes are not asked: a job has one environment, and ranks here that differ are named.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.doctor_check import Check
from paceline.recorder_settings import judged

__all__ = ["DoctorJobError", "ask_agent", "doctor_job_command", "environment_checks", "job_checks", "read_environment"]

_ANSWER_WITHIN_S = 10.0
_MOST_ANSWER_BYTES = 16 << 20
_MOST_FILE_BYTES = 4 << 20
_NAMED_RANKS = 8


class DoctorJobError(Exception):
    """There is nothing to look at; the text says why and what would help."""


def doctor_job_command(
    job_id: str | None,
    socket_path: str | None,
    env_file: Path | None,
    own_environment: bool,
    as_json: bool,
    config: Path | None = None,
) -> int:
    """Look, say, and return 1 when something needed is off, 2 when there was nothing to look at.

    Args:
        job_id: the job; None is every job on this node, if the agent is asked.
        socket_path: the agent's socket; None is that of the agent's settings.
        env_file: a file of variables to look at instead.
        own_environment: look at this process's environment instead.
        as_json: print NDJSON.
        config: the agent's TOML file.
    """
    from agents.settings import SettingsError, load
    from paceline.doctor_command import tell

    try:
        if env_file is not None:
            checks = environment_checks(read_environment(env_file), str(env_file))
        elif own_environment:
            checks = environment_checks(os.environ, "environment")
        else:
            asked = ask_agent(socket_path or load(config, None, os.environ).socket)
            checks = job_checks(asked["ranks"], job_id)
    except (DoctorJobError, SettingsError) as error:
        import typer

        typer.echo(f"paceline: {error}", err=True)
        return 2
    return tell(checks, as_json)


def ask_agent(path: str) -> dict[str, Any]:
    """What the agent of this node knows of the ranks here.

    Raises:
        DoctorJobError: no agent answers.
    """
    if not path:
        raise DoctorJobError("`socket` is empty, so no trainer reports to this agent; look at a file with --env-file")
    text = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_WITHIN_S)
            connection.connect(path)
            connection.sendall(b'{"v":1,"type":"status"}\n')
            while not text.endswith(b"\n") and len(text) < _MOST_ANSWER_BYTES and (chunk := connection.recv(1 << 16)):
                text += chunk
        answer = json.loads(text)
    except OSError as error:
        raise DoctorJobError(
            f"no agent answers at {path}: {error.strerror or error}; give --socket, or look at a file with --env-file"
        ) from None
    except ValueError:
        raise DoctorJobError(f"what answers at {path} is no agent, or one that is older than this question") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("ranks"), list):
        raise DoctorJobError(f"what answers at {path} is no agent")
    return answer


def read_environment(path: Path) -> dict[str, str]:
    """Variables of a file: `NAME=VALUE` lines as of a shell, or `/proc/PID/environ`.

    Raises:
        DoctorJobError: it cannot be read, or holds no variable.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MOST_FILE_BYTES)
    except OSError as error:
        raise DoctorJobError(f"{path}: {error.strerror or error}") from None
    text = raw.decode("utf-8", "replace")
    entries = text.split("\0") if "\0" in text else [_unquoted(line) for line in text.splitlines()]
    found = dict(entry.split("=", 1) for entry in entries if "=" in entry and not entry.startswith("="))
    if not found:
        raise DoctorJobError(f"{path} holds no NAME=VALUE")
    return {name.strip(): value for name, value in found.items()}


def environment_checks(env: Mapping[str, str], place: str, torch_version: str | None = None) -> list[Check]:
    """What the settings of one environment come to; each check is named by the place and the variable."""
    return [Check(f"{place} {j.name}", j.ok, j.needed, j.note) for j in judged(env, torch_version)]


def job_checks(ranks: Iterable[Mapping[str, Any]], job_id: str | None) -> list[Check]:
    """What the settings of the ranks of a job come to.

    Args:
        ranks: as the agent tells them.
        job_id: the job, in its last attempt here; None is every job.

    Raises:
        DoctorJobError: none of them is of the job.
    """
    attempts: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for rank in ranks:
        if job_id is None or rank["job_id"] == job_id:
            attempts.setdefault(rank["job_id"], {}).setdefault(rank["epoch"], []).append(rank)
    if not attempts:
        raise DoctorJobError(
            f"no rank of {'any job' if job_id is None else repr(job_id)} has reported here: on this node, as this user"
        )
    checks = []
    for name, by_epoch in sorted(attempts.items()):
        checks += _attempt_checks(name, by_epoch[max(by_epoch)])
    return checks


def _attempt_checks(job_id: str, ranks: list[Mapping[str, Any]]) -> list[Check]:
    ranks = sorted(ranks, key=lambda rank: int(rank["rank"]))
    connected = sum(bool(rank["connected"]) for rank in ranks)
    there = f"{len(ranks)} ranks have reported here, {connected} are connected"
    checks = [Check(f"job {job_id}", connected > 0 or bool(ranks[0].get("ended")), False, there)]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        settings = [rank.get("nccl_env") or {}, rank.get("torch_version")]
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(rank)
    seen: dict[tuple[str, bool, bool, str], list[int]] = {}
    for alike in groups.values():
        for found in judged(alike[0].get("nccl_env") or {}, alike[0].get("torch_version")):
            key = (found.name, found.ok, found.needed, found.note)
            seen.setdefault(key, []).extend(int(rank["rank"]) for rank in alike)
    for (name, ok, needed, note), of_ranks in seen.items():
        whose = "" if len(of_ranks) == len(ranks) else f" ({_ranks(of_ranks)})"
        checks.append(Check(f"job {job_id} {name}", ok, needed, note + whose))
    return [*checks, *_differences(job_id, ranks)]


def _differences(job_id: str, ranks: list[Mapping[str, Any]]) -> list[Check]:
    """Variables on which ranks of a node differ: a job whose ranks were not started alike."""
    names = sorted({name for rank in ranks for name in rank.get("nccl_env") or {}})
    checks = []
    for name in names:
        by_value: dict[str | None, list[int]] = {}
        for rank in ranks:
            by_value.setdefault((rank.get("nccl_env") or {}).get(name), []).append(int(rank["rank"]))
        if len(by_value) == 1 or len(by_value) == len(ranks) > 2:  # one of each: a value that names its rank
            continue
        told = "; ".join(
            f"{'not set' if value is None else repr(value)} on {_ranks(of_ranks)}"
            for value, of_ranks in by_value.items()
        )
        checks.append(Check(f"job {job_id} {name} is alike", False, False, told))
    return checks


def _ranks(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in sorted(numbers)[:_NAMED_RANKS])
    more = f" and {len(numbers) - _NAMED_RANKS} more" if len(numbers) > _NAMED_RANKS else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _unquoted(line: str) -> str:
    """A line as a shell reads it, without `export`; a comment and what is no assignment give an empty text."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return line.strip()
    if words[:1] == ["export"]:
        words = words[1:]
    return next((word for word in words if "=" in word), "")

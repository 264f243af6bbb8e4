"""The record by which one process can stop or wipe the broker that another one started.

A running broker is recorded as `broker.json` in its data directory: the process to ask, when that process started
(ids are reused), and the address. Stopping asks the broker's own child process, so the process that owns it sees
its broker end and may clean up. Wiping removes only what a broker of ours put there, and never a running broker's.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import psutil

from deploy.brokers.errors import BrokerError, BrokerRunningError, BrokerUsageError
from deploy.brokers.server_properties import DATA_FOLDER, HEADER, LOG_NAME, OLD_LOG_NAME, PROPERTIES_NAME

if TYPE_CHECKING:
    from pathlib import Path

RECORD_NAME = "broker.json"
# The start time of a process is derived from the boot time, which the clock's corrections move a little.
START_TOLERANCE_S = 2.0
KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker that was started on a data directory."""

    kind: str
    pid: int
    """The process to ask with SIGTERM."""
    started_s: float
    """When that process started, Unix seconds."""
    bootstrap_servers: str


def write_record(data_dir: Path, kind: str, pid: int, bootstrap_servers: str) -> None:
    """Records the running process `pid` as this directory's broker."""
    data_dir.mkdir(parents=True, exist_ok=True)
    record = BrokerRecord(kind, pid, psutil.Process(pid).create_time(), bootstrap_servers)
    fresh = data_dir / f"{RECORD_NAME}.{os.getpid()}.tmp"
    fresh.write_text(json.dumps(asdict(record)) + "\n")
    fresh.replace(data_dir / RECORD_NAME)


def read_record(data_dir: Path) -> BrokerRecord | None:
    """The record of a directory, whether its process lives or not; None when there is none.

    Raises:
        BrokerError: The file is there and is not a record.
    """
    path = data_dir / RECORD_NAME
    try:
        fields = json.loads(path.read_text())
        record = BrokerRecord(
            str(fields["kind"]), int(fields["pid"]), float(fields["started_s"]), str(fields["bootstrap_servers"])
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BrokerError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BrokerError(f"{path} is not a broker's record; remove it if no broker runs there") from error
    return record


def clear_record(data_dir: Path) -> None:
    """Removes the record, if there is one."""
    (data_dir / RECORD_NAME).unlink(missing_ok=True)


def running_broker(data_dir: Path) -> BrokerRecord | None:
    """The record of the broker that runs on this directory now, None when none does."""
    record = read_record(data_dir)
    return record if record is not None and _process_of(record) is not None else None


def refuse_if_running(data_dir: Path) -> None:
    """Raises BrokerRunningError when a broker runs on this directory."""
    record = running_broker(data_dir)
    if record is not None:
        raise BrokerRunningError(
            f"a broker runs on {data_dir} already: {record.kind} at {record.bootstrap_servers}, process {record.pid}; "
            "stop it first"
        )


def stop_recorded(data_dir: Path, timeout_s: float = 20.0) -> bool:
    """Stops the broker that runs on a data directory, whichever process started it.

    Args:
        data_dir: The directory it was started on.
        timeout_s: How long it may take after SIGTERM before it is killed.

    Returns:
        True when a broker was stopped, False when none ran.

    Raises:
        BrokerError: The record is unreadable, or the process is not ours to stop.
    """
    record = read_record(data_dir)
    if record is None:
        return False
    process = _process_of(record)
    if process is not None:
        try:
            members = [process, *process.children(recursive=True)]
            process.terminate()
            for member in _still_alive(members, timeout_s):
                member.kill()
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied as error:
            raise BrokerError(f"process {record.pid} belongs to another user; stop it as that user") from error
        if _still_alive([process], KILL_WAIT_S):
            raise BrokerError(f"process {record.pid} does not end; {data_dir} may still be in use")
    clear_record(data_dir)
    return process is not None


def wipe(data_dir: Path) -> bool:
    """Removes a stopped broker's data, configuration and logs, and the directory itself once that leaves it empty.

    Files that no broker of ours made stay.

    Returns:
        True when something was removed, False when there was nothing.

    Raises:
        BrokerRunningError: A broker runs there.
        BrokerUsageError: There are files, and the directory is not one of a broker of ours.
    """
    refuse_if_running(data_dir)
    if not data_dir.is_dir():
        return False
    properties = data_dir / PROPERTIES_NAME
    is_ours = properties.is_file() and properties.read_text(errors="replace").startswith(HEADER)
    if not is_ours and not (data_dir / RECORD_NAME).is_file():
        if any(data_dir.iterdir()):
            raise BrokerUsageError(f"{data_dir} is not a local broker's data directory; nothing was removed")
        return False
    if is_ours and (data_dir / DATA_FOLDER).exists():
        shutil.rmtree(data_dir / DATA_FOLDER)
    # The properties go last: they are what a wipe that was cut short is recognised by.
    for name in (LOG_NAME, OLD_LOG_NAME, RECORD_NAME, PROPERTIES_NAME) if is_ours else (RECORD_NAME,):
        (data_dir / name).unlink(missing_ok=True)
    if not any(data_dir.iterdir()):
        data_dir.rmdir()
    return True


def _process_of(record: BrokerRecord) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        is_same = abs(process.create_time() - record.started_s) <= START_TOLERANCE_S
    except psutil.Error:
        return None
    return process if is_same and _is_alive(process) else None


def _is_alive(process: psutil.Process) -> bool:
    # Ended but not yet collected by its owner counts as ended: an owner may take its time.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _still_alive(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    deadline = time.monotonic() + timeout_s
    while alive := [process for process in processes if _is_alive(process)]:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    return alive

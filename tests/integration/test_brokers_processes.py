"""What becomes of a broker's processes: signals, kills, and another process that stops or wipes it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.brokers.errors import BrokerRunningError
from deploy.brokers.jars import missing_tools
from deploy.brokers.record import running_broker, stop_recorded, wipe

KINDS = ["embedded", "apache"]
FOREGROUND = """
import json, pathlib, sys
from deploy.brokers.errors import BrokerError
from deploy.brokers.foreground import run_foreground
kind, data_dir = sys.argv[1], pathlib.Path(sys.argv[2])
ready = lambda broker: print(json.dumps(broker.bootstrap_servers), flush=True)
try:
    run_foreground(kind, data_dir=data_dir, on_ready=ready)
except BrokerError as error:
    sys.exit(f"failed: {error}")
print("ended", flush=True)
"""


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def broker_pids(data_dir: Path) -> list[int]:
    """The recorded supervisor and what runs below it."""
    record = running_broker(data_dir)
    assert record is not None
    return [record.pid, *(child.pid for child in psutil.Process(record.pid).children(recursive=True))]


@pytest.fixture
def foreground(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a broker in another process, on tmp_path / "data", and waits until it is up."""
    started = []

    def start(kind: str) -> subprocess.Popen[str]:
        if kind == "apache" and (lacks := missing_tools()):
            pytest.skip(f"needs_kafka: {'; '.join(lacks)}")
        process = subprocess.Popen(
            [sys.executable, "-c", FOREGROUND, kind, str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert ":" in json.loads(process.stdout.readline())
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", KINDS)
def test_no_process_is_left_after_the_parent_is_killed(
    kind: str, foreground: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = foreground(kind)
    pids = broker_pids(tmp_path / "data")
    assert len(pids) == (2 if kind == "apache" else 1)

    process.kill()

    assert until(lambda: all(gone(pid) for pid in pids), 20)
    assert running_broker(tmp_path / "data") is None


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", KINDS)
def test_a_foreground_broker_ends_cleanly_on_a_signal_to_its_group(
    kind: str, how: signal.Signals, foreground: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = foreground(kind)
    pids = broker_pids(tmp_path / "data")

    # As a terminal does it: to the whole foreground group, and an impatient second time while it stops.
    os.killpg(process.pid, how)
    if kind == "apache":
        time.sleep(0.05)
    os.killpg(process.pid, how)
    said, complained = process.communicate(timeout=30)

    assert (process.returncode, said, complained) == (0, "ended\n", "")
    assert all(gone(pid) for pid in pids)
    assert running_broker(tmp_path / "data") is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreground_broker_is_stopped_and_wiped_from_another_process(
    kind: str, foreground: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = foreground(kind)
    data_dir = tmp_path / "data"
    pids = broker_pids(data_dir)
    with pytest.raises(BrokerRunningError):
        wipe(data_dir)

    assert stop_recorded(data_dir)

    said, complained = process.communicate(timeout=10)
    assert (process.returncode, said, complained) == (0, "ended\n", "")
    assert all(gone(pid) for pid in pids)
    assert not stop_recorded(data_dir)
    wipe(data_dir)
    assert not (data_dir / "kraft").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreground_broker_that_dies_is_an_error(
    kind: str, foreground: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = foreground(kind)

    psutil.Process(broker_pids(tmp_path / "data")[-1]).kill()

    _, complained = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"failed: the {kind} broker ended by itself" in complained
    assert "Traceback" not in complained


def test_an_interrupt_while_apache_starts_leaves_nothing(tmp_path: Path) -> None:
    if lacks := missing_tools():
        pytest.skip(f"needs_kafka: {'; '.join(lacks)}")
    process = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, "apache", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        log = tmp_path / "broker.log"
        assert until(lambda: log.exists() and log.stat().st_size > 0, 30)
        family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(family) == 2

        process.send_signal(signal.SIGINT)

        assert process.communicate(timeout=30) == ("ended\n", "")
        assert process.returncode == 0
        assert all(gone(pid) for pid in family)
        assert running_broker(tmp_path) is None
    finally:
        process.kill()
        process.communicate()

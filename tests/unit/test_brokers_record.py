"""Stopping and wiping a broker from a process that did not start it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.brokers.errors import BrokerError, BrokerRunningError, BrokerUsageError
from deploy.brokers.record import (
    RECORD_NAME,
    read_record,
    refuse_if_running,
    running_broker,
    stop_recorded,
    wipe,
    write_record,
)
from deploy.brokers.server_properties import HEADER


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield one
    one.kill()
    one.wait()


def a_data_dir(folder: Path) -> Path:
    data_dir = folder / "broker"
    (data_dir / "kraft" / "topic-0").mkdir(parents=True)
    (data_dir / "server.properties").write_text(HEADER + "node.id=1\n")
    (data_dir / "broker.log").write_text("started\n")
    return data_dir


def test_a_record_reads_back(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    write_record(tmp_path, "apache", process.pid, "127.0.0.1:9092")

    record = running_broker(tmp_path)

    assert record is not None
    assert (record.kind, record.pid, record.bootstrap_servers) == ("apache", process.pid, "127.0.0.1:9092")


def test_stopping_ends_the_recorded_process_and_clears_the_record(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    write_record(tmp_path, "apache", process.pid, "127.0.0.1:9092")

    assert stop_recorded(tmp_path, timeout_s=5)

    assert process.wait(5) == -signal.SIGTERM
    assert read_record(tmp_path) is None
    assert not stop_recorded(tmp_path)


def test_a_process_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    deaf = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        write_record(tmp_path, "apache", deaf.pid, "127.0.0.1:9092")

        assert stop_recorded(tmp_path, timeout_s=0.2)

        assert deaf.wait(5) == -signal.SIGKILL
    finally:
        deaf.kill()
        deaf.communicate()


def test_another_process_that_got_the_same_id_is_left_alone(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    write_record(tmp_path, "apache", process.pid, "127.0.0.1:9092")
    path = tmp_path / RECORD_NAME
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "started_s": fields["started_s"] - 3600}))

    assert running_broker(tmp_path) is None
    assert not stop_recorded(tmp_path)
    assert process.poll() is None


def test_a_second_broker_on_the_directory_is_refused_while_the_first_runs(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    write_record(tmp_path, "apache", process.pid, "127.0.0.1:9092")
    with pytest.raises(BrokerRunningError, match=r"127\.0\.0\.1:9092"):
        refuse_if_running(tmp_path)

    process.kill()
    process.wait()

    refuse_if_running(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"kind": "apache"}', '{"kind": 1, "pid": "x"}', "\x00"])
def test_a_damaged_record_is_an_error_and_not_a_traceback(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD_NAME).write_text(text)

    with pytest.raises(BrokerError, match="is not a broker's record"):
        stop_recorded(tmp_path)


def test_nothing_runs_on_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    assert not stop_recorded(tmp_path / "none")
    assert not wipe(tmp_path / "none")


def test_wiping_removes_the_directory_of_a_stopped_broker(tmp_path: Path) -> None:
    data_dir = a_data_dir(tmp_path)

    assert wipe(data_dir)

    assert not data_dir.exists()


def test_wiping_leaves_files_that_are_not_the_brokers(tmp_path: Path) -> None:
    data_dir = a_data_dir(tmp_path)
    (data_dir / "notes.txt").write_text("mine")

    assert wipe(data_dir)

    assert [path.name for path in data_dir.iterdir()] == ["notes.txt"]


def test_wiping_a_running_broker_is_refused(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    data_dir = a_data_dir(tmp_path)
    write_record(data_dir, "apache", process.pid, "127.0.0.1:9092")

    with pytest.raises(BrokerRunningError):
        wipe(data_dir)

    assert (data_dir / "kraft" / "topic-0").is_dir()


def test_wiping_a_directory_that_is_not_a_brokers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kraft").mkdir()
    (tmp_path / "server.properties").write_text("node.id=1\n")

    with pytest.raises(BrokerUsageError, match="not a local broker's"):
        wipe(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["kraft", "server.properties"]


def test_wiping_with_only_a_record_leaves_a_folder_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "kraft").mkdir()
    (tmp_path / RECORD_NAME).write_text('{"kind": "embedded", "pid": 1, "started_s": 0, "bootstrap_servers": "x:1"}')

    assert wipe(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["kraft"]

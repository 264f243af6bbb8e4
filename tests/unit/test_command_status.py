"""The status of a command that could not give its answer: never 1, which is an answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka.errors import KafkaConnectionError
from typer.testing import CliRunner

from paceline.cli import app

if TYPE_CHECKING:
    from typing import IO


def status_of(stdout: IO[bytes] | int, *asked: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "paceline", *asked]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=90, check=False)
    return done.returncode, done.stderr


def test_a_reader_that_went_away_is_told_as_a_shell_tells_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        status, err = status_of(writing, "diagnose", "hang", str(tmp_path))
    finally:
        os.close(writing)
    assert (status, "Traceback" in err) == (141, False)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
@pytest.mark.parametrize("asked", [("diagnose", "hang"), ("decode", "kernel-log")])
def test_a_full_disk_under_stdout_is_one_line_and_no_answer(asked: tuple[str, str], tmp_path: Path) -> None:
    source = tmp_path
    if asked[0] == "decode":
        source = tmp_path / "kern.log"
        source.write_text("[1.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n" * 200)
    with Path("/dev/full").open("wb") as full:
        status, err = status_of(full, *asked, str(source))
    assert (status, err.splitlines()[-1:]) == (2, ["paceline: stdout: No space left on device"])
    assert "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_a_full_disk_under_stderr_does_not_change_the_answer(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "paceline", "replay", str(tmp_path / "nowhere")]
        assert subprocess.run(command, stderr=full, timeout=90, check=False).returncode == 2


def test_where_stdout_was_closed_the_answer_is_the_status(tmp_path: Path) -> None:
    closes_stdout = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", closes_stdout, "-m", "paceline", "diagnose", "hang", str(tmp_path), "--json"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=90, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_a_failure_of_its_own_is_no_bad_answer() -> None:
    fails = "import sys, paceline.cli as cli\ndef fail(): raise ValueError('seven')\ncli.app = fail\ncli.main()\n"
    done = subprocess.run([sys.executable, "-c", fails], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, "ValueError: seven" in done.stderr) == (70, True)


def test_a_worker_without_brokers_says_so_and_is_to_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_brokers(*_: object) -> int:
        raise KafkaConnectionError("Unable to bootstrap")

    monkeypatch.setattr("streams.faust_roles.worker.run_worker", without_brokers)
    ran = CliRunner().invoke(app, ["worker", "--role", "telemetry", "--bootstrap", "kafka:9092"])
    assert (ran.exit_code, ran.stderr) == (70, "paceline: no broker of kafka:9092 answers\n")

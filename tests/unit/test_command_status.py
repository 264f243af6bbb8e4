"""The status of a command that could not give its answer: never 1, which is an answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from typing import IO


def status_of(stdout: IO[bytes] | int, directory: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "paceline", "diagnose", "hang", str(directory)]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=90, check=False)
    return done.returncode, done.stderr


def test_a_reader_that_went_away_is_told_as_a_shell_tells_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        status, err = status_of(writing, tmp_path)
    finally:
        os.close(writing)
    assert (status, "Traceback" in err) == (141, False)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_a_failure_is_no_bad_answer(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        status, err = status_of(full, tmp_path)
    assert (status, "No space left" in err) == (70, True)

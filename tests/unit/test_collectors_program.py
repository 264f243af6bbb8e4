"""Programs that are run for their output: deadlines, limits, and what survives them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from agents.collectors.ethtool import EthtoolIoctl, names_in
from agents.collectors.program import ProgramError, run_program


def test_the_output_is_given_and_the_input_is_empty() -> None:
    assert run_program(["cat"], 5) == b""
    assert run_program(["echo", "a b", "$HOME"], 5) == b"a b $HOME\n"  # no shell


def test_a_program_that_fails_is_an_error_in_its_own_words() -> None:
    with pytest.raises(ProgramError, match="status 3: why not"):
        run_program(["sh", "-c", "echo why not >&2; exit 3"], 5)
    with pytest.raises(ProgramError, match="cannot be run"):
        run_program(["no-such-program-here"], 5)
    with pytest.raises(ProgramError, match="cannot be run"):
        run_program(["echo", "a\0b"], 5)


@pytest.mark.parametrize("script", ["sleep 60", "sleep 60 & wait", "exec >&- 2>&-; sleep 60"])
def test_a_program_that_takes_too_long_is_ended_with_what_it_started(script: str) -> None:
    began = time.monotonic()
    with pytest.raises(ProgramError, match="did not end"):
        run_program(["sh", "-c", script], 0.2)
    assert time.monotonic() - began < 5


def test_a_child_that_is_left_behind_with_the_output_open_is_ended_too(tmp_path: Path) -> None:
    number = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(ProgramError, match="did not end"):
        run_program(["sh", "-c", f"sleep 60 & echo $! > {number}; echo done"], 0.5)
    assert time.monotonic() - began < 5
    status = Path("/proc") / number.read_text().strip() / "status"
    until = time.monotonic() + 5
    while status.exists() and "zombie" not in status.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    assert not status.exists() or "zombie" in status.read_text()


def test_a_program_that_prints_without_end_is_ended() -> None:
    with pytest.raises(ProgramError, match="more than 100000 bytes"):
        run_program(["sh", "-c", "yes"], 10, 100_000)
    assert len(run_program([sys.executable, "-c", "import sys; sys.stderr.write('e' * 300000); print('x')"], 20)) == 2


def test_the_kernel_answers_for_an_interface_that_is_there() -> None:
    source = EthtoolIoctl()
    try:
        names = names_in(source.name_block("lo"))
    except PermissionError:
        pytest.skip("a filter of system calls refuses SIOCETHTOOL")
    assert names == ()  # loopback has no driver's statistics
    with pytest.raises(OSError, match="No such device"):
        source.name_block("no-such-if")
    with pytest.raises(OSError, match="name of 40 bytes"):
        source.numbers("i" * 40, 1)

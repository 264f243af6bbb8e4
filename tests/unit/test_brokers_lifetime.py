"""Children that end with their owner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.brokers.errors import BrokerStartError
from deploy.brokers.lifetime import BoundProcess, last_lines

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]  # fmt: skip
OWNER = """
import sys, time
from deploy.brokers.lifetime import BoundProcess
command = [sys.executable, "-c", "import time; time.sleep(600)"]
child = BoundProcess("deploy.brokers.lifetime", ["--log", sys.argv[1], "--", *command])
print(child.pid, child.greeting(10)["pid"], flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def all_gone(pids: list[int], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, "the command never spoke"
        time.sleep(0.02)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def supervised(log: Path, command: list[str], grace_s: float = 5) -> BoundProcess:
    return BoundProcess("deploy.brokers.lifetime", ["--log", str(log), "--grace-s", str(grace_s), "--", *command])


def test_a_command_runs_until_its_owner_stops_it(log: Path) -> None:
    child = supervised(log, SLEEPER)
    pids = [child.pid, child.greeting(10)["pid"]]
    wait_for(log, "up")
    assert all(is_alive(pid) for pid in pids)

    child.stop(5)

    assert all_gone(pids)
    assert not child.has_failed


def test_a_command_deaf_to_sigterm_is_killed_after_the_grace(log: Path) -> None:
    child = supervised(log, STUBBORN, grace_s=0.3)
    pid = child.greeting(10)["pid"]
    wait_for(log, "deaf")

    child.stop(5)

    assert all_gone([pid])


def test_a_supervisor_that_hangs_is_killed_with_its_command(log: Path) -> None:
    child = supervised(log, SLEEPER)
    pids = [child.pid, child.greeting(10)["pid"]]
    os.kill(child.pid, signal.SIGSTOP)

    child.stop(0.3)

    assert all_gone(pids)


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_that_ends_by_itself_has_failed(log: Path, status: int) -> None:
    child = supervised(log, [sys.executable, "-c", f"raise SystemExit({status})"])
    child.greeting(10)

    assert all_gone([child.pid])
    assert not child.is_running
    assert child.has_failed
    child.stop(1)


@pytest.fixture
def owner(log: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(log)], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def family(owner: subprocess.Popen[str]) -> list[int]:
    assert owner.stdout is not None
    return [int(pid) for pid in owner.stdout.readline().split()]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_owner_dies(owner: subprocess.Popen[str], how: signal.Signals) -> None:
    pids = family(owner)

    owner.send_signal(how)

    assert all_gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="other: PR_SET_PDEATHSIG is Linux's")
def test_the_command_dies_with_a_killed_supervisor(owner: subprocess.Popen[str]) -> None:
    supervisor, command = family(owner)

    os.kill(supervisor, signal.SIGKILL)

    assert all_gone([command])


def test_a_terminals_interrupt_does_not_reach_the_child(owner: subprocess.Popen[str]) -> None:
    supervisor, command = family(owner)

    assert os.getsid(owner.pid) not in {os.getsid(supervisor), os.getsid(command)}
    os.kill(supervisor, signal.SIGINT)
    time.sleep(0.5)
    assert is_alive(supervisor)
    assert is_alive(command)


def test_a_forked_process_that_outlives_the_owner_does_not_keep_the_child(log: Path) -> None:
    # The fork inherits the pipe's writing end, so the child never sees it close.
    program = OWNER.replace("time.sleep(600)\n", "print(os.fork(), flush=True); time.sleep(4)\n").replace(
        "import sys", "import os, sys"
    )
    owner = subprocess.Popen([sys.executable, "-c", program, str(log)], stdout=subprocess.PIPE, text=True)
    try:
        pids = family(owner)
        owner.kill()
        owner.wait()

        assert all_gone(pids, within_s=3)
    finally:
        owner.communicate()


def test_a_command_that_does_not_exist_is_named(log: Path) -> None:
    child = supervised(log, ["/no/such/program"])
    with pytest.raises(BrokerStartError, match="/no/such/program"):
        child.greeting(10)
    child.stop(1)


def test_a_silent_child_is_not_waited_for_longer_than_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent_child.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = BoundProcess("silent_child")
    with pytest.raises(BrokerStartError, match=r"0\.2 s"):
        child.greeting(0.2)
    child.stop(0.1)


def test_a_folder_named_deploy_in_the_working_directory_does_not_shadow_the_package(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)

    child = supervised(log, SLEEPER)

    assert "pid" in child.greeting(10)
    child.stop(5)


def test_the_last_lines_are_the_last() -> None:
    assert last_lines("\n".join(str(n) for n in range(100)), 3) == "97\n98\n99"
    assert last_lines("", 3) == ""

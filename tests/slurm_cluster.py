"""A Slurm cluster of this machine's own: munged, slurmctld and some slurmds from Debian's packages, all in one directory.

Nodes share the machine (`slurmd -N`), processes are followed without cgroups, and a reboot writes a line into a file. It
touches nothing of a Slurm that may be installed here, and what it started is ended with it.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self

from free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["SlurmCluster"]

WAIT_S = 60.0

CONFIGURATION = """\
ClusterName=paceline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=0
SchedulerParameters=batch_sched_delay=1,sched_min_interval=200000
SlurmdParameters=config_overrides
RebootProgram={home}/reboot.sh
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class SlurmCluster:
    """A cluster; as a context manager it is started on entry and ended on exit.

    Args:
        home: its directory. Sockets are in it, so its name must be short.
        nodes: names of its nodes, each of one CPU.
    """

    def __init__(self, home: Path, nodes: tuple[str, ...]) -> None:
        self.home, self.nodes = home, nodes
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(home / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._write()
            self._start_munged()
            self.start_controller()
            for node in self.nodes:
                self._start("slurmd-" + node, "slurmd", "-D", "-N", node)
            self.until(lambda: all(self.state(node) == "IDLE" for node in self.nodes), "all nodes idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if "slurmctld" in self._processes and self._processes["slurmctld"].poll() is None:
            # What slurmd started for jobs is not its child, and would outlive it.
            self.run("scancel", "--full", "-u", getpass.getuser())
            deadline_s = time.monotonic() + 10
            while self.run("squeue", "-h").stdout.strip() and time.monotonic() < deadline_s:
                time.sleep(0.1)
        for name in reversed(self._processes):
            self.end(name)

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self._start("slurmctld", "slurmctld", "-D")
        self.until(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld answers")

    def end(self, name: str) -> None:
        """End one of its processes: `slurmctld`, `munged`, `slurmd-NODE`."""
        process = self._processes[name]
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs against this cluster."""
        return subprocess.run(arguments, capture_output=True, text=True, env=self.environment, timeout=30, check=False)

    def told(self, *arguments: str) -> str:
        """What a program said that must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout} {done.stderr}"
        return done.stdout

    def node(self, name: str) -> str:
        """A node's record, on one line."""
        return self.told("scontrol", "show", "node", name, "-o")

    def state(self, name: str) -> str:
        """A node's state, as `IDLE+DRAIN`."""
        found = re.search(r" State=(\S+)", self.node(name))
        return found[1] if found else ""

    def reason(self, name: str) -> str:
        """Why a node is out; empty when it is not."""
        found = re.search(r" Reason=(.*) \[", self.node(name))
        return found[1] if found else ""

    def job(self, number: str, field: str) -> str:
        """A field of a job's record."""
        found = re.search(rf"(?:^| ){field}=(\S*)", self.told("scontrol", "show", "job", number, "-o"))
        assert found is not None
        return found[1]

    def submit(self, *options: str) -> str:
        """Submit a job that sleeps, and wait until it runs; its number."""
        said = self.told("sbatch", "-o", "/dev/null", "--wrap", "sleep 600", *options)
        number = said.split()[-1]
        self.until(lambda: self.job(number, "JobState") == "RUNNING", f"job {number} runs")
        return number

    def reboots(self) -> list[str]:
        """One line for each run of the reboot program."""
        file = self.home / "reboots"
        return file.read_text().splitlines() if file.exists() else []

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait until something holds."""
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended with {process.returncode}\n{self._log(name)}"
            assert time.monotonic() < deadline_s, f"not within {timeout_s:.0f} s: {what}"
            time.sleep(0.1)

    def _write(self) -> None:
        ports = free_ports(1 + len(self.nodes))
        text = CONFIGURATION.format(host=socket.gethostname(), ports=ports, home=self.home, user=getpass.getuser())
        for index, node in enumerate(self.nodes):
            text += (
                f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[1 + index]} "
                "CPUs=1 RealMemory=100\n"
            )
        (self.home / "slurm.conf").write_text(text)
        (self.home / "state").mkdir()
        script = self.home / "reboot.sh"
        script.write_text(f"#!/bin/sh\necho reboot >> {self.home}/reboots\n")
        script.chmod(0o755)
        key = self.home / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    def _start_munged(self) -> None:
        home = self.home
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={home}/munge.{name}" for option, name in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        self.until((home / "munge.socket").exists, "munged listens")

    def _start(self, name: str, program: str, *arguments: str) -> None:
        path = _found(program)
        assert path is not None
        with (self.home / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [path, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment
            )

    def _log(self, name: str) -> str:
        return (self.home / f"{name}.out").read_text(errors="replace")[-2000:]

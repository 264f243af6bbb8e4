"""A trainer without a model: ranks in lockstep, a sum in place of gradients, asynchronous checkpoints, dumps when asked.

One process a node. All meet once a step at the process of rank 0, as in an all-reduce; whose peer has gone ends with status 3.
What a step computes depends on all steps before it, so that `total` tells whether each was done once. A checkpoint is taken at a
step and written by a thread: shards first, and the marker once every rank has said that its shard is on the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import socket
import sys
import threading
import time
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.job_controller.checkpoints import Checkpoints
from deploy.job_controller.files import write_whole
from deploy.job_controller.trainer_files import TrainerFiles

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Trainer", "expected_total"]

_PEER_GONE = 3
_MEET_S = 60.0
_KEEP = 3
_MODULUS = 2**61 - 1


def contribution(step: int, rank: int) -> int:
    """What a rank brings to the sum of a step."""
    return (step * 7919 + rank * 104729) % 10007


def next_total(total: int, reduced: int) -> int:
    """The model after a step: no step can be left out, or be done twice, without another result."""
    return (total * 31 + reduced) % _MODULUS


def expected_total(steps: int, world: int) -> int:
    """The model after so many steps, each done once, in order."""
    total = 0
    for step in range(1, steps + 1):
        total = next_total(total, sum(contribution(step, rank) for rank in range(world)))
    return total


class Meeting:
    """Where the processes of one epoch meet: one line from each peer, one line to all.

    Args:
        name: tells the epoch and the run from all others of this machine.
        processes: how many there are.
        is_host: this one is where the others come to.
    """

    def __init__(self, name: str, processes: int, is_host: bool) -> None:
        address = f"\0paceline-stub-{name}"
        self._peers: list[Any] = []
        if is_host:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen(processes)
                listener.settimeout(_MEET_S)
                self._peers = [listener.accept()[0].makefile("rw") for _ in range(processes - 1)]
            return
        deadline = time.monotonic() + _MEET_S
        while True:
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(address)
                break
            except OSError:
                link.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        self._peers = [link.makefile("rw")]

    def gather(self) -> list[dict[str, Any]]:
        """One message of every peer.

        Raises:
            ConnectionError: one has gone.
        """
        found = []
        for peer in self._peers:
            line = peer.readline()
            if not line.endswith("\n"):
                raise ConnectionError("a peer has gone")
            found.append(json.loads(line))
        return found

    def tell(self, message: dict[str, Any]) -> None:
        """One message to every peer."""
        for peer in self._peers:
            peer.write(json.dumps(message) + "\n")
            peer.flush()


class Writer:
    """Writes to the disk behind the steps, one thing after another."""

    def __init__(self) -> None:
        self.durable = -1
        """Step of the last checkpoint whose shards of this process are on the disk."""
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def do(self, work: Callable[[], None]) -> None:
        """Do it later, in order."""
        self._work.put(work)

    def finish(self) -> None:
        """Wait for all of it."""
        done = threading.Event()
        self._work.put(done.set)
        done.wait()

    def _run(self) -> None:
        while True:
            self._work.get()()


class Trainer:
    """The process of one node.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._run_dir: Path = arguments.run_dir
        self._ranks = [int(rank) for rank in arguments.ranks.split(",")]
        self._world, self._epoch = arguments.world, arguments.epoch
        self._every, self._step_s = arguments.checkpoint_every, arguments.step_s
        self._is_host = 0 in self._ranks
        self._checkpoints = Checkpoints(self._run_dir / "checkpoints")
        self._writer = Writer()
        self._files = TrainerFiles(self._run_dir)
        self._pending: list[int] = []
        self.step, self.total = 0, 0
        latest = self._checkpoints.latest()
        if latest is not None:
            shard = json.loads(self._checkpoints.read(latest, f"rank-{self._ranks[0]}.json"))
            self.step, self.total = shard["step"], shard["total"]
        if self._is_host:
            self._checkpoints.drop_behind(latest)
            self._files.cut_log(self.step)
        name = f"{zlib.crc32(str(self._run_dir.resolve()).encode()):08x}-{self._epoch}"
        self._meeting = Meeting(name, arguments.nodes, self._is_host)

    def run(self) -> None:
        """Steps until the file `finish` is there; then a last checkpoint, waited for."""
        is_last = False
        while not is_last:
            said = self._met(self.step + 1)
            self.step, is_last = self.step + 1, said["is_last"]
            self.total = next_total(self.total, said["reduced"])
            if self._is_host:
                self._files.write_step(step=self.step, epoch=self._epoch, total=self.total)
            if said["has_checkpoint"]:
                self._save()
            time.sleep(self._step_s)
        self._writer.finish()
        while self._met(self.step)["durable"] < self.step:
            time.sleep(self._step_s)
        self._writer.finish()

    def dump(self) -> None:
        """Write down where this process stands, as a flight recorder would: one file a rank."""
        for rank in self._ranks:
            entry = {"collective_seq_id": self.step + 1, "profiling_name": "stub:all_reduce", "state": "started"}
            dump = {"version": "stub", "rank": rank, "epoch": self._epoch, "entries": [entry]}
            write_whole(self._run_dir / "dumps" / f"stub_rank_{rank}", json.dumps(dump).encode())

    def _met(self, step: int) -> dict[str, Any]:
        """Meet all others once: the sum of the step, and what is to be done behind it."""
        mine = sum(contribution(step, rank) for rank in self._ranks)
        if not self._is_host:
            self._meeting.tell({"mine": mine, "durable": self._writer.durable})
            return self._meeting.gather()[0]
        others = self._meeting.gather()
        durable = min([self._writer.durable, *(other["durable"] for other in others)])
        is_last = self._files.is_to_finish()
        said = {
            "reduced": mine + sum(other["mine"] for other in others),
            "durable": durable,
            "is_last": is_last,
            "has_checkpoint": is_last or step % self._every == 0 or self._files.is_checkpoint_asked(),
        }
        self._meeting.tell(said)
        while self._pending and self._pending[0] <= durable:
            self._writer.do(partial(self._complete, self._pending.pop(0)))
        return said

    def _save(self) -> None:
        """Take a checkpoint of this step; it is written while the next steps run."""
        step, total = self.step, self.total
        if self._is_host:
            self._pending.append(step)

        def write() -> None:
            for rank in self._ranks:
                payload = json.dumps({"step": step, "total": total, "rank": rank}).encode()
                self._checkpoints.write(step, f"rank-{rank}.json", payload)
            self._writer.durable = step

        self._writer.do(write)

    def _complete(self, step: int) -> None:
        self._checkpoints.complete(step, [f"rank-{rank}.json" for rank in range(self._world)])
        self._checkpoints.keep(_KEEP)


def main() -> int:
    """0 when told to finish, 3 when a peer has gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--ranks", required=True)
    for name in ("world", "nodes", "epoch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.005)
    arguments = parser.parse_args()
    try:
        trainer = Trainer(arguments)
        signal.signal(signal.SIGUSR1, lambda *_: trainer.dump())
        trainer.run()
    except (ConnectionError, TimeoutError):
        return _PEER_GONE
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

"""A PyTorch trainer under the contract: one `torchrun` a node, checkpoints written behind the steps by `async_save`.

It keeps the rules of `stub_trainer`: a start from the step it is told, a marker once every rank's part is on the disk, a checkpoint when
one is asked for, a log that goes on behind the checkpoint. `seen` counts steps in the model itself. Collectives of a save have a group
of their own, or they would meet those of the steps.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import time
from pathlib import Path
from typing import Any

from deploy.job_controller.checkpoints import Checkpoints
from deploy.job_controller.trainer_files import TrainerFiles
from deploy.job_controller.workers import LOCK_VARIABLE

__all__ = ["Trainer"]

_WIDTH = 8


class Trainer:
    """The process of one rank.

    Args:
        run_dir: the job's directory, which all nodes see.
        epoch: which start of the job it is.
        step: the checkpoint that it goes on from; 0 is the beginning.
        every: steps from one checkpoint to the next.
    """

    def __init__(self, run_dir: Path, epoch: int, step: int, every: int) -> None:
        # No dependency of this package: the training environment's own.
        self._torch: Any = importlib.import_module("torch")
        self._distributed: Any = importlib.import_module("torch.distributed")
        self._dcp: Any = importlib.import_module("torch.distributed.checkpoint")
        self._epoch, self._every, self.step = epoch, every, step
        self._checkpoints = Checkpoints(run_dir / "checkpoints")
        self._files = TrainerFiles(run_dir)
        self._distributed.init_process_group("gloo")
        self._rank, self._world = self._distributed.get_rank(), self._distributed.get_world_size()
        self._saving = self._distributed.new_group(backend="gloo")
        self._model: Any = self._torch.nn.Linear(_WIDTH, _WIDTH)
        self._model.register_buffer("seen", self._torch.zeros((), dtype=self._torch.int64))
        self._optimizer = self._torch.optim.SGD(self._model.parameters(), lr=0.01)
        for parameter in self._model.parameters():
            self._distributed.broadcast(parameter.data, 0)
        if step:
            state = {"model": self._model.state_dict()}
            self._dcp.load(state, checkpoint_id=str(self._checkpoints.place(step)))
            self._model.load_state_dict(state["model"])
        if self._rank == 0:
            self._checkpoints.drop_behind(step or None)
            self._files.cut_log(step)
        self._distributed.barrier()
        self._save: tuple[int, Any] | None = None

    def run(self, step_s: float) -> None:
        """Steps until the file `finish` is there; then a last checkpoint, waited for."""
        is_last = is_wanted = False
        while not is_last:
            self.step += 1
            self._train()
            finish, asked, written = self._agreed()
            is_last, is_wanted = finish > 0, is_wanted or asked > 0 or self.step % self._every == 0
            if self._save is not None and (written == self._world or is_last):
                self._complete()
            if self._save is None and (is_wanted or is_last):
                self._begin_save()
                is_wanted = False
            time.sleep(step_s)
        self._complete()
        self._distributed.destroy_process_group()

    def _train(self) -> None:
        torch, distributed = self._torch, self._distributed
        generator = torch.Generator().manual_seed(self.step * self._world + self._rank)
        loss = (self._model(torch.randn(4, _WIDTH, generator=generator)) ** 2).mean()
        self._optimizer.zero_grad()
        loss.backward()
        for parameter in self._model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= self._world
        self._optimizer.step()
        self._model.seen += 1
        if self._rank == 0:
            self._files.write_step(step=self.step, epoch=self._epoch, seen=int(self._model.seen))

    def _agreed(self) -> tuple[int, int, int]:
        """What rank 0 sees of the run directory, and how many ranks have their part of the save on the disk."""
        is_first = self._rank == 0
        flags = [
            int(is_first and self._files.is_to_finish()),
            int(is_first and self._files.is_checkpoint_asked()),
            int(self._save is not None and self._save[1].done()),
        ]
        told = self._torch.tensor(flags)
        self._distributed.all_reduce(told)
        finish, asked, written = told.tolist()
        return finish, asked, written

    def _begin_save(self) -> None:
        place = self._checkpoints.place(self.step)
        # On the CPU a save writes from the tensors themselves, and the next step changes those.
        state = {"model": {name: value.detach().clone() for name, value in self._model.state_dict().items()}}
        self._save = self.step, self._dcp.async_save(state, checkpoint_id=str(place), process_group=self._saving)

    def _complete(self) -> None:
        """Every rank's part is written, or is waited for; then rank 0 says that the checkpoint is whole."""
        if self._save is None:
            return
        step, future = self._save
        future.result()
        self._distributed.barrier()
        if self._rank == 0:
            shards = [path.name for path in self._checkpoints.place(step).iterdir()]
            self._checkpoints.complete(step, shards)
            self._checkpoints.keep(3)
        self._save = None


def main() -> None:
    """Train until told to finish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    for name in ("epoch", "step"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.005)
    arguments = parser.parse_args()
    if LOCK_VARIABLE in os.environ:
        # torchrun's ranks inherit no files; held until the process ends.
        fcntl.flock(os.open(os.environ[LOCK_VARIABLE], os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
    importlib.import_module("torch").set_num_threads(1)
    Trainer(arguments.run_dir, arguments.epoch, arguments.step, arguments.checkpoint_every).run(arguments.step_s)


if __name__ == "__main__":
    main()

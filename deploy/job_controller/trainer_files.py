"""What a trainer under the contract reads and writes in its job's run directory, apart from its checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deploy.job_controller.controller import CHECKPOINT_REQUEST
from deploy.job_controller.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TrainerFiles"]


class TrainerFiles:
    """The files of one process of a trainer.

    Args:
        run_dir: the job's directory, which all nodes see.
    """

    def __init__(self, run_dir: Path) -> None:
        self._finish, self._wish, self._log = (run_dir / name for name in ("finish", CHECKPOINT_REQUEST, "steps.log"))
        self._request = b""

    def is_to_finish(self) -> bool:
        """Whether the job is told to come to its end."""
        return self._finish.exists()

    def is_checkpoint_asked(self) -> bool:
        """Whether the controller asks for a checkpoint that it has not asked for here before."""
        try:
            request = self._wish.read_bytes()
        except FileNotFoundError:
            return False
        is_new, self._request = request != self._request, request
        return is_new

    def write_step(self, **line: int) -> None:
        """Write a step down."""
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def cut_log(self, steps: int) -> None:
        """The log goes on behind the checkpoint: steps that are done again were lost."""
        if self._log.exists():
            write_whole(self._log, b"".join(self._log.read_bytes().splitlines(keepends=True)[:steps]))

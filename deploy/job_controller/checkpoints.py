"""Checkpoints of a job: a directory a step, a file a shard, and a marker that is written last.

Guarantees: what has a marker is whole; an end at any moment, of a writer too, leaves the one before it as it was. A checkpoint
whose shards are not as the marker says is passed over. Nothing here knows what is in a shard.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from deploy.job_controller.files import read_object, sync_directory, write_object, write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Checkpoints"]

_MARKER = "complete.json"
_NAME = re.compile(r"step-(\d{1,12})", re.ASCII)


class Checkpoints:
    """The checkpoints in a directory, which all nodes see.

    Args:
        directory: made with the first shard.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def latest(self) -> int | None:
        """Step of the latest whole one; None without any."""
        return next((step for step in self._steps() if self._is_whole(step)), None)

    def read(self, step: int, shard: str) -> bytes:
        """A shard of a whole checkpoint."""
        return (self.place(step) / shard).read_bytes()

    def write(self, step: int, shard: str, payload: bytes) -> None:
        """Put a shard on the disk."""
        self.place(step).mkdir(parents=True, exist_ok=True)
        sync_directory(self._directory)
        write_whole(self.place(step) / shard, payload)

    def complete(self, step: int, shards: Sequence[str]) -> None:
        """Say that a checkpoint is whole: every shard is on the disk, whoever wrote it."""
        sizes = {shard: (self.place(step) / shard).stat().st_size for shard in shards}
        write_object(self.place(step) / _MARKER, {"step": step, "bytes_by_shard": sizes})

    def drop_behind(self, step: int | None) -> None:
        """Take away what comes after a step: parts that a run left which ended before they were whole."""
        for other in self._steps():
            if step is None or other > step:
                shutil.rmtree(self.place(other))

    def keep(self, count: int) -> None:
        """Take away all but the latest whole ones, and what is older than those."""
        whole = [step for step in self._steps() if self._is_whole(step)][:count]
        for step in self._steps():
            if len(whole) == count and step < whole[-1]:
                # Without its marker it is no checkpoint, should this end half way.
                (self.place(step) / _MARKER).unlink(missing_ok=True)
                shutil.rmtree(self.place(step))

    def _is_whole(self, step: int) -> bool:
        marker = read_object(self.place(step) / _MARKER)
        sizes = marker.get("bytes_by_shard") if marker is not None else None
        if not isinstance(sizes, dict) or not sizes:
            return False
        try:
            return all((self.place(step) / str(shard)).stat().st_size == size for shard, size in sizes.items())
        except OSError:
            return False

    def _steps(self) -> list[int]:
        """Steps that have a directory, latest first."""
        if not self._directory.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in self._directory.iterdir())
        return sorted((int(name[1]) for name in names if name is not None), reverse=True)

    def place(self, step: int) -> Path:
        """The directory of a checkpoint."""
        return self._directory / f"step-{step:08d}"

"""A bar on stderr with the remaining time, where that is a terminal; nothing elsewhere, so that logs stay short."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress

__all__ = ["ProgressBar"]


class ProgressBar:
    """Shows how far something has come.

    Args:
        name: what goes on.
        total: where it ends, in whatever it counts; null when nobody knows.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self._name, self._total = name, total
        self._progress: Progress | None = None

    def reach(self, completed: int, detail: str = "") -> None:
        """Say how far it has come."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=completed, detail=detail)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[detail]}"),
                console=Console(stderr=True),
            )
            self._progress.add_task(self._name, total=self._total, detail="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

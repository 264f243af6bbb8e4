"""A replay into a file that goes on where it stood: what is gathered into its checkpoints, and what is done with the last one.

Between two records the input that was read, the outputs that were written and the state of the engines belong together; only then
a checkpoint is taken. One that cannot be used, or written, is told and costs time alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from paceline.replay_checkpoint import Checkpoint, CheckpointPace, UnusableCheckpointError, checkpoint_of

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.replay_output import ReplayOutput
    from paceline.replay_source import ArchiveSource, KafkaSource
    from streams.engines.pipeline import Pipeline
    from streams.replay import Problems

__all__ = ["Resumption"]


class Resumption:
    """The checkpoints of one replay.

    Args:
        path: the file of its outputs.
        of: all that decides what it says, by name.
        source: what is read.
        output: what takes its outputs.
        pipeline: what judges.
        problems: what could not be used.
        pace: when a checkpoint is due.
    """

    def __init__(
        self,
        path: Path,
        of: dict[str, Any],
        source: ArchiveSource | KafkaSource,
        output: ReplayOutput,
        pipeline: Pipeline,
        problems: Problems,
        pace: CheckpointPace,
    ) -> None:
        self._output_path, self._path, self._of = path, checkpoint_of(path), of
        self._source, self._output, self._pipeline, self._problems = source, output, pipeline, problems
        self._pace = pace
        self._has_failed = False

    def go_on(self) -> None:
        """Take up where the last checkpoint stands, if there is one of this replay; else begin anew, and say why."""
        try:
            found = Checkpoint.read(self._path, self._of)
        except UnusableCheckpointError as error:
            self._tell(f"{error}; begins anew and holds {self._output_path} against what it says")
            return
        if found is None:
            return
        if not self._output.go_on_behind(found.said):
            self._tell(f"{self._output_path} does not begin with the outputs that it counts; begins anew")
            return
        self._pipeline.restore(found.pipeline)
        self._problems.bad_lines[:] = found.problems["bad_lines"]
        self._problems.counts.update(found.problems["counts"])
        self._source.go_on(found.position)
        self._tell(f"goes on behind line {found.position['line']}")

    def look(self) -> None:
        """Write a checkpoint if one is due; asked between two records.

        Raises:
            OSError: the outputs cannot be written.
        """
        if not self._pace.is_due():
            return
        position = self._source.position
        if position is not None:
            said = self._output.on_disk()
            problems = {"bad_lines": self._problems.bad_lines, "counts": dict(self._problems.counts)}
            try:
                Checkpoint(self._of, position, said, problems, self._pipeline.snapshot()).write(self._path)
            except (OSError, TypeError) as error:
                if not self._has_failed:
                    why = getattr(error, "strerror", None) or error
                    self._tell(f"{why}; what is interrupted goes on from an earlier one, or begins anew")
                self._has_failed = True
        self._pace.done()

    def remove(self) -> None:
        """The replay has ended, or begins without a look at what was before."""
        self._path.unlink(missing_ok=True)

    def _tell(self, text: str) -> None:
        typer.echo(f"paceline: {self._path}: {text}", err=True)

"""One trainer log read to its end: its steps, and whose they are if its name tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.decode import steps
from agents.decode.record import Damaged, Tally, UnknownFormat
from agents.importers.op_trace import ImportFailedError
from agents.importers.step_lines import Report, StepLines, WallClock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["StepLog"]


class StepLog(StepLines):
    """One log file, read to its end.

    Args:
        path: the file.
        clock: wall times of its lines.
        tokens_per_gpu: as for `StepLines`.
        report: as for `StepLines`.

    Raises:
        ImportFailedError: it cannot be read.
    """

    def __init__(self, path: Path, clock: WallClock, tokens_per_gpu: float | None, report: Report) -> None:
        super().__init__(clock, tokens_per_gpu, report)
        self.path = path
        report.files += 1
        try:
            with path.open("rb") as stream:
                for record in steps.decode(stream, Tally()):
                    self.take(record)
        except OSError as error:
            raise ImportFailedError(f"{path}: {error.strerror or error}") from None
        except UnknownFormat:
            report.foreign += 1
        except Damaged as error:
            raise ImportFailedError(f"{path}: {error.reason}") from None
        self.leave_out_unknown()
        report.restarts += self.restarts

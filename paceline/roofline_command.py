"""`paceline diagnose roofline`: which regime each GPU and each job of an archive was in, from DCGM's profiling ratios.

Guarantees: means over all frames of the archive in which a ratio was read, an unread one never counted as zero; a GPU's
job is that of its latest placement. Nothing of it runs in the telemetry path. Deliberately not: phases. A job that
alternates between two regimes shows their mean; take a shorter recording.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

import typer

from agents.decode.driver import encode
from paceline.one_line import one_line
from schemas.archive import ArchiveLine, NotAnArchiveError, decode_line, read_archive
from schemas.errors import SchemaError
from schemas.fleet import Job, RankPlacement
from schemas.frames import GpuFrame
from schemas.gpu_parts import find
from streams.profiles.roofline import Activity, ActivityRegime, activity_regime, job_regime, roof_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agents.decode.record import Record

__all__ = ["Tallies", "roofline_command"]

_RATIOS: Final = ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")
_GpuKey = tuple[str, str]


def roofline_command(archive: Path, as_json: bool, precision: str) -> int:
    """Lists GPUs and jobs with their regime; 0 when all of the archive could be read, 2 when not or when no frame has a ratio."""
    tallies = Tallies(precision)
    unusable = 0
    status = 0
    try:
        for line in read_archive(archive):
            if not isinstance(line, ArchiveLine):
                unusable += 1
                continue
            try:
                tallies.take(line)
            except SchemaError:
                unusable += 1
    except NotAnArchiveError as error:
        typer.echo(f"paceline: {error}", err=True)
        status = 2
    if unusable:
        typer.echo(f"{unusable} lines could not be read and are in no figure", err=True)
        status = 2
    found = list(tallies.records())
    if not found and status == 0:
        typer.echo(
            "paceline: no frame of the archive has a profiling ratio (DCGM fields 1002, 1004 and 1005)", err=True
        )
        return 2
    for record in found:
        if as_json:
            sys.stdout.buffer.write(encode(record))
        else:
            print(one_line(_line(record)))
    sys.stdout.flush()
    return status


@dataclass(slots=True)
class _Gpu:
    """Running sums of one GPU's ratios."""

    index: int | None = None
    sku: str | None = None
    sums: list[float] = field(default_factory=lambda: [0.0] * len(_RATIOS))
    counts: list[int] = field(default_factory=lambda: [0] * len(_RATIOS))

    def activity(self) -> Activity:
        means = [total / count if count else None for total, count in zip(self.sums, self.counts, strict=True)]
        return Activity(*means)


class Tallies:
    """Ratios by GPU, and which job a GPU belongs to."""

    def __init__(self, precision: str) -> None:
        """Takes the precision of the peak for GPUs whose job is not known."""
        self._precision = precision
        self._gpus: dict[_GpuKey, _Gpu] = {}
        self._job_by_gpu: dict[_GpuKey, tuple[int, str]] = {}
        self._jobs: dict[str, Job] = {}

    def take(self, line: ArchiveLine) -> None:
        """Takes a line; those of other topics are passed over.

        Raises:
            SchemaError: The record is not one of its topic.
        """
        if ".gpu-frames." not in line.topic and ".jobs." not in line.topic:
            return
        record = decode_line(line)
        if isinstance(record, GpuFrame):
            self._take_frame(record)
        elif isinstance(record, Job):
            self._jobs[record.job_id] = record
        elif isinstance(record, RankPlacement):
            for device in record.gpu_uuid:
                if device is not None:
                    known = self._job_by_gpu.get((record.node_id, device))
                    if known is None or known[0] <= record.effective_from_ns:
                        self._job_by_gpu[(record.node_id, device)] = (record.effective_from_ns, record.job_id)

    def _take_frame(self, frame: GpuFrame) -> None:
        columns = [getattr(frame, name) for name in _RATIOS]
        for row, device in enumerate(frame.gpu_uuid):
            index = frame.gpu_index[row] if frame.gpu_index is not None else None
            gpu = self._gpus.setdefault(
                (frame.node_id, device or f"index {index if index is not None else row}"), _Gpu()
            )
            gpu.index = index if index is not None else gpu.index
            gpu.sku = (frame.sku[row] if frame.sku is not None else None) or gpu.sku
            for which, column in enumerate(columns):
                value = column[row] if column is not None else None
                if value is not None:
                    gpu.sums[which] += value
                    gpu.counts[which] += 1

    def records(self) -> Iterator[Record]:
        """A `gpu_regime` per GPU of which a ratio was read, by node and device, then a `job_regime` per job."""
        by_job: defaultdict[str, list[tuple[Activity, ActivityRegime]]] = defaultdict(list)
        for (node_id, device), gpu in sorted(self._gpus.items()):
            if not any(gpu.counts):
                continue
            job_id = self._job_by_gpu.get((node_id, device), (0, None))[1]
            job = self._jobs.get(job_id) if job_id is not None else None
            sku = gpu.sku or (job.sku if job is not None else None)
            roof = roof_of(find(sku) if sku else None, job.precision if job is not None else self._precision)
            activity = gpu.activity()
            regime = activity_regime(activity, roof)
            if job_id is not None:
                by_job[job_id].append((activity, regime))
            yield {
                "kind": "gpu_regime",
                "node_id": node_id,
                "device": device,
                "gpu_index": gpu.index,
                "job_id": job_id,
                "part": roof.part,
                "precision": roof.precision,
                "frames": max(gpu.counts),
                **asdict(activity),
                **asdict(regime),
            }
        for job_id, gpus in sorted(by_job.items()):
            yield {"kind": "job_regime", "job_id": job_id, **asdict(job_regime(gpus))}


def _line(record: Record) -> str:
    if record["kind"] == "job_regime":
        counts = ", ".join(f"{count} {name}" for name, count in record["counts"].items())
        return f"job {record['job_id']}: {record['regime']} ({record['gpus']} GPUs: {counts})"
    device = f"GPU {record['gpu_index']}" if record["gpu_index"] is not None else record["device"]
    work = (
        ""
        if record["tensor_tflops"] is None
        else f"; at most {record['tensor_tflops']:,.0f} TFLOP/s {record['precision']}"
    )
    traffic = "" if record["dram_gb_s"] is None else f", {record['dram_gb_s']:,.0f} GB/s"
    return f"{record['node_id']} {device}: {record['regime']}: {record['reason']}{work}{traffic}"

"""A regime says whether arithmetic or memory sets the pace; an unknown part or ratio gives no figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.roofline_command import roofline_command
from schemas.archive import ArchiveWriter
from schemas.gpu_parts import find
from streams.profiles.roofline import (
    MEMORY_BUSY,
    SM_BUSY,
    TENSOR_BUSY,
    Activity,
    Roof,
    activity_regime,
    job_regime,
    roof_of,
    work_regime,
)
from tests.factories import H100, START_NS, job, placement, uuid_of
from tests.factories import gpu_frame as frame

ROOF = Roof(1000.0, 4000.0, "bf16", "part")


@pytest.mark.parametrize(
    ("sm", "tensor", "dram", "regime"),
    [
        (0.95, 0.7, 0.4, "compute"),
        (0.95, TENSOR_BUSY, TENSOR_BUSY, "compute"),
        (0.95, 0.6, 0.8, "memory"),
        (0.9, 0.1, MEMORY_BUSY, "memory"),
        (0.9, 0.1, 0.2, "latency"),
        (SM_BUSY, 0.1, 0.2, "latency"),
        (0.49, 0.1, 0.2, "idle"),
        (0.0, 0.0, 0.0, "idle"),
        (None, 0.7, None, "compute"),
        (None, None, 0.7, "memory"),
        (None, 0.1, 0.1, "unknown"),
        (0.9, None, 0.1, "unknown"),
        (0.9, 0.1, None, "unknown"),
        (None, None, None, "unknown"),
    ],
)
def test_the_regime_follows_from_the_ratios(
    sm: float | None, tensor: float | None, dram: float | None, regime: str
) -> None:
    assert activity_regime(Activity(sm, tensor, dram), ROOF).regime == regime


def test_activity_against_the_peaks_gives_rates_and_an_intensity() -> None:
    found = activity_regime(Activity(0.9, 0.6, 0.3), ROOF)
    assert (found.tensor_tflops, found.dram_gb_s) == (600, 1200)
    assert found.intensity_flop_per_byte == 500
    assert found.ridge_flop_per_byte == 250
    nothing = activity_regime(Activity(0.9, 0.6, 0.0), ROOF)
    assert nothing.intensity_flop_per_byte is None


def test_an_unknown_part_has_a_regime_and_no_rates() -> None:
    found = activity_regime(Activity(0.9, 0.6, 0.3), roof_of(None, "bf16"))
    assert (found.regime, found.tensor_tflops, found.dram_gb_s, found.ridge_flop_per_byte) == (
        "compute",
        None,
        None,
        None,
    )


def test_the_roof_is_that_of_the_table_of_parts() -> None:
    part = find(H100)
    assert part is not None
    roof = roof_of(part, "torch.bfloat16")
    assert (roof.precision, roof.part) == ("bf16", part.model)
    assert roof.peak_tflops == part.device_peak_tflops("bf16")
    assert roof.ridge_flop_per_byte is not None
    assert 200 < roof.ridge_flop_per_byte < 400
    two_in_one = roof_of(find("AMD Instinct MI250X"), "bf16")
    assert two_in_one.bandwidth_gb_s == pytest.approx(3277 / 2)
    assert roof_of(part, "int3").peak_tflops is None


def test_a_job_s_regime_is_the_commonest_of_its_gpus() -> None:
    gpus = [Activity(0.9, 0.7, 0.3), Activity(0.9, 0.8, None), Activity(0.1, 0.0, 0.0)]
    found = job_regime((activity, activity_regime(activity, ROOF)) for activity in gpus)
    assert (found.regime, found.gpus, found.counts) == ("compute", 3, {"compute": 2, "idle": 1})
    assert found.mean.tensor_active_ratio == pytest.approx(0.5)
    assert found.mean.dram_active_ratio == pytest.approx(0.15)
    assert job_regime([]).regime == "unknown"


def test_counted_work_lies_on_one_side_of_the_ridge() -> None:
    product = work_regime(flops=4e9, moved_bytes=1e7, time_us=10, roof=ROOF)
    assert (product.regime, product.tflops, product.intensity_flop_per_byte) == ("compute", 400, 400)
    assert (product.attainable_tflops, product.roof_share) == (1000, 0.4)
    vector = work_regime(flops=2e7, moved_bytes=2e7, time_us=10, roof=ROOF)
    assert (vector.regime, vector.gb_s, vector.attainable_tflops, vector.roof_share) == ("memory", 2000, 4, 0.5)
    unknown = work_regime(1e6, 1e3, 1, roof_of(None, "bf16"))
    assert (unknown.regime, unknown.attainable_tflops, unknown.roof_share) == ("unknown", None, None)
    for bad in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="above zero"):
            work_regime(*bad, roof=ROOF)


def archive(path: Path, *listed: Any) -> Path:
    with ArchiveWriter.open(path) as writer:
        for record in listed:
            writer.write(record, START_NS)
    return path


def test_gpus_and_jobs_of_an_archive_are_listed(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    def ratios(second: float, tensor: float | None) -> Any:
        column = (tensor, 0.02)
        return frame(
            second,
            gpus=2,
            sm_active_ratio=(0.9, 0.2),
            tensor_active_ratio=column,
            dram_active_ratio=(0.3, 0.01),
            sku=(H100, H100),
        )

    path = archive(tmp_path / "a.jsonl.zst", job(2), placement((0, 1)), ratios(0, 0.6), ratios(1, None), ratios(2, 0.8))
    assert roofline_command(path, True, "bf16") == 0
    found = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [record["kind"] for record in found] == ["gpu_regime", "gpu_regime", "job_regime"]
    busy, idle, whole_job = found
    assert (busy["device"], busy["regime"], busy["frames"]) == (uuid_of("node-1", 0), "compute", 3)
    assert busy["tensor_active_ratio"] == pytest.approx(0.7)
    assert busy["part"] == "H100 SXM5 80GB"
    assert idle["regime"] == "idle"
    assert whole_job["counts"] == {"compute": 1, "idle": 1}


def test_an_archive_without_ratios_or_that_is_none_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roofline_command(archive(tmp_path / "a.jsonl", frame(0)), True, "bf16") == 2
    assert "no frame of the archive has a profiling ratio" in capsys.readouterr().err
    assert roofline_command(tmp_path / "missing.jsonl", True, "bf16") == 2
    assert "missing.jsonl" in capsys.readouterr().err


def test_a_line_that_cannot_be_read_costs_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = archive(tmp_path / "a.jsonl", frame(0, gpus=1, tensor_active_ratio=(0.7,)))
    with path.open("a") as stream:
        stream.write('not json\n{"topic": "paceline.gpu-frames.v1", "value": {"record": "gpu_frame"}}\n')
    assert roofline_command(path, False, "bf16") == 2
    told = capsys.readouterr()
    assert "2 lines could not be read" in told.err
    assert "compute" in told.out

"""What is read of a real GPU, held against what `nvidia-smi -q -x` prints of it at the same time.

On a machine without a GPU only the comparison itself is tested. What moves is allowed to have moved in between.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import pytest

from agents.collectors.nvml import NvmlCollector
from agents.decode.pci_address import normalise
from agents.frame_assembly import GpuAssembly
from schemas.frames import GpuFrame


@dataclass(frozen=True)
class Line:
    """A column, the places where nvidia-smi has it in one release or another, and how far they may differ.

    A tolerance of None: the column is a counter, which may have grown.
    """

    column: str
    paths: tuple[str, ...]
    tolerance: float | None = 0


LINES = (
    Line("sm_clock_mhz", ("clocks/sm_clock",), 400),
    Line("mem_clock_mhz", ("clocks/mem_clock",), 5000),
    Line("max_sm_clock_mhz", ("max_clocks/sm_clock",)),
    Line("max_mem_clock_mhz", ("max_clocks/mem_clock",)),
    Line("gpu_temp_c", ("temperature/gpu_temp",), 4),
    Line("mem_temp_c", ("temperature/memory_temp",), 4),
    Line("gpu_temp_margin_c", ("temperature/gpu_temp_tlimit",), 4),
    Line("slowdown_temp_c", ("temperature/gpu_temp_slow_threshold",)),
    Line("shutdown_temp_c", ("temperature/gpu_temp_max_threshold",)),
    Line("gpu_max_temp_c", ("temperature/gpu_temp_max_gpu_threshold",)),
    Line("mem_max_temp_c", ("temperature/gpu_temp_max_mem_threshold",)),
    Line("slowdown_tlimit_c", ("temperature/gpu_temp_slow_tlimit_threshold",)),
    Line("shutdown_tlimit_c", ("temperature/gpu_temp_max_tlimit_threshold",)),
    Line("gpu_max_tlimit_c", ("temperature/gpu_temp_max_gpu_tlimit_threshold",)),
    Line("mem_max_tlimit_c", ("temperature/gpu_temp_max_mem_tlimit_threshold",)),
    Line(
        "power_w",
        ("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"),
        80,
    ),
    Line(
        "power_limit_w",
        (
            "gpu_power_readings/current_power_limit",
            "gpu_power_readings/enforced_power_limit",
            "power_readings/enforced_power_limit",
        ),
        1,
    ),
    Line("power_default_limit_w", ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"), 1),
    Line("gpu_util_pct", ("utilization/gpu_util",), 100),
    Line("mem_copy_util_pct", ("utilization/memory_util",), 100),
    # NVML's older call counts what the driver keeps for itself as used.
    Line("fb_used_mib", ("fb_memory_usage/used",), 2048),
    Line("pcie_link_gen", ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",), 5),
    Line("pcie_link_width", ("pci/pci_gpu_link_info/link_widths/current_link_width",)),
    Line("pcie_max_link_gen", ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",)),
    Line("pcie_max_link_width", ("pci/pci_gpu_link_info/link_widths/max_link_width",)),
    Line("pcie_replay_count", ("pci/replay_counter",), None),
    Line("correctable_remapped_rows", ("remapped_rows/remapped_row_corr",)),
    Line("uncorrectable_remapped_rows", ("remapped_rows/remapped_row_unc",)),
    Line("row_remap_pending", ("remapped_rows/remapped_row_pending",)),
    Line("row_remap_failure", ("remapped_rows/remapped_row_failure",)),
    *(
        Line(f"row_remap_{word}_banks", (f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{word}",))
        for word in ("max", "high", "partial", "low", "none")
    ),
    Line("retired_pages_sbe_count", ("retired_pages/multiple_single_bit_retirement/retired_count",)),
    Line("retired_pages_dbe_count", ("retired_pages/double_bit_retirement/retired_count",)),
    Line("retired_pages_pending", ("retired_pages/pending_retirement", "retired_pages/pending_blacklist")),
    Line("mig_enabled", ("mig_mode/current_mig",)),
    Line("gpu_recovery_action", ("gpu_recovery_action",)),
)

WORDS = {
    "no": 0.0,
    "yes": 1.0,
    "disabled": 0.0,
    "enabled": 1.0,
    "none": 0.0,
    "reset": 1.0,
    "reboot": 2.0,
    "drain p2p": 3.0,
    "drain and reset": 4.0,
}


def number(gpu: ET.Element, paths: tuple[str, ...]) -> float | None:
    """What nvidia-smi prints in the first of the places that it has, None for what it does not know."""
    for path in paths:
        text = (gpu.findtext(path) or "").strip()
        if (word := WORDS.get(text.lower())) is not None:
            return word
        if found := re.match(r"-?[0-9.]+", text):
            return float(found[0])
    return None


def differences(frame: GpuFrame, log: ET.Element) -> list[str]:
    """Columns that nvidia-smi states otherwise, or that it states and the frame does not."""
    assert frame.pci_bus_id is not None
    found = []
    for gpu in log.findall("gpu"):
        index = frame.gpu_uuid.index(gpu.findtext("uuid"))
        if frame.pci_bus_id[index] != normalise(gpu.get("id") or ""):
            found.append(f"pci_bus_id: {frame.pci_bus_id[index]} against {gpu.get('id')}")
        for line in LINES:
            printed = number(gpu, line.paths)
            if printed is None:
                continue
            column = getattr(frame, line.column)
            read = None if column is None else column[index]
            near = read is not None and (
                printed <= read + 1000 and printed >= read
                if line.tolerance is None
                else abs(read - printed) <= line.tolerance
            )
            if not near:
                found.append(f"{line.column}: {read} against {printed}")
    return found


PRINTED = """<nvidia_smi_log><driver_version>570.86.15</driver_version><gpu id="00000000:1A:00.0"><uuid>GPU-1</uuid>
<clocks><sm_clock>1980 MHz</sm_clock></clocks><pci><replay_counter>7</replay_counter></pci>
<temperature><gpu_temp>61 C</gpu_temp><gpu_temp_slow_threshold>N/A</gpu_temp_slow_threshold></temperature>
<remapped_rows><remapped_row_pending>Yes</remapped_row_pending></remapped_rows></gpu></nvidia_smi_log>"""


def test_the_comparison_finds_what_differs_and_passes_over_what_is_not_printed() -> None:
    rest = {"gpu_uuid": ("GPU-1",), "pci_bus_id": ("0000:1a:00",)}
    head = {"node_id": "n", "agent_session": "s", "seq": 0, "event_time_ns": 1}
    same = {"sm_clock_mhz": (1905,), "gpu_temp_c": (60,), "row_remap_pending": (1,), "pcie_replay_count": (7,)}
    log = ET.fromstring(PRINTED)
    assert differences(GpuFrame.model_validate(head | rest | same), log) == []
    other = same | {"row_remap_pending": (0,), "gpu_temp_c": None, "pcie_replay_count": (8,)}
    assert differences(GpuFrame.model_validate(head | rest | other), log) == [
        "gpu_temp_c: None against 61.0",
        "pcie_replay_count: 8 against 7.0",
        "row_remap_pending: 0 against 1.0",
    ]


@pytest.mark.needs_gpu
def test_every_column_of_a_real_gpu_is_what_nvidia_smi_prints() -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs_gpu: nvidia-smi is not on PATH")
    source = NvmlCollector(deadline_s=5.0)
    assert source.is_supported() is None
    columns = GpuAssembly().columns([source.collect(time.time_ns()).gpus])
    assert columns is not None
    frame = GpuFrame(node_id="n", agent_session="s", seq=0, event_time_ns=1, **columns)
    done = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, timeout=60, check=True)
    assert differences(frame, ET.fromstring(done.stdout)) == []
    assert frame.read_error is None
    assert frame.sm_clock_mhz is not None
    assert frame.power_w is not None


@pytest.mark.needs_gpu
def test_reading_a_real_gpu_each_second_stays_far_below_two_percent_of_a_core() -> None:
    source = NvmlCollector(deadline_s=5.0)
    assert source.is_supported() is None
    start_ns = time.time_ns()
    gpus = len(source.collect(start_ns).gpus or ())
    begun_s = time.process_time()
    for second in range(1, 31):
        source.collect(start_ns + second * 10**9)
    spent_s = (time.process_time() - begun_s) / 30
    assert spent_s * 8 / max(gpus, 1) < 0.015

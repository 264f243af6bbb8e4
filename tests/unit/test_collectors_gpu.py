"""`dcgmi dmon` as a source, and how the rows of several sources become the columns of one frame."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import pytest

from agents.collectors.base import CollectorError
from agents.collectors.dcgmi_dmon import DcgmiDmonCollector
from agents.frame_assembly import GpuAssembly
from schemas.frames import GpuFrame

if TYPE_CHECKING:
    from pathlib import Path

A = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000002"


def frame(columns: dict[str, Any] | None) -> GpuFrame:
    assert columns is not None
    return GpuFrame(node_id="n", agent_session="s", seq=0, event_time_ns=1, **columns)


# --- dcgmi dmon ---------------------------------------------------------------------------------------------------


def command(tmp_path: Path, body: str) -> str:
    program = tmp_path / "dcgmi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_one_round_of_dmon_gives_rows_by_index(tmp_path: Path) -> None:
    program = command(
        tmp_path,
        'echo "$@" > "$0.args"; printf "#Entity   SMCLK   POWER\\nID\\nGPU 0     1410    N/A\\nGPU 1     900     71.5\\n"',
    )
    source = DcgmiDmonCollector((program,), field_ids=(100, 155))
    assert source.is_supported() is None
    found = frame(GpuAssembly().columns([source.collect(0).gpus]))
    assert (tmp_path / "dcgmi.args").read_text() == "dmon -c 1 -e 100,155\n"
    assert (found.gpu_uuid, found.gpu_index) == ((None, None), (0, 1))
    assert (found.sm_clock_mhz, found.power_w) == ((1410, 900), (None, 71.5))


def test_a_dmon_that_fails_or_hangs_is_an_error_with_its_words(tmp_path: Path) -> None:
    failing = command(tmp_path, "echo 'Error: unable to establish a connection to the specified host'; exit 1")
    with pytest.raises(CollectorError, match="unable to establish a connection"):
        DcgmiDmonCollector((failing,)).collect(0)
    hanging = command(tmp_path, "exec sleep 30")
    with pytest.raises(CollectorError, match=r"within 0\.2 s"):
        DcgmiDmonCollector((hanging,), timeout_s=0.2).collect(0)


PROFILED = """case "$*" in
  *1001*) echo "Error setting watches. Result: -33: This request is serviced by a module of DCGM that is not currently loaded";;
  *) printf "#Entity   SMCLK   DVCCTR\nID\nGPU 0     1410    4\n";;
esac
echo "$@" >> "$0.args"
"""


def test_fields_come_without_profiling_where_that_is_refused_and_it_is_tried_again_later(tmp_path: Path) -> None:
    source = DcgmiDmonCollector((command(tmp_path, PROFILED),), field_ids=(100, 112, 1001))
    for second in (0, 1, 599, 601):
        found = frame(GpuAssembly().columns([source.collect(second * 10**9).gpus]))
        assert (found.sm_clock_mhz, found.clock_event_reasons_mask) == ((1410,), (4,))
    asked = (tmp_path / "dcgmi.args").read_text().split("\n")
    assert [line.rpartition(" ")[2] for line in asked if line] == [
        *("100,112,1001", "100,112"),
        *("100,112", "100,112"),
        *("100,112,1001", "100,112"),
    ]


def test_a_dmon_that_fails_without_profiling_too_is_an_error_each_time(tmp_path: Path) -> None:
    source = DcgmiDmonCollector((command(tmp_path, "echo 'Error: no host engine'"),), field_ids=(100, 1001))
    for second in (0, 1):
        with pytest.raises(CollectorError, match="no host engine"):
            source.collect(second * 10**9)
    assert source._refused_ns is None  # that says nothing about profiling


def test_a_node_without_dcgmi_is_unsupported() -> None:
    source = DcgmiDmonCollector(("no-such-program",))
    assert "not on PATH" in str(source.is_supported())
    with pytest.raises(CollectorError, match="cannot be run"):
        source.collect(0)


# --- Assembly -----------------------------------------------------------------------------------------------------


def test_sources_meet_by_name_and_the_first_that_knows_states() -> None:
    by_uuid = ({"gpu_uuid": A, "gpu_index": 1, "power_w": None, "sm_clock_mhz": 1500},)
    by_index = ({"gpu_index": 1, "power_w": 80.0, "sm_clock_mhz": 1}, {"gpu_index": 0, "power_w": 70.0})
    found = frame(GpuAssembly().columns([by_uuid, by_index]))
    assert (found.gpu_uuid, found.gpu_index) == ((A, None), (1, 0))
    assert (found.power_w, found.sm_clock_mhz) == ((80.0, 70.0), (1500, None))


def test_a_source_that_is_late_leaves_nulls_and_keeps_the_rows() -> None:
    assembly = GpuAssembly()
    assert assembly.columns([None]) is None
    assembly.columns([({"gpu_uuid": A, "power_w": 1.0}, {"gpu_uuid": B, "power_w": 2.0})])
    found = frame(assembly.columns([None]))
    assert (found.gpu_uuid, found.power_w) == ((A, B), None)


def test_what_others_still_tell_of_a_silent_gpu_is_not_carried() -> None:
    cached = {"gpu_uuid": A, "power_w": 650.0, "model": "H100"}
    silent = {"gpu_uuid": A, "read_error": "GPU is lost", "is_silent": True, "sku": "NVIDIA H100"}
    for sources in ([(silent,), (cached,)], [(cached,), (silent,)]):
        found = frame(GpuAssembly().columns(sources))
        assert (found.power_w, found.read_error) == (None, ("GPU is lost",))
    # A driver that NVML cannot use says nothing about what DCGM measures.
    broken = {"gpu_uuid": A, "read_error": "NVML does not start: Driver/library version mismatch"}
    assert frame(GpuAssembly().columns([(broken,), (cached,)])).power_w == (650.0,)


def test_readings_under_dcgms_names_fill_columns_and_a_name_of_no_column_does_not() -> None:
    other = {
        "DCGM_FI_PROF_NVLINK_TX_BYTES": 21_000_000_000.5,
        "dcgm_fi_prof_pcie_rx_bytes": 7,
        "DCGM_FI_DEV_SLOWDOWN_TEMP": 87,
        "DCGM_FI_DEV_RETIRED_PENDING": 0,
        "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX": 640,
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 3,
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 4,
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 5,
        "DCGM_FI_DEV_SHUTDOWN_TEMP": None,
    }
    found = frame(GpuAssembly().columns([({"gpu_uuid": A, "other": other},)]))
    assert (found.nvlink_tx_bytes_per_s, found.pcie_rx_bytes_per_s) == ((21_000_000_000.5,), (7.0,))
    assert (found.slowdown_temp_c, found.shutdown_temp_c) == ((87,), None)
    assert (found.retired_pages_pending, found.row_remap_max_banks) == ((0,), (640,))
    assert found.nvlink_crc_errors == (7,)


def test_mig_instances_are_carried_by_gpu_and_a_text_is_no_list_of_them() -> None:
    rows = ({"gpu_uuid": A, "mig_uuids": ("MIG-1", "MIG-2")}, {"gpu_uuid": B, "mig_uuids": "MIG-3"})
    assert frame(GpuAssembly().columns([rows])).mig_uuids == (("MIG-1", "MIG-2"), None)


def test_rows_without_a_name_and_values_that_are_none_are_left_out() -> None:
    rows = (
        {"power_w": 1.0},
        {"gpu_uuid": A, "power_w": float("nan"), "gpu_temp_c": 61.4, "sm_clock_mhz": "1980", "gpu_util_pct": True},
    )
    found = frame(GpuAssembly().columns([rows]))
    assert found.gpu_uuid == (A,)
    assert (found.power_w, found.gpu_temp_c, found.sm_clock_mhz, found.gpu_util_pct) == (None, (61,), None, None)


def test_an_index_that_is_given_anew_moves_to_its_new_owner() -> None:
    assembly = GpuAssembly()
    assembly.columns([({"gpu_uuid": A, "gpu_index": 0}, {"gpu_uuid": B, "gpu_index": 1})])
    found = frame(assembly.columns([({"gpu_uuid": B, "gpu_index": 0},), ({"gpu_index": 0, "power_w": 5.0},)]))
    assert found.gpu_index == (None, 0)
    assert found.power_w == (None, 5.0)

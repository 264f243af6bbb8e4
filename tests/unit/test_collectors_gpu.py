"""Collectors of GPU readings, and how their rows become the columns of one frame."""

from __future__ import annotations

import stat
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from agents.collectors.base import CollectorError
from agents.collectors.dcgm_exporter import DcgmExporterCollector
from agents.collectors.dcgmi_dmon import DcgmiDmonCollector
from agents.collectors.nvml import NvmlCollector
from agents.frame_assembly import GpuAssembly
from agents.testing import FakeGpu, FakeNvml, NvmlFault
from schemas.frames import GpuFrame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

A = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000002"

PAGE = "".join(
    f'{name}{{gpu="{index}",UUID="{uuid}",pci_bus_id="00000000:{bus}:00.0",modelName="NVIDIA H100",Hostname="n"}} {value}\n'
    for index, uuid, bus in ((0, A, "1A"), (1, B, "1B"))
    for name, value in (
        ("DCGM_FI_DEV_SM_CLOCK", 1980 - index),
        ("DCGM_FI_DEV_POWER_USAGE", 650.5),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.61),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", index),
        ("DCGM_FI_DEV_MEMORY_TEMP", 9223372036854775794),
    )
)
MIG = f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="{A}",GPU_I_ID="3",GPU_I_PROFILE="1g.10gb"}} 17\n'


def frame(columns: dict[str, Any] | None) -> GpuFrame:
    assert columns is not None
    return GpuFrame(node_id="n", agent_session="s", seq=0, event_time_ns=1, **columns)


# --- dcgm-exporter ------------------------------------------------------------------------------------------------


@pytest.fixture
def exporter() -> Iterator[Any]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.hold.wait(5)  # type: ignore[attr-defined]
            self.send_response(self.server.status)  # type: ignore[attr-defined]
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.hold = threading.Event()  # type: ignore[attr-defined]
    server.hold.set()  # type: ignore[attr-defined]
    server.status = 200  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.hold.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}/metrics"


def test_a_page_becomes_one_row_a_gpu(exporter: Any) -> None:
    source = DcgmExporterCollector(url(exporter))
    assert source.is_supported() is None
    rows = source.collect(0).gpus
    assert rows is not None
    found = frame(GpuAssembly().columns([rows]))
    assert found.gpu_uuid == (A, B)
    assert found.pci_bus_id == ("0000:1a:00", "0000:1b:00")
    assert found.sm_clock_mhz == (1980, 1979)
    assert found.power_w == (650.5, 650.5)
    assert found.tensor_active_ratio == (0.61, 0.61)
    assert found.row_remap_pending == (0, 1)  # 0 is measured
    assert found.mem_temp_c is None  # a blank is not
    assert found.sku == ("NVIDIA H100", "NVIDIA H100")


def test_a_page_can_be_a_file_and_mig_readings_are_not_their_gpus(tmp_path: Path) -> None:
    page = tmp_path / "metrics"
    page.write_text(PAGE + MIG)
    rows = DcgmExporterCollector(page.as_uri()).collect(0).gpus
    found = frame(GpuAssembly().columns([rows]))
    assert found.gpu_uuid == (A, B)
    assert found.fb_used_mib is None


@pytest.mark.parametrize("address", ["ftp://x/y", "metrics", ""])
def test_an_address_of_no_page_is_refused(address: str) -> None:
    assert "begins with" in str(DcgmExporterCollector(address).is_supported())


def test_an_exporter_that_is_away_is_unsupported_and_says_why() -> None:
    reason = DcgmExporterCollector("http://127.0.0.1:9/metrics").is_supported()
    assert reason is not None
    assert "cannot be fetched" in reason


def test_an_exporter_that_answers_late_or_badly_is_an_error(exporter: Any, tmp_path: Path) -> None:
    exporter.hold.clear()
    with pytest.raises(CollectorError, match="timed out"):
        DcgmExporterCollector(url(exporter), timeout_s=0.05).collect(0)
    exporter.hold.set()
    exporter.status = 500
    with pytest.raises(CollectorError):
        DcgmExporterCollector(url(exporter)).collect(0)
    (tmp_path / "other").write_text("go_goroutines 7\n")
    with pytest.raises(CollectorError, match="no DCGM metric"):
        DcgmExporterCollector((tmp_path / "other").as_uri()).collect(0)


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


def test_a_node_without_dcgmi_is_unsupported() -> None:
    source = DcgmiDmonCollector(("no-such-program",))
    assert "not on PATH" in str(source.is_supported())
    with pytest.raises(CollectorError, match="cannot be run"):
        source.collect(0)


# --- NVML ---------------------------------------------------------------------------------------------------------


def gpu(uuid: str, bus: str, **readings: Any) -> FakeGpu:
    return FakeGpu(uuid=uuid, address=f"00000000:{bus}:00.0", **readings)


def test_nvml_readings_fill_columns_and_what_is_not_supported_is_null() -> None:
    healthy = gpu(
        A,
        "1A",
        ClockInfo={(1,): 1980, (2,): 2619},
        PowerUsage=650_500,
        TotalEccErrors={(0, 0): 5, (1, 0): 0, (1, 1): 2},
        RemappedRows=(3, 1, 0, 1),
        CurrentClocksThrottleReasons=0x44,
        PcieReplayCounter=0,
    )
    source = NvmlCollector(FakeNvml([healthy, gpu(B, "1B")]))
    assert source.is_supported() is None
    readings = source.collect(0)
    found = frame(GpuAssembly().columns([readings.gpus]))
    assert readings.driver_version == "570.86.15"
    assert found.gpu_uuid == (A, B)
    assert found.sm_clock_mhz == (1980, None)
    assert found.power_w == (650.5, None)
    assert found.ecc_sbe_volatile_count == (5, None)
    assert found.ecc_dbe_volatile_count == (0, None)
    assert found.ecc_dbe_aggregate_count == (2, None)
    assert (found.uncorrectable_remapped_rows, found.row_remap_pending, found.row_remap_failure) == (
        (1, None),
        (0, None),
        (1, None),
    )
    assert found.clock_event_reasons_mask == (0x44, None)  # an older driver knows the older call alone
    assert found.pcie_replay_count == (0, None)
    assert found.energy_millijoules is None
    assert found.read_error is None


def test_a_lost_gpu_keeps_its_row_and_says_so() -> None:
    library = FakeNvml([gpu(A, "1A", PowerUsage=100_000), gpu(B, "1B", PowerUsage=200_000)])
    source, assembly = NvmlCollector(library), GpuAssembly()
    assembly.columns([source.collect(0).gpus])
    library.gpus[0].PowerUsage = NvmlFault(library.NVML_ERROR_GPU_IS_LOST)
    found = frame(assembly.columns([source.collect(1).gpus]))
    assert found.gpu_uuid == (A, B)
    assert found.read_error == ("GPU is lost", None)
    assert found.power_w == (None, 200.0)


def test_a_gpu_that_leaves_the_count_is_lost_and_the_others_keep_their_names() -> None:
    library = FakeNvml([gpu(A, "1A", PowerUsage=100_000), gpu(B, "1B", PowerUsage=200_000)])
    source, assembly = NvmlCollector(library), GpuAssembly()
    assembly.columns([source.collect(0).gpus])
    del library.gpus[0]
    source._ready = False  # the driver was loaded again
    found = frame(assembly.columns([source.collect(1).gpus]))
    assert found.gpu_uuid == (A, B)
    assert found.gpu_index == (None, 0)
    assert found.read_error == ("GPU is lost", None)
    assert found.power_w == (None, 200.0)


def test_a_process_is_found_by_its_pid_unless_it_is_on_two_gpus() -> None:
    source = NvmlCollector(FakeNvml([gpu(A, "1A", pids=[7, 9]), gpu(B, "1B", pids=[8, 9])]))
    assert source.device_of_pid(8) == {"uuid": B, "pci_bus_id": "0000:1b:00"}
    assert source.device_of_pid(9) is None
    assert source.device_of_pid(1) is None


def test_a_node_without_the_driver_is_unsupported_and_says_why() -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802 - the library's name
            raise NvmlFault(9)

    assert "does not start" in str(NvmlCollector(NoDriver([])).is_supported())
    assert NvmlCollector(FakeNvml([])).is_supported() == "NVML finds no GPU"


def test_the_real_library_says_why_where_there_is_no_driver() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        reason = NvmlCollector().is_supported()
        assert reason is not None
        assert "NVML" in reason
    else:
        assert NvmlCollector().is_supported() is None


@pytest.mark.needs_gpu
def test_the_real_library_fills_the_main_columns() -> None:
    found = frame(GpuAssembly().columns([NvmlCollector().collect(0).gpus]))
    assert all(uuid is not None and uuid.startswith("GPU-") for uuid in found.gpu_uuid)
    assert found.sm_clock_mhz is not None
    assert found.power_w is not None
    assert found.gpu_temp_c is not None


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

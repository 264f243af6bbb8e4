"""What is read of a GPU through NVML and how often, MIG instances, and the devices of processes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from nvml_node import SECOND, START, A, B, C, Node, gpu, pair, wait_until

from agents.collectors.nvml import NvmlCollector
from agents.collectors.nvml_columns import READINGS, field_number
from agents.identity import AgentIdentity, Sequences
from agents.local_ranks import LocalRanks, Peer
from agents.testing import FakeGpu, FakeNvml, NvmlFault
from agents.trainer_messages import parse_message
from schemas.fleet import RankPlacement

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def library() -> Iterator[FakeNvml]:
    library = pair()
    yield library
    for held in library.gpus:
        held.release()


# --- Columns ------------------------------------------------------------------------------------------------------


FULL = gpu(
    A,
    "1A",
    ClockInfo={(1,): 1980, (2,): 2619},
    MaxClockInfo={(1,): 1980, (2,): 2619},
    TemperatureV={(0,): 61},
    MarginTemperature=26,
    PowerUsage=650_500,
    EnforcedPowerLimit=700_000,
    PowerManagementDefaultLimit=700_000,
    UtilizationRates=SimpleNamespace(gpu=99, memory=41),
    MemoryInfo=SimpleNamespace(used=71 << 30),
    CurrentClocksEventReasons=0x44,
    CurrPcieLinkGeneration=5,
    CurrPcieLinkWidth=16,
    MaxPcieLinkGeneration=5,
    MaxPcieLinkWidth=16,
    TemperatureThreshold={(0,): 92, (1,): 89, (2,): 95, (3,): 87},
    RowRemapperHistogram=SimpleNamespace(max=2048, high=1, partial=2, low=3, none=4),
    mig=None,
    fields={
        "NVML_FI_DEV_MEMORY_TEMP": 71,
        "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456_789_012,
        "NVML_FI_DEV_PERF_POLICY_POWER": 11,
        "NVML_FI_DEV_PERF_POLICY_THERMAL": 12,
        "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST": 13,
        "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT": 14,
        "NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION": 15,
        "NVML_FI_DEV_PERF_POLICY_RELIABILITY": 16,
        "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": 5,
        "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
        "NVML_FI_DEV_ECC_SBE_AGG_TOTAL": 50,
        "NVML_FI_DEV_ECC_DBE_AGG_TOTAL": 2,
        "NVML_FI_DEV_REMAPPED_COR": 3,
        "NVML_FI_DEV_REMAPPED_UNC": 1,
        "NVML_FI_DEV_REMAPPED_PENDING": 0,
        "NVML_FI_DEV_REMAPPED_FAILURE": 1,
        "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 20,
        "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 1,
        "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 22,
        "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 23,
        "NVML_FI_DEV_NVLINK_LINK_COUNT": 18,
        **{("NVML_FI_DEV_NVLINK_GET_STATE", link): 0 if link == 7 else 1 for link in range(18)},
        "NVML_FI_DEV_PCIE_REPLAY_COUNTER": 9,
        "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 2,
        "NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT": -2,
        "NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT": -5,
        "NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT": 0,
        "NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT": 0,
        "NVML_FI_DEV_RETIRED_SBE": 30,
        "NVML_FI_DEV_RETIRED_DBE": 31,
        "NVML_FI_DEV_RETIRED_PENDING": 1,
    },
)
EXPECTED: dict[str, Any] = {
    "sm_clock_mhz": 1980,
    "mem_clock_mhz": 2619,
    "max_sm_clock_mhz": 1980,
    "max_mem_clock_mhz": 2619,
    "gpu_temp_c": 61,
    "mem_temp_c": 71,
    "gpu_temp_margin_c": 26,
    "power_w": 650.5,
    "power_limit_w": 700.0,
    "power_default_limit_w": 700.0,
    "energy_millijoules": 123_456_789_012,
    "gpu_util_pct": 99,
    "mem_copy_util_pct": 41,
    "fb_used_mib": 71 << 10,
    "clock_event_reasons_mask": 0x44,
    "power_violation_ns": 11,
    "thermal_violation_ns": 12,
    "sync_boost_violation_ns": 13,
    "board_limit_violation_ns": 14,
    "low_util_violation_ns": 15,
    "reliability_violation_ns": 16,
    "ecc_sbe_volatile_count": 5,
    "ecc_dbe_volatile_count": 0,
    "ecc_sbe_aggregate_count": 50,
    "ecc_dbe_aggregate_count": 2,
    "correctable_remapped_rows": 3,
    "uncorrectable_remapped_rows": 1,
    "row_remap_pending": 0,
    "row_remap_failure": 1,
    "nvlink_crc_errors": 21,
    "nvlink_replay_errors": 22,
    "nvlink_recovery_errors": 23,
    "nvlink_link_count": 18,
    "nvlink_active_link_count": 17,
    "pcie_link_gen": 5,
    "pcie_link_width": 16,
    "pcie_max_link_gen": 5,
    "pcie_max_link_width": 16,
    "pcie_replay_count": 9,
    "gpu_recovery_action": 2,
    "slowdown_temp_c": 89,
    "shutdown_temp_c": 92,
    "gpu_max_temp_c": 87,
    "mem_max_temp_c": 95,
    "slowdown_tlimit_c": -2,
    "shutdown_tlimit_c": -5,
    "gpu_max_tlimit_c": 0,
    "mem_max_tlimit_c": 0,
    "row_remap_max_banks": 2048,
    "row_remap_high_banks": 1,
    "row_remap_partial_banks": 2,
    "row_remap_low_banks": 3,
    "row_remap_none_banks": 4,
    "retired_pages_sbe_count": 30,
    "retired_pages_dbe_count": 31,
    "retired_pages_pending": 1,
    "mig_enabled": 0,
}


def test_a_gpu_that_answers_everything_fills_every_column_and_the_other_has_nulls() -> None:
    found = Node(FakeNvml([FULL, gpu(B, "1B")])).frame()
    assert found.pci_bus_id == ("0000:1a:00", "0000:1b:00")
    assert found.sku == ("NVIDIA H100 80GB HBM3",) * 2
    assert {name: getattr(found, name) for name in EXPECTED} == {
        name: (value, None) for name, value in EXPECTED.items()
    }
    assert found.read_error is None
    assert {column for reading in READINGS for column in reading.columns} <= EXPECTED.keys()


def test_calls_answer_where_a_driver_has_no_field_values() -> None:
    old = gpu(
        A,
        "1A",
        Temperature={(0,): 60},
        TotalEnergyConsumption=7,
        TotalEccErrors={(0, 0): 5, (1, 0): 0, (0, 1): 9, (1, 1): 2},
        RemappedRows=(3, 1, 0, 1),
        ViolationStatus={(policy,): SimpleNamespace(violationTime=100 + policy) for policy in range(6)},
        CurrentClocksThrottleReasons=0x8,
        PcieReplayCounter=4,
        RetiredPages={(0,): iter([1, 2]), (1,): []},
        RetiredPagesPendingStatus=0,
        NvLinkState={(0,): 1, (1,): 0, (2,): 1},
    )
    found = Node(FakeNvml([old])).frame()
    assert (found.gpu_temp_c, found.energy_millijoules, found.clock_event_reasons_mask) == ((60,), (7,), (8,))
    assert (found.ecc_sbe_volatile_count, found.ecc_dbe_aggregate_count) == ((5,), (2,))
    assert (found.correctable_remapped_rows, found.row_remap_failure) == ((3,), (1,))
    assert (found.power_violation_ns, found.reliability_violation_ns) == ((100,), (105,))
    assert (found.retired_pages_sbe_count, found.retired_pages_dbe_count) == ((2,), (0,))
    assert (found.nvlink_link_count, found.nvlink_active_link_count) == ((3,), (2,))
    assert found.pcie_replay_count == (4,)


def test_errors_link_by_link_are_summed_where_there_are_no_totals() -> None:
    hopper = gpu(
        A,
        "1A",
        fields={
            **{("NVML_FI_DEV_NVLINK_ERROR_DL_CRC", link): link for link in range(3)},
            ("NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", 2): 5,
            ("NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", 1): NvmlFault(10),
        },
    )
    found = Node(FakeNvml([hopper])).frame()
    assert (found.nvlink_crc_errors, found.nvlink_replay_errors) == ((3,), (5,))
    assert found.nvlink_recovery_errors is None


def test_a_gpu_without_links_has_none_and_one_whose_links_are_dark_has_none_active() -> None:
    fields = {"NVML_FI_DEV_NVLINK_LINK_COUNT": 12}
    dark = gpu(A, "1A", fields=fields | {("NVML_FI_DEV_NVLINK_GET_STATE", link): 0 for link in range(12)})
    untold = gpu(B, "1B", fields=fields)
    without = gpu(C, "1C", fields={"NVML_FI_DEV_NVLINK_LINK_COUNT": 0})
    found = Node(FakeNvml([dark, untold, without])).frame()
    assert found.nvlink_link_count == (12, 12, 0)
    assert found.nvlink_active_link_count == (0, None, 0)


def test_values_that_no_gpu_can_have_are_null() -> None:
    dying = gpu(
        A,
        "1A",
        CurrPcieLinkWidth=63,
        CurrPcieLinkGeneration=0,
        UtilizationRates=SimpleNamespace(gpu=2**32 - 1, memory=100),
        PowerUsage=71_000,
    )
    found = Node(FakeNvml([dying])).frame()
    assert (found.pcie_link_width, found.pcie_link_gen, found.gpu_util_pct) == (None, None, None)
    assert (found.mem_copy_util_pct, found.power_w) == ((100,), (71.0,))


# --- How often ----------------------------------------------------------------------------------------------------


def test_what_hardly_changes_is_asked_once_a_minute_and_carried_then() -> None:
    library = FakeNvml([FULL])
    node = Node(library)
    carried = [node.frame(second).slowdown_temp_c is not None for second in range(121)]
    assert [second for second, is_carried in enumerate(carried) if is_carried] == [0, 60, 120]
    assert library.calls["nvmlDeviceGetTemperatureThreshold"] == 3 * 4
    assert library.calls["nvmlDeviceGetEnforcedPowerLimit"] == 13
    assert library.calls["nvmlDeviceGetClockInfo"] == 121 * 2


def test_limits_that_detectors_hold_readings_against_are_in_every_frame() -> None:
    node = Node(FakeNvml([FULL]))
    for second in range(3):
        found = node.frame(second)
        assert (found.power_limit_w, found.pcie_max_link_gen, found.pcie_max_link_width) == ((700.0,), (5,), (16,))


def test_a_call_that_is_refused_is_not_made_again_and_one_that_fails_once_is() -> None:
    refused, failing = gpu(A, "1A", PowerUsage=1), gpu(B, "1B", PowerUsage=1, MarginTemperature=NvmlFault(10))
    library = FakeNvml([refused, failing])
    node = Node(library)
    for second in range(5):
        assert node.frame(second).gpu_temp_margin_c is None
    assert library.calls["nvmlDeviceGetMarginTemperature"] == 1 + 5
    failing.MarginTemperature = 12
    assert node.frame(5).gpu_temp_margin_c == (None, 12)


def test_most_readings_come_with_one_call() -> None:
    library = FakeNvml([FULL])
    node = Node(library)
    node.frame(0)
    library.calls.clear()
    node.frame(1)
    assert library.calls["nvmlDeviceGetFieldValues"] == 1
    assert sum(library.calls.values()) <= 12


# --- MIG ----------------------------------------------------------------------------------------------------------


def cut() -> FakeGpu:
    return gpu(
        A,
        "1A",
        PowerUsage=300_000,
        UtilizationRates=SimpleNamespace(gpu=50, memory=5),
        mig=[FakeGpu(uuid="MIG-1", pids=[41]), FakeGpu(uuid="MIG-2", pids=[42])],
        pids=[41, 42],
    )


def test_with_mig_the_whole_gpu_is_read_and_its_instances_are_named() -> None:
    node = Node(FakeNvml([cut(), gpu(B, "1B", mig=None, PowerUsage=1000)]))
    found = node.frame(0)
    assert found.gpu_uuid == (A, B)
    assert found.mig_enabled == (1, 0)
    assert found.mig_uuids == (("MIG-1", "MIG-2"), None)
    assert found.power_w == (300.0, 1.0)
    assert found.gpu_util_pct is None  # not with MIG
    assert node.source.device_of_uuid("MIG-2") == {"uuid": A, "pci_bus_id": "0000:1a:00"}
    assert node.source.device_of_uuid(B) == {"uuid": B, "pci_bus_id": "0000:1b:00"}
    assert node.source.device_of_uuid("MIG-3") is None


def test_what_mig_refused_is_asked_again_when_mig_is_switched_off() -> None:
    device = cut()
    node = Node(FakeNvml([device]))
    node.frame(0)
    device.mig = None
    assert node.frame(1).gpu_util_pct is None  # the mode is asked once a minute
    found = node.frame(60)
    assert (found.gpu_util_pct, found.mig_enabled, found.mig_uuids) == ((50,), (0,), None)
    assert node.source.device_of_uuid("MIG-1") is None


# --- Processes ----------------------------------------------------------------------------------------------------


def test_a_process_is_found_by_its_pid_unless_it_is_on_two_gpus() -> None:
    source = NvmlCollector(FakeNvml([gpu(A, "1A", pids=[7, 9]), gpu(B, "1B", pids=[8, 9])]))
    assert source.device_of_pid(8) == {"uuid": B, "pci_bus_id": "0000:1b:00"}
    assert source.device_of_pid(9) is None
    assert source.device_of_pid(1) is None


def test_a_process_on_an_instance_is_on_its_gpu_also_where_only_instances_tell() -> None:
    device = cut()
    node = Node(FakeNvml([device]))
    node.frame(0)
    assert node.source.device_of_pid(42) == {"uuid": A, "pci_bus_id": "0000:1a:00"}
    device.pids = NvmlFault(4)
    assert node.source.device_of_pid(42) == {"uuid": A, "pci_bus_id": "0000:1a:00"}
    assert node.source.device_of_pid(43) is None


def test_processes_are_found_beside_a_gpu_that_hangs(library: FakeNvml) -> None:
    library.gpus[1].pids = [8]
    node = Node(library)
    node.frame(0)
    library.gpus[0].hold()
    node.frame(1)
    begun = time.monotonic()
    assert node.source.device_of_pid(8) == {"uuid": B, "pci_bus_id": "0000:1b:00"}
    assert time.monotonic() - begun < 1.0


def test_threads_end_when_the_collector_is_closed(library: FakeNvml) -> None:
    source = NvmlCollector(library)
    source.collect(START)
    mine = [source._starter, *(slot.thread for slot in source._slots)]
    source.close()
    wait_until(lambda: not any(thread._thread is not None and thread._thread.is_alive() for thread in mine))


def test_a_rank_that_names_an_instance_is_placed_on_its_gpu() -> None:
    node = Node(FakeNvml([cut()]))
    node.frame(0)
    ranks = LocalRanks(AgentIdentity("n", "b", "s"), Sequences(), node.source.device_of_pid)
    for rank, (pid, uuid) in enumerate([(42, "MIG-2"), (0, "MIG-1"), (1, "MIG-9"), (5, B)]):
        device = {"uuid": uuid, "source": "cuda"}
        said = {"v": 1, "type": "register", "job_id": "j", "rank": rank, "world_size": 4, "local_world_size": 4}
        line = orjson.dumps(said | {"event_time_ns": START, "device": device})
        ranks.on_message(Peer(rank, pid, 1000), parse_message(line), START)
    (placement,) = [record for record in ranks.tick(START + SECOND) if isinstance(record, RankPlacement)]
    # By its pid; one of another namespace or that the driver does not know keeps what it said; a GPU is believed.
    assert placement.gpu_uuid == (A, "MIG-1", "MIG-9", B)
    assert placement.pci_bus_id == ("0000:1a:00", None, None, None)


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


def test_the_real_library_has_what_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml")
    fields = {name for reading in READINGS for name in reading.fields}
    assert {name for name in fields if field_number(pynvml, name) is None} == set()
    names = {name for name in vars(FakeNvml) if name.startswith("nvml")}
    assert {name for name in names if not hasattr(pynvml, name)} == set()
    numbers = {name for base in FakeNvml.__mro__ for name in vars(base) if name.startswith("NVML_")}
    assert {name: getattr(FakeNvml, name) for name in numbers if name != "NVML_NVLINK_MAX_LINKS"} == {
        name: getattr(pynvml, name) for name in numbers if name != "NVML_NVLINK_MAX_LINKS"
    }

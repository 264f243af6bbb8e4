"""Frames: what one node or switch publishes per tick, as columns.

A frame is one message for all GPUs (or ports) of its publisher, because a message is what costs, not a sample.
Cumulative counters are passed on as read; deltas, resets and baselines are the reader's business.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Column, DeviceKey, EventTimeNs, Identifier, Record, check_columns, of_lengths_alone

__all__ = ["FabricFrame", "GpuFrame"]

FloatColumn = tuple[float | None, ...] | None
TextColumn = tuple[str | None, ...] | None


class GpuFrame(Record):
    """One tick of one node's GPUs, one entry per GPU in every column.

    Units are in the names. Violation counters are cumulative nanoseconds. `clock_event_reasons_mask` holds the bits of
    DCGM field 112. Ratios are 0..1, percentages 0..100. `read_error` says why a GPU could not be read; its other
    columns are then null.

    What hardly changes is carried when it was read, once in 10 s or once a minute, and is null in between: links
    (`nvlink_link_count`, `nvlink_active_link_count`), limits of temperature, clock and power, `row_remap_*_banks`,
    `retired_pages_*` and `mig_*`. Temperatures ending in `_tlimit_c` are margins to the part's own limit, negative
    beyond it, as `gpu_temp_margin_c` is. `row_remap_*_banks` count memory banks by the spare rows that they have left.
    `gpu_recovery_action` is NVML's number: 0 none, 1 reset the GPU, 2 reboot the node, 3 drain P2P, 4 drain and reset,
    5 recover the IMEX domain. Flags (`_pending`, `_failure`, `_enabled`) are 0 or 1.
    """

    record: Literal["gpu_frame"] = "gpu_frame"
    node_id: Identifier
    agent_session: Identifier
    seq: int = Field(ge=0)
    event_time_ns: EventTimeNs
    boot_id: str | None = None
    driver_version: str | None = None

    gpu_uuid: tuple[DeviceKey | None, ...]
    gpu_index: tuple[int | None, ...] | None = None
    pci_bus_id: tuple[DeviceKey | None, ...] | None = None
    sku: TextColumn = None
    read_error: TextColumn = None

    sm_clock_mhz: Column = None
    mem_clock_mhz: Column = None
    gpu_temp_c: Column = None
    mem_temp_c: Column = None
    gpu_temp_margin_c: Column = None
    power_w: FloatColumn = None
    power_limit_w: FloatColumn = None
    energy_millijoules: Column = None
    gpu_util_pct: Column = None
    mem_copy_util_pct: Column = None
    fb_used_mib: Column = None
    clock_event_reasons_mask: Column = None
    power_violation_ns: Column = None
    thermal_violation_ns: Column = None
    sync_boost_violation_ns: Column = None
    board_limit_violation_ns: Column = None
    low_util_violation_ns: Column = None
    reliability_violation_ns: Column = None
    ecc_sbe_volatile_count: Column = None
    ecc_dbe_volatile_count: Column = None
    ecc_sbe_aggregate_count: Column = None
    ecc_dbe_aggregate_count: Column = None
    row_remap_pending: Column = None
    row_remap_failure: Column = None
    correctable_remapped_rows: Column = None
    uncorrectable_remapped_rows: Column = None
    nvlink_crc_errors: Column = None
    nvlink_replay_errors: Column = None
    nvlink_recovery_errors: Column = None
    nvlink_link_count: Column = None
    nvlink_active_link_count: Column = None
    pcie_link_gen: Column = None
    pcie_link_width: Column = None
    pcie_max_link_gen: Column = None
    pcie_max_link_width: Column = None
    pcie_replay_count: Column = None
    gr_engine_active_ratio: FloatColumn = None
    sm_active_ratio: FloatColumn = None
    sm_occupancy_ratio: FloatColumn = None
    tensor_active_ratio: FloatColumn = None
    dram_active_ratio: FloatColumn = None
    nvlink_tx_bytes_per_s: FloatColumn = None
    nvlink_rx_bytes_per_s: FloatColumn = None
    pcie_tx_bytes_per_s: FloatColumn = None
    pcie_rx_bytes_per_s: FloatColumn = None
    gpu_recovery_action: Column = None

    power_default_limit_w: FloatColumn = None
    max_sm_clock_mhz: Column = None
    max_mem_clock_mhz: Column = None
    slowdown_temp_c: Column = None
    shutdown_temp_c: Column = None
    gpu_max_temp_c: Column = None
    mem_max_temp_c: Column = None
    slowdown_tlimit_c: Column = None
    shutdown_tlimit_c: Column = None
    gpu_max_tlimit_c: Column = None
    mem_max_tlimit_c: Column = None
    row_remap_max_banks: Column = None
    row_remap_high_banks: Column = None
    row_remap_partial_banks: Column = None
    row_remap_low_banks: Column = None
    row_remap_none_banks: Column = None
    retired_pages_sbe_count: Column = None
    retired_pages_dbe_count: Column = None
    retired_pages_pending: Column = None
    mig_enabled: Column = None
    mig_uuids: tuple[tuple[DeviceKey, ...] | None, ...] | None = None

    @model_validator(mode="after")
    @of_lengths_alone
    def _columns_agree(self) -> Self:
        # This is run for every frame of every node: no search for the column before it is known that there is one.
        fields = self.__dict__
        length = len(fields["gpu_uuid"])
        if {len(column) for column in fields.values() if type(column) is tuple} != {length}:
            for name in _GPU_COLUMNS:
                column = fields[name]
                if column is not None and len(column) != length:
                    raise ValueError(f"column {name} has {len(column)} entries for {length} GPUs")
        return self


_GPU_COLUMNS = tuple(
    name
    for name in GpuFrame.model_fields
    if name
    not in {
        "record",
        "node_id",
        "agent_session",
        "seq",
        "event_time_ns",
        "boot_id",
        "driver_version",
        "gpu_uuid",
    }
)


class FabricFrame(Record):
    """One tick of one node's or one switch's ports.

    Ports are rows of `device`/`port`; pause counters are rows of their own (a port has up to eight priorities), each
    naming its port by index in `pfc_port`. Receive and transmit are as the publisher's side sees them: `host` is the
    NIC's, `switch` the switch's. A priority without counters has no row: that is unknown, not zero.
    `counters` holds further cumulative counters under the source's own names. The PCIe columns are of the link between
    the node and the port's card; the maximum is what both ends of that link can do.
    """

    record: Literal["fabric_frame"] = "fabric_frame"
    view: Literal["host", "switch"]
    node_id: Identifier | None = None
    switch_id: Identifier | None = None
    agent_session: Identifier
    seq: int = Field(ge=0)
    event_time_ns: EventTimeNs

    device: tuple[str | None, ...]
    port: tuple[str | None, ...]
    peer: TextColumn = None
    link_state: TextColumn = None
    rate_gbps: FloatColumn = None
    rx_data_bytes: Column = None
    tx_data_bytes: Column = None
    link_down_events: Column = None
    rx_global_pause_frames: Column = None
    tx_global_pause_frames: Column = None
    pci_bus_id: tuple[DeviceKey | None, ...] | None = None
    pcie_link_gen: Column = None
    pcie_link_width: Column = None
    pcie_max_link_gen: Column = None
    pcie_max_link_width: Column = None
    counters: dict[str, tuple[int | None, ...]] = Field(default_factory=dict)

    pfc_port: tuple[int, ...] = ()
    pfc_priority: tuple[int, ...] = ()
    rx_pause_frames: tuple[int | None, ...] = ()
    tx_pause_frames: tuple[int | None, ...] = ()
    rx_pause_us: Column = None
    tx_pause_us: Column = None

    @property
    def publisher_id(self) -> str:
        """The node's or the switch's id: the key of the message."""
        publisher = self.node_id if self.view == "host" else self.switch_id
        assert publisher is not None
        return publisher

    @model_validator(mode="after")
    def _names_its_publisher(self) -> Self:
        fields = self.__dict__
        name = "node_id" if fields["view"] == "host" else "switch_id"
        if fields[name] is None:
            raise ValueError(f"a {self.view} frame names its {name}")
        return self

    @model_validator(mode="after")
    @of_lengths_alone
    def _port_columns_agree(self) -> Self:
        check_columns(len(self.device), self.__dict__, _PORT_COLUMNS)
        return self

    @model_validator(mode="after")
    def _counters_agree(self) -> Self:
        if self.counters:
            check_columns(len(self.device), self.counters)
        return self

    @model_validator(mode="after")
    @of_lengths_alone
    def _pause_columns_agree(self) -> Self:
        check_columns(len(self.pfc_port), self.__dict__, _PFC_COLUMNS)
        return self

    @model_validator(mode="after")
    def _pauses_are_of_its_ports(self) -> Self:
        rows, ports = self.pfc_port, len(self.device)
        if rows and not 0 <= min(rows) <= max(rows) < ports:
            raise ValueError(f"pfc_port names a port outside 0..{ports - 1}")
        return self


_PFC_COLUMNS = ("pfc_priority", "rx_pause_frames", "tx_pause_frames", "rx_pause_us", "tx_pause_us")
_PORT_COLUMNS = (
    "port",
    "peer",
    "link_state",
    "rate_gbps",
    "rx_data_bytes",
    "tx_data_bytes",
    "link_down_events",
    "rx_global_pause_frames",
    "tx_global_pause_frames",
    "pci_bus_id",
    "pcie_link_gen",
    "pcie_link_width",
    "pcie_max_link_gen",
    "pcie_max_link_width",
)

"""What becomes of every field of every record family in a redacted archive: kept, renamed, or cleared.

This is the whole list. A field that is not in it is dropped, since nobody has said what it may hold; a test holds the table
against the models, so that a new field is placed here before it is published. Of dictionaries with free keys both keys and
values have a treatment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from schemas.base import Record
from schemas.events import HostLoad, KernelEvent, NodeStatus
from schemas.findings import Evidence, Finding, ProgressMark, Subject
from schemas.fleet import (
    FailurePolicy,
    Job,
    Layout,
    Model,
    ModeScope,
    Node,
    Policy,
    PolicyHeartbeat,
    RankPlacement,
    RulePolicy,
)
from schemas.frames import FabricFrame, GpuFrame
from schemas.remediation import ActionResult, Approval, Cause, Command, Incident, Target
from schemas.results import JobPerformance, StepResult
from schemas.steps import CollectiveDigest, CollectiveTiming, RankProgress, StepTiming

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LEFT_OUT", "TABLE", "Entries", "How", "Inner", "Treatment"]


class How(Enum):
    """What becomes of a value."""

    KEPT = auto()
    """Figures, times, PCI addresses, and words of a list that the code has."""
    NAME = auto()
    """A name: its pseudonym."""
    NAMES = auto()
    """Names in order, as ids of findings are said: their pseudonyms in order."""
    SAID = auto()
    """Text of our own: names in it by their pseudonyms."""
    LINE = auto()
    """Text of others: what drivers print, and nothing else."""
    WORD = auto()
    """A word of a site's choice: kept where it is one of the usual ones, else a pseudonym."""
    LINK = auto()
    """A port, device or interface: kept where it is called as its driver calls it."""
    PEER = auto()
    """Switch or node, then ports, between slashes."""
    PCI = auto()
    """A PCI address; what is none is a name."""
    ADVICE = auto()
    """Advice: the shipped texts as text of our own, a site's as one pseudonym."""
    PART = auto()
    """The name of a part, as its driver prints it or as the table of parts has it."""
    VERSION = auto()
    """A version of digits and dots."""
    BOOT = auto()
    """A boot's id behind the prefixes that say which numbering it is."""
    AUDIENCE = auto()
    """`actuators/SITE`."""
    PATTERNS = auto()
    """Shell patterns of node names: the nodes that they fit."""
    PATH = auto()
    """A path: kept where every host may have it."""
    TOPIC = auto()
    """A topic of the table."""
    WHOLE = auto()
    """A text of a person: one pseudonym for all of it."""
    SHA256 = auto()
    """A sum, by another."""
    FIGURES = auto()
    """Numbers and lists of numbers; all else goes."""
    CLEARED = auto()
    """Left out."""


@dataclass(frozen=True, slots=True)
class Inner:
    """A record inside a record, or several, by its own entry of the table."""

    family: type[Record]


@dataclass(frozen=True, slots=True)
class Entries:
    """A dictionary.

    Attributes:
        keys: what becomes of a key.
        values: what becomes of a value.
        by_key: what becomes of the values of some keys.
        is_closed: a key that is not in `by_key` is not known, and goes.
    """

    keys: How
    values: Treatment = How.KEPT
    by_key: Mapping[str, Treatment] = field(default_factory=dict)
    is_closed: bool = False


Treatment = How | Inner | Entries


def _kept(names: str) -> dict[str, Treatment]:
    return dict.fromkeys(names.split(), How.KEPT)


def _named(names: str) -> dict[str, Treatment]:
    return dict.fromkeys(names.split(), How.NAME)


def _figures(names: str) -> dict[str, Treatment]:
    return dict.fromkeys(names.split(), How.FIGURES)


_GROUP = Entries(
    How.KEPT,
    by_key={
        "desc": How.WORD,
        "id": How.WORD,
        **_figures("ranks ordinal is_unnamed enqueued started completed seen is_p2p pending peers"),
    },
    is_closed=True,
)
_OPERATION = Entries(
    How.KEPT,
    by_key={
        "op": How.WORD,
        "dtypes": How.WORD,
        **_figures("group seq order is_p2p p2p_seq src dst input_sizes overtaken"),
    },
    is_closed=True,
)
_VALUES = Entries(
    How.KEPT,
    How.SAID,
    by_key={
        "raw": How.LINE,
        "message": How.LINE,
        "peer": How.PEER,
        "group": How.WORD,
        "group_desc": How.WORD,
        "nodes": How.NAMES,
    },
)

LEFT_OUT = frozenset({"decisions", "dead-letter", "late"})
"""Topics that have no place in a redacted archive: the journal, whose entries are compared by bytes, and original bytes."""

TABLE: dict[type[Record], dict[str, Treatment]] = {
    GpuFrame: {
        "pci_bus_id": How.PCI,
        **_named("node_id agent_session gpu_uuid mig_uuids"),
        "boot_id": How.BOOT,
        "driver_version": How.VERSION,
        "sku": How.PART,
        "read_error": How.LINE,
        **_kept(
            "record seq event_time_ns gpu_index sm_clock_mhz mem_clock_mhz gpu_temp_c mem_temp_c "
            "gpu_temp_margin_c power_w power_limit_w energy_millijoules gpu_util_pct mem_copy_util_pct fb_used_mib "
            "clock_event_reasons_mask power_violation_ns thermal_violation_ns sync_boost_violation_ns "
            "board_limit_violation_ns low_util_violation_ns reliability_violation_ns ecc_sbe_volatile_count "
            "ecc_dbe_volatile_count ecc_sbe_aggregate_count ecc_dbe_aggregate_count row_remap_pending row_remap_failure "
            "correctable_remapped_rows uncorrectable_remapped_rows nvlink_crc_errors nvlink_replay_errors "
            "nvlink_recovery_errors nvlink_link_count nvlink_active_link_count pcie_link_gen pcie_link_width "
            "pcie_max_link_gen pcie_max_link_width pcie_replay_count gr_engine_active_ratio sm_active_ratio "
            "sm_occupancy_ratio tensor_active_ratio dram_active_ratio nvlink_tx_bytes_per_s nvlink_rx_bytes_per_s "
            "pcie_tx_bytes_per_s pcie_rx_bytes_per_s gpu_recovery_action power_default_limit_w max_sm_clock_mhz "
            "max_mem_clock_mhz slowdown_temp_c shutdown_temp_c gpu_max_temp_c mem_max_temp_c slowdown_tlimit_c "
            "shutdown_tlimit_c gpu_max_tlimit_c mem_max_tlimit_c row_remap_max_banks row_remap_high_banks "
            "row_remap_partial_banks row_remap_low_banks row_remap_none_banks retired_pages_sbe_count "
            "retired_pages_dbe_count retired_pages_pending mig_enabled"
        ),
    },
    FabricFrame: {
        "pci_bus_id": How.PCI,
        **_named("node_id switch_id agent_session"),
        "device": How.LINK,
        "port": How.LINK,
        "peer": How.PEER,
        "link_state": How.WORD,
        "counters": Entries(How.KEPT),
        **_kept(
            "record view seq event_time_ns rate_gbps rx_data_bytes tx_data_bytes link_down_events rx_global_pause_frames "
            "tx_global_pause_frames pcie_link_gen pcie_link_width pcie_max_link_gen pcie_max_link_width pfc_port "
            "pfc_priority rx_pause_frames tx_pause_frames rx_pause_us tx_pause_us"
        ),
    },
    KernelEvent: {
        "pci_bus_id": How.PCI,
        **_named("node_id agent_session gpu_uuid"),
        "boot_id": How.BOOT,
        "severity": How.WORD,
        "interface": How.LINK,
        "driver": How.WORD,
        "recovery_action": How.WORD,
        **dict.fromkeys(("text", "raw", "last_raw", "error_name"), How.LINE),
        **dict.fromkeys(("pid", "process"), How.CLEARED),
        **_kept(
            "record kmsg_seq event_time_ns source code switch_index reported_severity link caused_by_xid trusted "
            "inferred repeat_count condition"
        ),
    },
    HostLoad: {
        "disk_free_ratio": Entries(How.PATH),
        **_kept(
            "observed_ns cpu_count cpu_span_s cpu_busy_ratio cpu_iowait_ratio cpu_steal_ratio load_1min load_5min load_15min "
            "cpu_pressure_some_pct cpu_pressure_full_pct memory_pressure_some_pct memory_pressure_full_pct io_pressure_some_pct "
            "io_pressure_full_pct memory_total_bytes memory_available_bytes core_throttle_count package_throttle_count"
        ),
    },
    NodeStatus: {
        **_named("node_id agent_session"),
        "boot_id": How.BOOT,
        "agent_version": How.VERSION,
        "sources": How.WORD,
        "note": How.LINE,
        "host": Inner(HostLoad),
        **_kept("record seq event_time_ns state dropped_records"),
    },
    CollectiveTiming: {"group": How.WORD, "instance": How.WORD, "op": How.WORD, **_kept("duration_us size_bytes")},
    StepTiming: {
        **_named("job_id node_id agent_session"),
        "collectives": Inner(CollectiveTiming),
        **_kept(
            "record epoch seq event_time_ns step phase rank step_us own_us compute_us forward_us backward_us optimizer_us "
            "host_us data_us wait_us tokens sum_squared_lengths"
        ),
    },
    RankProgress: {
        **_named("job_id node_id agent_session"),
        "groups": Entries(How.WORD),
        **_kept("record epoch seq event_time_ns rank last_step phase connected"),
    },
    CollectiveDigest: {
        **_named("job_id node_id agent_session"),
        "version": How.VERSION,
        "dump_path": How.PATH,
        "dump_sha256": How.SHA256,
        "groups": _GROUP,
        "pending": _OPERATION,
        "completed": _OPERATION,
        **_kept("record epoch seq event_time_ns rank entry_count written_ns pending_total"),
    },
    Model: _kept(
        "parameters embedding_parameters active_parameters trainable_parameters layers hidden heads head_dim kv_heads "
        "ffn_hidden vocab experts experts_per_token gated_mlp tied_embeddings"
    ),
    Layout: _kept("tensor context data pipeline expert virtual_pipeline"),
    Job: {
        "job_id": How.NAME,
        "model": Inner(Model),
        "layout": Inner(Layout),
        "sku": How.PART,
        "flop_convention": How.WORD,
        "precision": How.WORD,
        "gpu_hour_cost": How.CLEARED,
        **_kept(
            "record version effective_from_ns epoch state world_size reporting_ranks step_timings workload recompute seq_len "
            "tokens_per_step peak_tflops mfu_target"
        ),
    },
    RankPlacement: {
        "pci_bus_id": How.PCI,
        **_named("job_id node_id gpu_uuid"),
        "sku": How.PART,
        "role": How.WORD,
        **_kept("record version effective_from_ns epoch rank stage"),
    },
    Node: {
        "pci_bus_id": How.PCI,
        **_named("node_id gpu_uuid rack leaf rail zone pod"),
        "sku": How.PART,
        "labels": How.CLEARED,
        **_kept("record version effective_from_ns"),
    },
    RulePolicy: {
        "enabled": How.KEPT,
        "thresholds": Entries(How.KEPT),
        "per_sku": Entries(How.PART, Entries(How.KEPT)),
    },
    ModeScope: {**_kept("mode kinds"), "nodes": How.PATTERNS, **_named("racks zones jobs")},
    FailurePolicy: {**_kept("enabled act when valid_ns restarts_job"), "taint": How.WORD, "advice": How.WHOLE},
    Policy: {
        "policy_version": How.WORD,
        "site_id": How.NAME,
        "rules": Entries(How.KEPT, Inner(RulePolicy)),
        "mode_by_kind": Entries(How.KEPT),
        "scopes": Inner(ModeScope),
        "guards": Entries(How.KEPT, Inner(RulePolicy)),
        "failures": Entries(How.KEPT, Inner(FailurePolicy)),
        "codes": Entries(How.KEPT, Inner(FailurePolicy)),
        "gpu_hour_cost": How.CLEARED,
        **_kept("record effective_from_ns mode kill_switch settle_ns"),
    },
    PolicyHeartbeat: {"site_id": How.NAME, "policy_version": How.WORD, **_kept("record event_time_ns")},
    StepResult: {
        "job_id": How.NAME,
        "flop_convention": How.WORD,
        "description_error": How.SAID,
        **_kept(
            "record epoch step event_time_ns phase ranks_expected ranks_reported missing_ranks step_time_us own_median_us "
            "own_max_us own_max_rank wait_share_p50 wait_share_p99 tokens mfu hfu waste model_tflops_per_gpu "
            "recompute_tflops_per_gpu peak_tflops impossible slowest_ranks slowest_own_us"
        ),
    },
    JobPerformance: {
        "job_id": How.NAME,
        "group": How.WORD,
        "slowest_instance": How.WORD,
        "op": How.WORD,
        **_kept(
            "record epoch window_start_ns window_end_ns bytes_per_collective algorithm_bandwidth_gb_s bus_bandwidth_gb_s "
            "wait_share steps communicators ranks_per_communicator transfer_us slowest_bus_bandwidth_gb_s"
        ),
    },
    Subject: {
        "pci_bus_id": How.PCI,
        **_named("job_id node_id gpu_uuid switch_id zone"),
        "device": How.LINK,
        "port": How.LINK,
        **_kept("level rank ranks stage priority link"),
    },
    Evidence: {"topic": How.TOPIC, **_kept("partition offset")},
    Finding: {
        **_named("finding_id site_id job_id"),
        "subject": Inner(Subject),
        "values": _VALUES,
        "explanation": How.SAID,
        "evidence": Inner(Evidence),
        **_kept("record rule rule_version kind severity state epoch step event_time_ns onset_ns slowdown urgent"),
    },
    ProgressMark: {"site_id": How.NAME, **_kept("record role partition mark_ns")},
    Incident: {
        **_named("incident_id site_id job_id"),
        "findings": How.NAMES,
        "suppressed": How.NAMES,
        "culprit": Inner(Subject),
        "summary": How.SAID,
        "advice": How.ADVICE,
        **_kept("record state cause_class event_time_ns onset_ns slowdown gpu_hours_lost"),
    },
    Target: {
        "pci_bus_id": How.PCI,
        **_named("node_id gpu_uuid switch_id job_id"),
        "device": How.LINK,
        "port": How.LINK,
        **_kept("level"),
    },
    Cause: {"incident_id": How.NAME, "findings": How.NAMES, "evidence": Inner(Evidence)},
    Command: {
        **_named("command_id site_id supersedes approved_by"),
        "target": Inner(Target),
        "audience": How.AUDIENCE,
        "cause": Inner(Cause),
        "taint": How.WORD,
        "reason": How.SAID,
        "cost_estimate": Entries(How.KEPT, by_key={"money_lost_per_hour": How.CLEARED}),
        "policy_version": How.WORD,
        "key_id": How.CLEARED,
        **_kept("record kind decided_at_ns expires_at_ns sequence attempt mode when"),
    },
    ActionResult: {
        **_named("command_id site_id actuator_id"),
        "reason": How.LINE,
        "message": Inner(Evidence),
        **_kept("record event_time_ns outcome code"),
    },
    Approval: {**_named("command_id site_id approver"), **_kept("record event_time_ns expires_at_ns")},
}

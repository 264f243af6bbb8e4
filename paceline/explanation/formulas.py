"""The rules in words and formulas, as short as they can be held against the numbers of a finding.

One entry per rule, with names of thresholds and of columns as they are in policy and records. docs/rules.md has the same
with reasons, sources and look-alikes. `columns` are those of the cited records that the rule reads.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMULAS", "Formula", "formula_of"]


@dataclass(frozen=True, slots=True)
class Formula:
    """One rule: lines for people, and the columns that it reads of a frame."""

    lines: tuple[str, ...]
    columns: tuple[str, ...] = ()


_RATE = "rate = growth of the counter since the frame before / seconds between the two; a fall is a new baseline"

FORMULAS: dict[str, Formula] = {
    "straggler": Formula(
        (
            "own   = own_us, else compute_us + host_us + data_us: a rank's time without waiting",
            "peers = ranks of the same stage, part and role",
            "work  = 1 + slope of tokens x excess of tokens over the peers' median + the same of sum_squared_lengths",
            "e     = ln(own / work / median of own / work of the peers without the rank itself)",
            "noise = median over ranks of the running mean of |e - e of the step before| / 1.128, at least min_scale;",
            "        a running mean gives each step the weight 1/n until n = 16, then 1/16",
            "hit   : e > max(ln(1 + floor), scales x noise)",
            "fast  : at least fast_hits of the last fast_steps recorded steps are hits, and so many were seen",
            "slow  : running mean of e > ln(1 + floor) and > scales x noise / sqrt(n, after 16 steps 31), over at least",
            "        slow_steps steps, with slow_share of the last 16 above half of ln(1 + floor)",
            "burst : at least burst_hits of the last burst_steps recorded steps are hits, the present one among them",
        )
    ),
    "hang": Formula(
        (
            "limit = the greater of p99_times x the 99th percentile of the step time and the median + margin_ns,",
            "        once least_steps training steps are known",
            "hang_suspected: no rank of the job has made progress for longer than the limit",
            "verdict: of the digests that have come, quiet_ns after the last of them, deadline_ns after the suspicion at the",
            "        latest, by the rules of docs/hang.md",
        )
    ),
    "missing_ranks": Formula(("missing = ranks expected - ranks that reported when the step closed; said when > 0",)),
    "barrier_wait": Formula(
        (
            "wait share = wait_us / step time, per rank",
            "said when the 99th percentile over ranks > share for 3 recorded steps in a row",
        )
    ),
    "job_pace": Formula(
        (
            "reference = median of a figure's first 20 recorded steps, following by 1 % a step",
            "job_slowdown    : median own time > limit x reference, 10 steps in a row; 1.03 <= limit = 1 + 3 x wobble <= 1.05",
            "stage_imbalance : median own time of the heaviest stage > 1.10 x the median of the others', 10 steps in a row",
            "length_imbalance: entropy of who is longest over 32 steps > 0.8 of the greatest possible, noise > 5 %, 10 steps",
        )
    ),
    "slow_network": Formula(
        (
            "transfer = shortest duration among the members of a communicator; reference = its own, from its first 20 steps",
            "slow     : transfer > ratio x reference, ln(transfer / reference) > scales x noise, transfer >= least_us,",
            "           transfer >= least_share of the step, and the job's median own time < own_flat x its reference",
            "said after steps recorded steps in a row and up to gather_steps further ones, while another may still follow",
        )
    ),
    "slow_storage": Formula(
        (
            "data = median data_us over ranks; reference = median of its first 20 recorded steps, following by 1 % a step",
            "slow : data > ratio x reference, data - reference > share x step time and >= of_excess x growth of median own,",
            "       and at least covered of the ranks above reference + half of that; said after 5 recorded steps in a row",
        )
    ),
    "uneven_work": Formula(
        (
            "factor = 1 + slope x (tokens / the peers' median of tokens - 1), slope from a fit of own time on work",
            "said when the largest factor >= factor for 10 recorded steps in a row: expert_imbalance of a job with experts,",
            "else token_imbalance",
        )
    ),
    "changed_ranks": Formula(
        (
            "pace    = own time / the rank's own reference (mean of its first 20 steps), smoothed by half each step",
            "changed : pace > ratio",
            "said when least_ranks <= changed < most_share of the ranks, median pace of the others < others_ratio, and",
            "          lowest changed pace - highest other pace > scales x noise x 0.58, for 10 steps in a row",
        )
    ),
    "scattered_pauses": Formula(
        (
            "pause = a straggler's hit after 4 steps without one, more than host_share of its excess in host time",
            "said when at least share of the last 64 steps have one, of at least least_ranks ranks, none with more than",
            "          most_of_one of them",
        )
    ),
    "low_mfu": Formula(
        (
            "MFU = FLOP of the step by flop_convention / (step time x GPUs x peak_tflops)",
            "said when MFU < the job's mfu_target, else target, for more than steps recorded steps in a row;",
            "a warning below below_best of the job's best hour",
        )
    ),
    "impossible_mfu": Formula(
        (
            "MFU = FLOP of the step by flop_convention / (step time x GPUs x peak_tflops)",
            "said when MFU or HFU > 1 (of 8-bit work held against a 16-bit peak: > 2.03): the job's description is wrong",
        )
    ),
    "sm_clock": Formula(
        (
            "busy  : not idle (bit 0x1 of clock_event_reasons_mask) and gpu_util_pct >= 50, else sm_active_ratio >= 0.3",
            "limit = base_share x base clock of the part, else peer_share x median of its busy peers",
            "low   : busy, sm_clock_mhz < min(limit, ceiling_mhz), and < peer_share x median of its busy peers",
            "said when low in hits samples within span_ns",
        ),
        ("sm_clock_mhz", "clock_event_reasons_mask", "gpu_util_pct", "sm_active_ratio"),
    ),
    "thermal_violation": Formula(
        ("growth of thermal_violation_ns within the trailing minute > violation_ns",),
        ("thermal_violation_ns", "gpu_temp_c", "clock_event_reasons_mask"),
    ),
    "uncorrectable_ecc": Formula(
        ("any increase of ecc_dbe_volatile_count or ecc_dbe_aggregate_count; a volatile count at first sight",),
        ("ecc_dbe_volatile_count", "ecc_dbe_aggregate_count"),
    ),
    "xid": Formula(
        (
            "the code of a kernel line is looked up in the catalogue: fatal is critical, degraded a warning, others info",
            "a line that a user process may have written, and an unknown code, are observed only",
            "so is what a node says within maintenance_ns of its maintenance, within boot_ns of a new boot, and of an earlier boot",
            "equal codes of one device within a minute of the last are one episode",
        )
    ),
    "pfc_pause": Formula(
        (
            "frames/s = growth of pause frames (all priorities and link level) / seconds, per port and direction",
            "said when frames/s > frames_per_s in hits samples within span_ns; received is a victim, transmitted stops others",
        ),
        ("rx_pause_frames", "tx_pause_frames", "rx_global_pause_frames", "tx_global_pause_frames"),
    ),
    "power": Formula(
        (
            "power_slowdown: bit 0x80, or bit 0x8 without 0x40, of clock_event_reasons_mask at work in hits samples",
            "                within span_ns",
            "power_cap     : share of working time under bit 0x4 - median share of the peers > cap_share_above, over cap_span_ns",
        ),
        ("clock_event_reasons_mask", "power_w", "power_limit_w", "sm_clock_mhz", "power_violation_ns"),
    ),
    "nvlink_errors": Formula(
        (_RATE, "nvlink_crc_errors per second > crc_errors_per_s in hits samples within span_ns"),
        ("nvlink_crc_errors", "nvlink_replay_errors"),
    ),
    "pcie_link": Formula(
        (
            "pcie_link  : width < maximum in width_hits samples, or generation < maximum at work in generation_hits samples,",
            "             within span_ns",
            "pcie_replay: replays in the trailing minute > replay_factor x ceil(lanes x DCGM's limit of the generation)",
        ),
        ("pcie_link_gen", "pcie_max_link_gen", "pcie_link_width", "pcie_max_link_width", "pcie_replay_count"),
    ),
    "row_remap": Formula(
        (
            "row_remap_pending, row_remap_failure: the driver's flag is set",
            "row_remap_exhausting: uncorrectable_remapped_rows >= uncorrectable_rows",
        ),
        ("row_remap_pending", "row_remap_failure", "uncorrectable_remapped_rows"),
    ),
    "port_errors": Formula(
        (
            _RATE,
            "link_down: the state is not active, or link_down_events grew; link_flapping: flaps returns within 5 min",
            "rates    : above the counter's threshold in hits samples within span_ns, or three readings if that is longer;",
            "           link_error_recovery in the trailing minute",
        ),
        ("link_state", "link_down_events"),
    ),
    "port_speed": Formula(
        (
            "rate_gbps < share x the highest of the port's own session, or of all other ports of the link layer",
            "(at least peers, all alike), in hits samples within span_ns",
        ),
        ("rate_gbps", "link_state"),
    ),
    "port_loss": Formula(
        (
            _RATE,
            "said when above the counter's threshold in hits samples within span_ns, or three readings if that is longer",
        )
    ),
    "nic_pcie_link": Formula(
        ("pcie_link_width < pcie_max_link_width in width_hits samples in a row",),
        ("pcie_link_gen", "pcie_max_link_gen", "pcie_link_width", "pcie_max_link_width"),
    ),
    "congestion": Formula(
        (
            _RATE,
            "rate > max(floor, factor x median rate of the node's other ports of the link layer) in hits samples within",
            "span_ns; the floor is wait_ticks_per_s for port_xmit_wait, else packets_per_s; at least peers other ports",
        )
    ),
    "congestion_own": Formula(
        (
            "rate over a piece of 5 s > max(floor, factor_own x the port's own slow median), pieces in a row;",
            "pieces count from busy_bytes_per_s of traffic on; the median is learnt from pieces_to_learn of them",
        )
    ),
    "device_peers": Formula(
        (
            "per piece of 5 s, node and metric the mean figure of the node's worst device; peers: nodes of the job and part",
            "high metrics: figure - median of the peers > max(the metric's threshold, scales x 1.4826 MAD); low ones reversed",
            "said when out without a break for persist_ns, or with_code_ns where a code of a GPU came within code_ns before;",
            "      of at least peers others; not when more than most_share of the nodes are out",
            "thresholds: pause_frames_per_s, cpu_busy_off, io_pressure_off_pct, gpu_util_off_pct, nvlink_errors_per_s,",
            "      pcie_off, port_speed_off, port_errors_per_s, thermal_share, sm_clock_off",
        )
    ),
    "clock_skew": Formula(
        (
            "difference = append time - event time of a record; skew = lowest over 10 half minutes, positive: behind",
            "ahead : lowest of ahead_buckets half minutes < -skew_ns",
            "behind: skew > skew_ns, heard in behind_buckets half minutes whose lowest agree within steady_ns",
        )
    ),
    "node_silence": Formula(
        (
            "node_silent : last status older than silent_ns while another node was heard within speaking_ns",
            "nodes_silent: at least mass_nodes and more than mass_share of the watched silent within at_once_ns of each other",
        )
    ),
}


def formula_of(rule: str) -> Formula:
    """A rule's formula; one that says where to look for a rule that is not here."""
    return FORMULAS.get(rule) or Formula((f"rule {rule}: see docs/rules.md",))

"""An explanation as plain data: every figure that a person needs to recompute a finding, units in the names.

Deliberately no text: how it is shown is another module's matter.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from schemas.findings import Finding

__all__ = [
    "CitedRecord",
    "Explanation",
    "Impact",
    "JobStepRow",
    "PeerComparison",
    "PeerRow",
    "Persistence",
    "RankStepRow",
    "ThresholdInForce",
]


@dataclass(frozen=True, slots=True)
class ThresholdInForce:
    """One threshold: its value, the default, who set it (`default`, `policy NAME`), and where the default is from."""

    name: str
    value: float
    default: float
    set_by: str
    source: str


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One rank of a comparison in the finding's step; `work` is how much more time its work explains, 1 for equal work."""

    rank: int
    node_id: str
    own_us: int | None
    wait_us: int | None
    work: float
    is_subject: bool


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """Whom a rank was held against in one step.

    Attributes:
        key: what peers have in common: stage, part and role.
        rank: the rank that was judged; of several the slowest.
        rows: all peers, itself among them, in rank order.
        own_us: its own time.
        work: by how much more of it its work explains than the peers' (a factor).
        peer_median_us: median of the others' own / work.
        peer_mad_us: their median absolute deviation from it.
        ratio: own / work over the peers' median.
        log_ratio: natural logarithm of that, the rule's score.
        noise_scale: the job's noise, as the rule had it.
        changes: by rank, the running mean of the change of its score from step to step; their median over 1.128 is the
            noise. Empty where earlier steps are not known.
        limit: what the score must be above: the greater of ln(1 + floor) and scales x noise.
    """

    key: dict[str, str | int | None]
    rank: int
    rows: tuple[PeerRow, ...]
    own_us: int
    work: float
    peer_median_us: float
    peer_mad_us: float
    ratio: float
    log_ratio: float
    noise_scale: float
    changes: dict[int, float]
    limit: float


@dataclass(frozen=True, slots=True)
class RankStepRow:
    """One recorded step of the judged rank; `running_mean` is of the score, null where it is not known from the beginning."""

    step: int
    event_time_ns: int
    first_offset: int
    own_us: int | None
    work: float | None
    peer_median_us: float | None
    log_ratio: float | None
    noise_scale: float
    limit: float
    is_hit: bool
    running_mean: float | None
    step_time_us: int | None


@dataclass(frozen=True, slots=True)
class Persistence:
    """Over which recorded steps a rank was slow."""

    chart: str
    rule: str
    hits: int
    of_steps: int
    rows: tuple[RankStepRow, ...]


@dataclass(frozen=True, slots=True)
class JobStepRow:
    """One recorded step of the job, for rules that look at all ranks together."""

    step: int
    event_time_ns: int
    first_offset: int
    phase: str
    ranks_reported: int
    ranks_expected: int
    step_time_us: int | None
    own_median_us: int | None
    own_max_us: int | None
    own_max_rank: int | None
    wait_share_p50: float | None
    wait_share_p99: float | None
    mfu: float | None
    transfer_us: dict[str, int] | None = None
    """Shortest time in each communicator that the finding names."""


@dataclass(frozen=True, slots=True)
class Impact:
    """What the step would be without the culprit, and what the difference costs.

    Attributes:
        step_ms: of the finding's step.
        step_without_ms: the same less the gain.
        gain_ms: by how much it would be shorter; an estimate, see `way`.
        excess_ms: the culprit's own time beyond its peers' median, the most that it can be.
        way: how the gain was told.
        arithmetic: the gain with its figures, to be recomputed.
        mfu_percent, mfu_without_percent, mfu_points: null where the job has no MFU.
        gpus: the job's world size; null where it is not registered.
        gpu_hours_lost_per_hour: gpus x gain / step.
        gpu_hours_lost: since the onset.
        price_per_gpu_hour: and where it is from.
        money_lost_per_hour: at that price; null without one.
        share_of_excess: of the own time that all ranks have beyond their peers' medians, the culprit's part.
    """

    step_ms: float
    step_without_ms: float
    gain_ms: float
    excess_ms: float
    way: str
    arithmetic: str
    mfu_percent: float | None
    mfu_without_percent: float | None
    mfu_points: float | None
    gpus: int | None
    gpu_hours_lost_per_hour: float | None
    gpu_hours_lost: float | None
    price_per_gpu_hour: float | None
    price_source: str | None
    money_lost_per_hour: float | None
    share_of_excess: float | None


@dataclass(frozen=True, slots=True)
class CitedRecord:
    """A record that a finding rests on, or one of the same source before it (`is_cited` false).

    `values` are the columns of the finding's subject; of a record without columns, its fields.
    """

    topic: str
    partition: int
    offset: int
    is_cited: bool
    record: str | None
    event_time_ns: int | None
    publisher: str | None
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One finding with everything that is known of how it came about.

    Attributes:
        finding: as it opened.
        origin: `recomputed` by the engines, or `recorded` and only read.
        policy: name of the policy in force, or `default`.
        formula: the rule, in lines.
        thresholds: those in force.
        comparison, persistence, job_steps, impact: null or empty where the rule has none, or it cannot be told.
        evidence: cited records and those before them, in order.
        notes: what is missing here and why.
    """

    finding: Finding
    origin: Literal["recomputed", "recorded"]
    policy: str
    formula: tuple[str, ...]
    thresholds: tuple[ThresholdInForce, ...]
    comparison: PeerComparison | None
    persistence: Persistence | None
    job_steps: tuple[JobStepRow, ...]
    impact: Impact | None
    evidence: tuple[CitedRecord, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for one JSON object."""
        plain = {
            name: asdict(value) if value is not None else None
            for name, value in (
                ("comparison", self.comparison),
                ("persistence", self.persistence),
                ("impact", self.impact),
            )
        }
        if self.comparison is not None:
            # Keys of JSON are texts.
            changes = {str(rank): change for rank, change in self.comparison.changes.items()}
            plain["comparison"] = {**asdict(self.comparison), "changes": changes}
        return {
            "record": "explanation",
            "finding": self.finding.model_dump(mode="json", exclude_none=True),
            "origin": self.origin,
            "policy": self.policy,
            "formula": list(self.formula),
            "thresholds": [asdict(threshold) for threshold in self.thresholds],
            **plain,
            "job_steps": [asdict(row) for row in self.job_steps],
            "evidence": [asdict(cited) for cited in self.evidence],
            "notes": list(self.notes),
        }

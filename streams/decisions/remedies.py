"""Which act answers which cause: what a site says of it, then the failure table, then the catalogue's word for a code.

The mildest sufficient act. An act that costs a node needs two kinds of evidence from two trust classes (kernel and NVML
data of its agent; step timings of its tenant), or a code that the catalogue calls fatal. Codes of the application never
cost anyone a node, and alone do not even restart a job: a code does not show that the job ended. The rows stand in the
packaged policy; what they are called by and what they are done to stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from schemas import catalog
from streams.core.failure_table import Row, changed, code_name, known_failures
from streams.decisions.advice import ADVICE

if TYPE_CHECKING:
    from schemas.fleet import Policy
    from schemas.remediation import CommandKind

__all__ = ["ADVICE", "CLASS_OF_XID", "Remedy", "in_force", "remedy_for_class", "remedy_for_code", "restart_of"]

_Level = Literal["gpu", "node", "port", "switch", "job"]

_HOUR_NS = 3_600_000_000_000
_MINUTE_NS = 60_000_000_000

CLASS_OF_XID = {79: "gpu_lost", 48: "gpu_memory", 63: "row_remap_pending", 92: "ecc_rate"}
"""Codes that have a row of their own; all others are the catalogue's."""

_LEVELS: dict[str, _Level] = {
    "reset_gpu": "gpu",
    "replace_hardware": "gpu",
    "restart_job": "job",
    "network_action": "port",
}
"""What a kind of command is done to; a node where it stands not here."""

_CATALOGUE_ACTS: dict[str, Row] = {
    "cordon_node_now": Row("cordon_node", "now", 10 * _MINUTE_NS),
    "drain_after_checkpoint": Row("drain_node", "after_checkpoint", 24 * _HOUR_NS),
    "reset_gpu": Row("reset_gpu", "now", _HOUR_NS),
    "reboot_node": Row("reboot_node", "now", _HOUR_NS),
    "replace_hardware": Row("replace_hardware", "now", 24 * _HOUR_NS),
    "restart_job": Row("restart_job", "now", 10 * _MINUTE_NS),
}
"""Catalogue names of acts; `none` and `observe` are no command."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One act.

    Attributes:
        cause_class: the class of the incident that it answers.
        kind: kind of command, or None when there is only advice.
        when: at once, or after the next checkpoint.
        term_ns: how long after the deciding record the command stays valid.
        taint: Kubernetes taint that goes with it.
        restarts_job: whether the job that runs there is restarted too, from its latest checkpoint.
        advice: what people are told with it; empty when the site has switched the row off.
        code: the kernel's code that it answers, as policies name it (`xid-79`).
    """

    cause_class: str
    kind: CommandKind | None
    when: Literal["now", "after_checkpoint"] = "now"
    term_ns: int = _HOUR_NS
    taint: str | None = None
    restarts_job: bool = False
    advice: str = ""
    code: str | None = None

    @property
    def level(self) -> _Level:
        """What it is done to: it follows from the act, and for two acts from the class."""
        if self.kind == "collect_evidence" and self.cause_class == "hang":
            # Nobody is to blame yet: all ranks of the job are asked.
            return "job"
        if self.kind == "network_action" and self.cause_class == "switch":
            return "switch"
        return _LEVELS.get(self.kind or "", "node")


def remedy_for_class(cause_class: str, policy: Policy | None = None) -> Remedy:
    """The failure table's act for a class, as the site's policy has changed it.

    Raises:
        KeyError: the class is not in the table.
    """
    return in_force(_remedy(cause_class, known_failures()[cause_class]), policy)


def remedy_for_code(source: str, code: int, policy: Policy | None = None) -> Remedy | None:
    """The act for a kernel code: the site's word for it, the failure table, the catalogue; None when there is nothing to do.

    Args:
        source: `xid` or `sxid`.
        code: the code; one that is not in the catalogue has no act.
        policy: the site's.
    """
    name = code_name(source, code)
    cause_class = CLASS_OF_XID.get(code) if source == "xid" else None
    if cause_class is not None:
        return in_force(_remedy(cause_class, known_failures()[cause_class], name), policy)
    row = _catalogue_row(source, code)
    is_named = policy is not None and name in policy.codes
    if row is None and not is_named:
        return None
    return in_force(_remedy("catalogue", row or Row(), name), policy)


def restart_of(remedy: Remedy) -> Remedy:
    """The restart that a remedy asks for besides: from the latest checkpoint, without what the remedy takes out."""
    return replace(remedy, kind="restart_job", when="now", term_ns=10 * _MINUTE_NS, taint=None, restarts_job=False)


def in_force(remedy: Remedy, policy: Policy | None) -> Remedy:
    """A remedy as a site's policy has changed it; what is changed already stays as it is."""
    if policy is None:
        return remedy
    row = Row(remedy.kind, remedy.when, remedy.term_ns, remedy.taint, remedy.restarts_job)
    advice = remedy.advice
    for setting in (policy.failures.get(remedy.cause_class), policy.codes.get(remedy.code or "")):
        if setting is None:
            continue
        if not setting.enabled:
            return replace(_remedy(remedy.cause_class, Row(), remedy.code), advice="")
        row = changed(row, setting)
        advice = advice if setting.advice is None else setting.advice
    return replace(_remedy(remedy.cause_class, row, remedy.code), advice=advice)


def _catalogue_row(source: str, code: int) -> Row | None:
    entry = catalog.xid(code) if source == "xid" else catalog.sxid(code)
    if entry is None or entry.severity in {"app", "info"}:
        return None
    row = _CATALOGUE_ACTS.get(entry.suggested_action)
    if row is None or (entry.severity != "fatal" and row.act != "restart_job"):
        # One kind of evidence, and not a fatal one, costs nobody a node or a GPU.
        return None
    return row


def _remedy(cause_class: str, row: Row, code: str | None = None) -> Remedy:
    return Remedy(
        cause_class,
        row.act,
        row.when,
        row.valid_ns,
        row.taint,
        row.restarts_job,
        ADVICE[cause_class],
        code,
    )

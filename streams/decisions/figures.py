"""Figures of a finding that decisions compute with, checked before anything is folded.

A finding carries figures of any kind for people to read. The few that are computed with must be numbers: one that is not
would fail later, when a record of somebody else lets it settle, and take that one's outputs with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.errors import InvalidRecordError

if TYPE_CHECKING:
    from schemas.findings import Finding

__all__ = ["check_figures"]

_COMPUTED = ("excess_us", "step_time_us", "host_excess_us", "data_excess_us", "transfer_us", "reference_us")
_CODED = frozenset({"xid", "sxid"})


def check_figures(finding: Finding) -> None:
    """Hold the figures of a finding against what is done with them.

    Raises:
        InvalidRecordError: one is no number; the text names it.
    """
    values = finding.values
    for name in _COMPUTED:
        value = values.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InvalidRecordError(f"values.{name} is no number")
    ranks = values.get("ranks")
    if isinstance(ranks, list) and not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
        raise InvalidRecordError("values.ranks are no ranks")
    code = values.get("code")
    if finding.kind in _CODED and values.get("trusted") and (isinstance(code, bool) or not isinstance(code, int)):
        raise InvalidRecordError("values.code is no code")

"""Whether the site's policy lets anybody act now: its kill switch, and its keeper's heartbeat.

What holds is the policy of the latest `effective_from_ns` that has come; a kill switch that came after it holds whatever its own,
or a policy dated ahead would keep it out. Without a policy, or without a heartbeat for a
minute, nothing is done: a kill switch that cannot be heard must be taken for thrown. A clock that is off makes each heartbeat
look old or early, and stops too. Pure: records and the time are passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.actuators.verification import SKEW_NS, Refusal
from schemas.fleet import Policy, PolicyHeartbeat

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["HEARTBEAT_NS", "Permission"]

HEARTBEAT_NS = 60_000_000_000
"""Age of the last heartbeat beyond which nothing is done."""


class Permission:
    """What a site's policy permits.

    Args:
        site_id: whose policy counts.
    """

    def __init__(self, site_id: str) -> None:
        self._site_id = site_id
        self._policy: Policy | None = None
        self._beat_ns: int | None = None

    def take(self, record: Record) -> None:
        """Take a policy or a heartbeat; others, and those of other sites, change nothing."""
        if isinstance(record, Policy) and record.site_id == self._site_id:
            known = self._policy
            if known is None or record.kill_switch or record.effective_from_ns >= known.effective_from_ns:
                self._policy = record
        elif isinstance(record, PolicyHeartbeat) and record.site_id == self._site_id:
            # The newest in the order of the log: one from a clock that is far ahead must not cover later silence.
            self._beat_ns = record.event_time_ns

    def refusal(self, now_ns: int) -> Refusal | None:
        """Why nothing may be done at a time; None when it may."""
        if self._policy is None:
            return Refusal("no_policy", f"site {self._site_id!r} has no policy")
        if self._policy.kill_switch:
            return Refusal("kill_switch", f"policy {self._policy.policy_version!r} has its kill switch thrown")
        if self._beat_ns is None:
            return Refusal("no_policy_heartbeat", "the keeper of the policy was never heard")
        age_ns = now_ns - self._beat_ns
        if not -SKEW_NS <= age_ns <= HEARTBEAT_NS:
            return Refusal(
                "no_policy_heartbeat",
                f"the last heartbeat is {age_ns / 1e9:.0f} s old by this clock; it may be {HEARTBEAT_NS // 10**9}",
            )
        return None

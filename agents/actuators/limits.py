"""An actuator's own limits: what it does at most, whatever it is told and whoever signed it.

They bound what a stolen signing key can cost. Pure: what was done before and the time are passed in.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.actuators.verification import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.remediation import Command

__all__ = ["COSTLY_KINDS", "LocalLimits"]

COSTLY_KINDS = frozenset(
    {"cordon_node", "drain_node", "reboot_node", "reset_gpu", "swap_spare", "replace_hardware", "restart_job"}
)
"""Kinds that take something from somebody. Giving back is never held."""

_HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class LocalLimits:
    """What an actuator may do.

    Attributes:
        costly_per_hour: acts that take a node, GPU or job from somebody, within any hour; 0 allows none.
        only: names of targets (node, switch or job), as shell patterns; empty allows all.
        never: the same, of targets that are not touched in any case.
    """

    costly_per_hour: int = 4
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def refusal(self, command: Command, costly_at_ns: Sequence[int], now_ns: int) -> Refusal | None:
        """Why a command goes beyond the limits; None when it does not.

        Args:
            command: what is asked for.
            costly_at_ns: times of the costly acts that were begun, in any order.
            now_ns: this machine's clock.
        """
        name = command.target.key()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.never):
            return Refusal("target_not_allowed", f"{name!r} is never touched from here", command)
        if self.only and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.only):
            return Refusal("target_not_allowed", f"{name!r} is none of {', '.join(self.only)}", command)
        if command.kind not in COSTLY_KINDS:
            return None
        # A clock that was set back leaves acts in the future: they count as well.
        recent = sum(at_ns > now_ns - _HOUR_NS for at_ns in costly_at_ns)
        if recent >= self.costly_per_hour:
            return Refusal(
                "local_limit",
                f"{recent} costly acts within the hour, and {self.costly_per_hour} are allowed here",
                command,
            )
        return None

"""The guards that there are and their limits: packaged defaults, and what a site's policy changes of them.

Limits are of one form with thresholds of rules, and stand in the same file of defaults. Nothing is held back here.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.fleet import Policy

__all__ = ["guard_limits", "is_guard_on", "known_guards"]


@cache
def known_guards() -> dict[str, dict[str, float]]:
    """Limits by name, by guard; empty for a guard that can only be switched."""
    text = resources.files("schemas").joinpath("data", "policy-defaults.toml").read_text(encoding="utf-8")
    return {name: dict(guard.get("thresholds", {})) for name, guard in tomllib.loads(text)["guards"].items()}


def is_guard_on(policy: Policy | None, guard: str) -> bool:
    """Whether a guard holds anything back; it does unless the policy switches it off."""
    setting = policy.guards.get(guard) if policy is not None else None
    return setting is None or setting.enabled


def guard_limits(policy: Policy | None, guard: str) -> Mapping[str, float]:
    """A guard's limits under a policy.

    Raises:
        KeyError: there is no such guard.
    """
    limits = known_guards()[guard]
    setting = policy.guards.get(guard) if policy is not None else None
    return {**limits, **setting.thresholds} if setting is not None else limits

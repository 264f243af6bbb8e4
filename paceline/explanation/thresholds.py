"""Thresholds in force for a finding: the rule's defaults with their sources, and what a policy put in their place.

Values and sources are those of the packaged file of defaults, which a test holds against the code.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from typing import TYPE_CHECKING

from paceline.explanation.model import ThresholdInForce
from streams.core.policy_file import default_policy_text

if TYPE_CHECKING:
    from schemas.fleet import Policy

__all__ = ["policy_name", "thresholds_in_force"]

_TABLE = re.compile(r"^\[rules\.(\w+)\.thresholds\]")
_LINE = re.compile(r"^(\w+)\s*=\s*[^#]+#\s*(.+)$")


def policy_name(policy: Policy | None) -> str:
    """The policy's version, or `default` where none was read."""
    return policy.policy_version if policy is not None else "default"


def thresholds_in_force(rule: str, policy: Policy | None, sku: str | None = None) -> tuple[ThresholdInForce, ...]:
    """Every threshold of a rule; empty for one that has none.

    Args:
        rule: its name.
        policy: the site's policy, or None.
        sku: the subject's part, whose overrides count.
    """
    setting = policy.rules.get(rule) if policy is not None else None
    thresholds = []
    for name, default in _defaults().get(rule, {}).items():
        value, set_by = default, "default"
        if setting is not None and policy is not None:
            if name in setting.thresholds:
                value, set_by = setting.thresholds[name], f"policy {policy.policy_version}"
            for part in sorted((part for part in setting.per_sku if sku and part.lower() in sku.lower()), key=len):
                if name in setting.per_sku[part]:
                    value = setting.per_sku[part][name]
                    set_by = f"policy {policy.policy_version} for part {part}"
        thresholds.append(ThresholdInForce(name, value, default, set_by, _sources().get((rule, name), "")))
    return tuple(thresholds)


@cache
def _defaults() -> dict[str, dict[str, float]]:
    rules = tomllib.loads(default_policy_text())["rules"]
    return {rule: setting.get("thresholds", {}) for rule, setting in rules.items()}


@cache
def _sources() -> dict[tuple[str, str], str]:
    """The comment beside each threshold of the file."""
    sources: dict[tuple[str, str], str] = {}
    rule = ""
    for line in default_policy_text().splitlines():
        if table := _TABLE.match(line):
            rule = table.group(1)
        elif line.startswith("["):
            rule = ""
        elif rule and (found := _LINE.match(line)):
            sources[(rule, found.group(1))] = found.group(2).strip()
    return sources

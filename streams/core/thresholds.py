"""Thresholds in force: a rule's frozen defaults, overridden by the site's policy and by part."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from schemas.fleet import Policy

__all__ = ["is_enabled", "thresholds_for"]

C = TypeVar("C")


def is_enabled(policy: Policy | None, rule: str) -> bool:
    """Whether a site has the rule switched on; rules are on unless the policy says otherwise."""
    setting = policy.rules.get(rule) if policy is not None else None
    return setting is None or setting.enabled


def thresholds_for(defaults: C, policy: Policy | None, rule: str, sku: str | None = None) -> C:
    """A rule's thresholds for one part.

    Args:
        defaults: the rule's frozen configuration.
        policy: the site's policy, or None.
        rule: the rule's name.
        sku: the part; overrides of the longest matching name count.

    Raises:
        ValueError: the policy names a threshold that the rule does not have.
    """
    setting = policy.rules.get(rule) if policy is not None else None
    if setting is None:
        return defaults
    overrides = dict(setting.thresholds)
    if sku is not None:
        matching = sorted((name for name in setting.per_sku if name.lower() in sku.lower()), key=len)
        for name in matching:
            overrides.update(setting.per_sku[name])
    known = {field.name: field.type for field in fields(defaults)}  # type: ignore[arg-type]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"rule {rule} has no threshold {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    typed: dict[str, Any] = {
        name: int(value) if isinstance(getattr(defaults, name), int) else value for name, value in overrides.items()
    }
    return replace(defaults, **typed)  # type: ignore[type-var]

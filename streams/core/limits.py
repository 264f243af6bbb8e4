"""A rule's thresholds by part, worked out once for as long as a policy is in force.

The same values as `thresholds_for`, which merges tables and makes a new object at every call: too slow for each GPU of
each frame. What is remembered follows from the policy alone, so it is no state and stands in no snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from streams.core.thresholds import thresholds_for

if TYPE_CHECKING:
    from schemas.fleet import Policy

__all__ = ["LimitsInForce"]

C = TypeVar("C")


class LimitsInForce(Generic[C]):
    """Thresholds of one rule.

    Args:
        defaults: the rule's frozen configuration.
        rule: the rule's name.
    """

    def __init__(self, defaults: C, rule: str) -> None:
        self._defaults = defaults
        self._rule = rule
        self._policy: Policy | None = None
        self._by_sku: dict[str | None, C] = {}
        self._by_skus: dict[tuple[str | None, ...], tuple[C, ...]] = {}

    def of(self, policy: Policy | None, sku: str | None = None) -> C:
        """The thresholds for a part under a policy.

        Raises:
            ValueError: the policy names a threshold that the rule does not have.
        """
        if policy is not self._policy:
            self._policy, self._by_sku, self._by_skus = policy, {}, {}
        limits = self._by_sku.get(sku)
        if limits is None:
            limits = self._by_sku[sku] = thresholds_for(self._defaults, policy, self._rule, sku)
        return limits

    def of_each(self, policy: Policy | None, skus: tuple[str | None, ...]) -> tuple[C, ...]:
        """The thresholds for each of a node's parts, in their order.

        Raises:
            ValueError: the policy names a threshold that the rule does not have.
        """
        each = self._by_skus.get(skus) if policy is self._policy else None
        if each is None:
            each = tuple(self.of(policy, sku) for sku in skus)
            self._by_skus[skus] = each
        return each

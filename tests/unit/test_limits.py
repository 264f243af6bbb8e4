"""Limits in force: the thresholds of `thresholds_for`, worked out anew when the policy changes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from factories import A100, H100, policy

from schemas.fleet import RulePolicy
from streams.core.limits import LimitsInForce
from streams.core.thresholds import thresholds_for


@dataclass(frozen=True)
class Limits:
    share: float = 0.9
    hits: int = 3


def test_they_are_those_of_the_policy_by_part() -> None:
    told = policy({"rule": RulePolicy(thresholds={"hits": 4}, per_sku={"H100": {"share": 0.5}})})
    limits = LimitsInForce(Limits(), "rule")
    for _ in range(2):
        for sku in (None, H100, A100):
            assert limits.of(told, sku) == thresholds_for(Limits(), told, "rule", sku)


def test_another_policy_takes_effect_at_once() -> None:
    limits = LimitsInForce(Limits(), "rule")
    assert limits.of(None, H100) == Limits()
    assert limits.of(policy({"rule": RulePolicy(thresholds={"hits": 9})}), H100).hits == 9
    assert limits.of(policy({"rule": RulePolicy(thresholds={"hits": 7})}), H100).hits == 7
    assert limits.of(None, H100) == Limits()


def test_a_threshold_that_the_rule_does_not_have_stays_an_error() -> None:
    limits = LimitsInForce(Limits(), "rule")
    told = policy({"rule": RulePolicy(thresholds={"shore": 1})})
    for _ in range(2):
        with pytest.raises(ValueError, match="no threshold shore"):
            limits.of(told)


def test_a_node_s_parts_are_answered_together_under_the_policy_in_force() -> None:
    limits, skus = LimitsInForce(Limits(), "rule"), (H100, None, A100)
    told = policy({"rule": RulePolicy(per_sku={"H100": {"share": 0.5}})})
    for given in (None, told, policy(), told):
        for _ in range(2):
            assert limits.of_each(given, skus) == tuple(thresholds_for(Limits(), given, "rule", sku) for sku in skus)
    assert limits.of_each(None, ()) == ()
    with pytest.raises(ValueError, match="no threshold shore"):
        limits.of_each(policy({"rule": RulePolicy(thresholds={"shore": 1})}), skus)

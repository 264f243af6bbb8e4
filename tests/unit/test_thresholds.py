"""Thresholds in force: defaults, the site's overrides, and those of a part."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from factories import H100, policy, without

from schemas.fleet import RulePolicy
from streams.core.thresholds import is_enabled, thresholds_for


@dataclass(frozen=True)
class Limits:
    share: float = 0.9
    hits: int = 3


def test_without_a_policy_the_defaults_hold() -> None:
    assert thresholds_for(Limits(), None, "rule") == Limits()
    assert thresholds_for(Limits(), policy(), "rule") == Limits()


def test_a_site_overrides_by_name_and_whole_numbers_stay_whole() -> None:
    told = policy({"rule": RulePolicy(thresholds={"share": 0.8, "hits": 2.0})})
    limits = thresholds_for(Limits(), told, "rule")
    assert limits == Limits(0.8, 2)
    assert isinstance(limits.hits, int)


def test_a_part_overrides_the_site_and_the_longest_name_counts() -> None:
    told = policy(
        {
            "rule": RulePolicy(
                thresholds={"share": 0.8},
                per_sku={"H100": {"share": 0.7, "hits": 5}, "h100 80gb": {"share": 0.6}, "A100": {"share": 0.1}},
            )
        }
    )
    assert thresholds_for(Limits(), told, "rule", H100) == Limits(0.6, 5)
    assert thresholds_for(Limits(), told, "rule", "NVIDIA L4") == Limits(0.8)
    assert thresholds_for(Limits(), told, "rule") == Limits(0.8)


def test_a_threshold_that_the_rule_does_not_have_is_an_error_that_names_those_it_has() -> None:
    told = policy({"rule": RulePolicy(thresholds={"shore": 0.8})})
    with pytest.raises(ValueError, match="rule rule has no threshold shore; it has hits, share"):
        thresholds_for(Limits(), told, "rule")


def test_rules_are_on_unless_the_site_says_otherwise() -> None:
    assert is_enabled(None, "rule")
    assert is_enabled(policy(), "rule")
    assert is_enabled(policy({"rule": RulePolicy(thresholds={"share": 1})}), "rule")
    assert not is_enabled(without("rule"), "rule")
    assert is_enabled(without("rule"), "other")

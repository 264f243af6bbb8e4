"""One number or switch of a policy that is swept: its name, the values that it takes, and a policy with another value.

Names are those of policy files: `straggler.floor` is `floor` under `rules.straggler.thresholds`, `straggler.enabled` the
rule's switch, and `settle_ns` the key of the policy itself. Guards and the failure table are not swept: they change what is
done about an incident and not what is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from schemas.fleet import Policy, RulePolicy
from streams.core.policy_file import check_policy, default_thresholds
from streams.engines.decisions import DEFAULT_SETTLE_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOST_VALUES", "Tunable", "TunableError"]

_MOST_WHOLE = 2.0**53
"""Beyond it a float, and many a reader of JSON, passes over whole numbers."""

MOST_VALUES = 100
"""Values of one sweep: each is an engine with the state of the whole fleet."""

_SETTLE, _SWITCH = "settle_ns", "enabled"
_WORDS = {"true": 1.0, "on": 1.0, "false": 0.0, "off": 0.0}


class TunableError(Exception):
    """A name or a value cannot be swept; the text says which and what there is."""


@dataclass(frozen=True, slots=True)
class Tunable:
    """What is swept.

    Attributes:
        rule: the rule whose number or switch it is; null for `settle_ns`.
        number: its name there; `enabled` is the switch, with values 0 and 1.
        default: what holds where no policy says otherwise.
    """

    rule: str | None
    number: str
    default: float

    @staticmethod
    def named(text: str) -> Tunable:
        """What a name of the command line means.

        Raises:
            TunableError: there is no such rule or threshold.
        """
        if text == _SETTLE:
            return Tunable(None, _SETTLE, DEFAULT_SETTLE_NS)
        rule, _, number = text.partition(".")
        known = default_thresholds()
        if rule not in known:
            raise TunableError(f"no rule {rule}; there are {', '.join(sorted(known))}; or settle_ns")
        if number == _SWITCH:
            return Tunable(rule, _SWITCH, 1.0)
        if number not in known[rule]:
            there_are = ", ".join((*sorted(known[rule]), _SWITCH))
            asked = f"has no threshold {number}" if number else "is a rule: write RULE.THRESHOLD"
            raise TunableError(f"{rule} {asked}; there are {there_are}")
        return Tunable(rule, number, known[rule][number])

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return self.number if self.rule is None else f"{self.rule}.{self.number}"

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.rule is not None and self.number == _SWITCH

    @property
    def is_whole(self) -> bool:
        """Whether it counts, so that only whole numbers are values."""
        return self.is_switch or isinstance(self.default, int)

    def written(self, value: float) -> str:
        """A value as a policy file has it."""
        if self.is_switch:
            return "true" if value else "false"
        return f"{int(value)}" if self.is_whole else f"{value:g}"

    def plain(self, value: float) -> bool | int | float:
        """A value as JSON has it."""
        if self.is_switch:
            return bool(value)
        return int(value) if self.is_whole else value

    def value_in(self, policy: Policy | None) -> float:
        """What holds under a policy; limits by part are not looked at."""
        if policy is None:
            return self.default
        if self.rule is None:
            return policy.settle_ns
        setting = policy.rules.get(self.rule, RulePolicy())
        return float(setting.enabled) if self.is_switch else setting.thresholds.get(self.number, self.default)

    def put(self, policy: Policy | None, value: float, site_id: str) -> Policy:
        """A policy with this value and all else as it was; the value holds for every part.

        Args:
            policy: what was in force; null for the defaults.
            value: one of `values`.
            site_id: of a policy where there was none.
        """
        was = policy or Policy(policy_version="defaults", site_id=site_id, effective_from_ns=0)
        if self.rule is None:
            return was.model_copy(update={_SETTLE: int(value)})
        setting = was.rules.get(self.rule, RulePolicy())
        if self.is_switch:
            changed = setting.model_copy(update={_SWITCH: bool(value)})
        else:
            by_part = {
                sku: {name: limit for name, limit in limits.items() if name != self.number}
                for sku, limits in setting.per_sku.items()
            }
            thresholds = {**setting.thresholds, self.number: value}
            changed = setting.model_copy(update={"thresholds": thresholds, "per_sku": by_part})
        return was.model_copy(update={"rules": {**was.rules, self.rule: changed}})

    def values(self, text: str) -> tuple[float, ...]:
        """Values of a list `0.05,0.1`, rising, each once.

        Raises:
            TunableError: one of them is none.
        """
        return self._checked([self._value(word.strip()) for word in text.split(",")])

    def values_of_range(self, text: str) -> tuple[float, ...]:
        """Values of a range `FROM:TO:HOW_MANY`, evenly spaced, or by equal factors with `:log` behind it.

        They are rounded to six digits, and to whole numbers where only those are values.

        Raises:
            TunableError: it is no range, or one of its values is none.
        """
        words = text.split(":")
        usual = f"--range {text}: write FROM:TO:HOW_MANY, as 0.05:0.5:10, with :log behind it for equal factors"
        is_log = len(words) == 4 and words[3] == "log"
        if self.is_switch:
            raise TunableError(f"{self.name} is a switch: --values true,false")
        if not (len(words) == 3 or is_log) or not words[2].isdecimal():
            raise TunableError(usual)
        low, high, count = self._value(words[0]), self._value(words[1]), int(words[2])
        if not low < high or not 2 <= count <= MOST_VALUES:
            raise TunableError(f"{usual}; FROM below TO, and 2 to {MOST_VALUES} values")
        if is_log and low <= 0:
            raise TunableError(f"{usual}; with :log FROM is above 0")
        spread = np.geomspace(low, high, count) if is_log else np.linspace(low, high, count)
        plain = [float(f"{value:.6g}") for value in spread.tolist()]
        return self._checked([float(round(value)) for value in plain] if self.is_whole else plain)

    def _value(self, word: str) -> float:
        if self.is_switch:
            if word not in _WORDS:
                raise TunableError(f"{self.name} is a switch: its values are true and false, not {word!r}")
            return _WORDS[word]
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise TunableError(f"{self.name}: {word!r} is no number")
        return value

    def _checked(self, values: Iterable[float]) -> tuple[float, ...]:
        """Values held against the bounds that a policy file has."""
        rising = tuple(sorted(set(values)))
        if len(rising) > MOST_VALUES:
            raise TunableError(f"{len(rising)} values; at most {MOST_VALUES} are swept at once")
        for value in rising:
            if self.rule is None and not (value >= 0 and value.is_integer()):
                raise TunableError(f"{self.name} is {value:g}; it is a whole number from 0 on")
            if self.is_whole and abs(value) > _MOST_WHOLE:
                raise TunableError(f"{self.name} is {value:g}; at most {_MOST_WHOLE:g} can be told exactly")
            try:
                check_policy(self.put(None, value, "tune"))
            except ValueError as error:
                raise TunableError(str(error).rpartition(": ")[2].replace(self.number, self.name, 1)) from None
        return rising

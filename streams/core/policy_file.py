"""Policy files: a site's policy read from TOML, with every name in it held against the rules there are.

`schemas/data/policy-defaults.toml` lists every rule and threshold with its default and source; it is what names are
checked against. A file states only what it changes. A misspelt rule, threshold or key is an error that says what there
is, because it would change nothing and nobody would notice. What arrives as a record on the policy topic is not read
here, and a newer writer's names pass there.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from schemas.fleet import FailurePolicy, ModeScope, Policy, RulePolicy
from schemas.remediation import COMMAND_KINDS
from streams.core.failure_table import known_failures, refusal_of_code, refusal_of_failure
from streams.core.guard_limits import known_guards

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["check_policy", "default_policy_text", "default_thresholds", "known_thresholds", "load_policy"]

_DEFAULTS = "policy-defaults.toml"


def load_policy(path: Path, site_id: str) -> Policy:
    """A site's policy from a TOML file.

    Args:
        path: the file.
        site_id: the site, where the file names none.

    Returns:
        The policy; its version is the file's name unless the file gives one, and it is in force from the beginning of
        time unless the file says otherwise.

    Raises:
        ValueError: it cannot be read, is no policy, or names what there is not; the text says where, in one line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it is no UTF-8 text") from None
    return _policy_of(text, str(path), path.stem, site_id)


def check_policy(policy: Policy) -> None:
    """Hold a policy that came from a topic or an archive against the rules and thresholds that there are.

    Raises:
        ValueError: it names a rule or a threshold that there is not; the text says which, in one line.
    """
    _check_names(policy.model_dump(exclude={"record"}), f"policy {policy.policy_version}")


def default_policy_text() -> str:
    """The packaged file of defaults: all rules, their thresholds, where those are from, and examples."""
    return resources.files("schemas").joinpath("data", _DEFAULTS).read_text(encoding="utf-8")


@cache
def known_thresholds() -> dict[str, frozenset[str]]:
    """Names of thresholds by rule; empty for a rule that can only be switched."""
    return {name: frozenset(thresholds) for name, thresholds in default_thresholds().items()}


@cache
def default_thresholds() -> dict[str, dict[str, int | float]]:
    """Defaults of thresholds by rule; a whole number is one of counts or times, and takes only whole numbers."""
    rules = tomllib.loads(default_policy_text())["rules"]
    return {name: rule.get("thresholds", {}) for name, rule in rules.items()}


def _policy_of(text: str, where: str, name: str, site_id: str) -> Policy:
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where}: {error}") from None
    _check_names(fields, where)
    try:
        return Policy.model_validate({"policy_version": name, "site_id": site_id, "effective_from_ns": 0, **fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _check_names(fields: dict[str, Any], where: str) -> None:
    """Hold every name of a file against what there is.

    Shapes are left to the model: what is no table is passed over here.
    """
    _check(fields, Policy.model_fields, where, "key")
    for rule, setting in _table(fields.get("rules")).items():
        thresholds = known_thresholds()
        _check({rule}, thresholds, f"{where}: rules", "rule")
        of_rule = f"{where}: rules.{rule}"
        _check(_table(setting), RulePolicy.model_fields, of_rule, "key")
        _check(_table(_table(setting).get("thresholds")), thresholds[rule], f"{of_rule}.thresholds", "threshold")
        _check_values(default_thresholds()[rule], _table(_table(setting).get("thresholds")), f"{of_rule}.thresholds")
        for sku, overrides in _table(_table(setting).get("per_sku")).items():
            _check(_table(overrides), thresholds[rule], f"{of_rule}.per_sku.{sku}", "threshold")
            _check_values(default_thresholds()[rule], _table(overrides), f"{of_rule}.per_sku.{sku}")
    for guard, setting in _table(fields.get("guards")).items():
        _check({guard}, known_guards(), f"{where}: guards", "guard")
        of_guard = f"{where}: guards.{guard}"
        _check(_table(setting), ("enabled", "thresholds"), of_guard, "key", empty=("per_sku",))
        limits = _table(_table(setting).get("thresholds"))
        _check(limits, known_guards()[guard], f"{of_guard}.thresholds", "threshold")
        _check_values(known_guards()[guard], limits, f"{of_guard}.thresholds")
    _check_failures(fields, where)
    for kind in _table(fields.get("mode_by_kind")):
        _check({kind}, COMMAND_KINDS, f"{where}: mode_by_kind", "kind")
    scopes = fields.get("scopes")
    for index, scope in enumerate(scopes if isinstance(scopes, list | tuple) else ()):
        _check(_table(scope), ModeScope.model_fields, f"{where}: scopes[{index}]", "key")
        kinds = _table(scope).get("kinds")
        named = [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list | tuple) else []
        _check(named, COMMAND_KINDS, f"{where}: scopes[{index}].kinds", "kind")


def _check_failures(fields: dict[str, Any], where: str) -> None:
    """Hold what a site says of classes and codes against the failure table and the catalogues."""
    failures, codes = _table(fields.get("failures")), _table(fields.get("codes"))
    _check(failures, known_failures(), f"{where}: failures", "class")
    said = [
        *(
            (f"failures.{name}", setting, refusal_of_failure(name, _table(setting)))
            for name, setting in failures.items()
        ),
        *((f"codes.{name}", setting, refusal_of_code(name, _table(setting))) for name, setting in codes.items()),
    ]
    for name, setting, refusal in said:
        _check(_table(setting), FailurePolicy.model_fields, f"{where}: {name}", "key")
        if refusal is not None:
            raise ValueError(f"{where}: {name}: {refusal}")


def _check_values(defaults: Mapping[str, float], values: dict[str, Any], where: str) -> None:
    """Thresholds are not negative; counts and times are whole, and at least 1 where the default is.

    What is no number at all is left to the model.
    """
    for name, value in sorted(values.items()):
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        default = defaults[name]
        if not math.isfinite(value):
            continue
        if value < 0:
            raise ValueError(f"{where}: {name} is {value:g}; it cannot be negative")
        if isinstance(default, int) and (value != int(value) or (default >= 1 and value < 1)):
            raise ValueError(f"{where}: {name} is {value:g}; it is a whole number from {min(1, default)} on")


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _check(
    names: Mapping[str, Any] | Iterable[str], known: Iterable[str], where: str, word: str, empty: Iterable[str] = ()
) -> None:
    """Hold names against those that there are; those of `empty` are let pass with nothing in them."""
    allowed = sorted(known)
    passed = {name for name in empty if isinstance(names, Mapping) and not names.get(name)}
    for name in sorted(set(names) - set(allowed) - passed):
        there_is = f"there are {', '.join(allowed)}" if allowed else "there is none"
        raise ValueError(f"{where}: no {word} {name}; {there_is}")

"""Policy files: the packaged defaults are those of the code, and what nobody knows is an error."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import pytest
from factories import H100, SITE

import streams
import streams.detectors
from schemas.fleet import Policy
from streams.core.policy_file import default_policy_text, known_thresholds, load_policy
from streams.core.thresholds import is_enabled, thresholds_for
from streams.detectors.barrier_wait import BarrierWaitThresholds
from streams.detectors.changed_ranks import ChangedRanksThresholds
from streams.detectors.clock_skew import ClockSkewThresholds
from streams.detectors.congestion import CongestionThresholds
from streams.detectors.congestion_own import CongestionOwnThresholds
from streams.detectors.device_peers import DevicePeersThresholds
from streams.detectors.hang_suspicion import HangThresholds
from streams.detectors.mfu import LowMfuThresholds
from streams.detectors.nic_pcie_link import NicPcieLinkThresholds
from streams.detectors.node_silence import NodeSilenceThresholds
from streams.detectors.nvlink import NvlinkThresholds
from streams.detectors.pcie_link import PcieLinkThresholds
from streams.detectors.pfc import PfcThresholds
from streams.detectors.port_errors import PortErrorThresholds
from streams.detectors.port_loss import PortLossThresholds
from streams.detectors.port_speed import PortSpeedThresholds
from streams.detectors.power import PowerThresholds
from streams.detectors.row_remap import RowRemapThresholds
from streams.detectors.scattered_pauses import ScatteredPausesThresholds
from streams.detectors.slow_network import SlowNetworkThresholds
from streams.detectors.slow_storage import SlowStorageThresholds
from streams.detectors.sm_clock import SmClockThresholds
from streams.detectors.straggler import StragglerThresholds
from streams.detectors.thermal import ThermalThresholds
from streams.detectors.uneven_work import UnevenWorkThresholds
from streams.detectors.xid import XidThresholds

if TYPE_CHECKING:
    from pathlib import Path

DEFAULTS: dict[str, Any] = {
    "barrier_wait": BarrierWaitThresholds(),
    "changed_ranks": ChangedRanksThresholds(),
    "clock_skew": ClockSkewThresholds(),
    "congestion": CongestionThresholds(),
    "congestion_own": CongestionOwnThresholds(),
    "hang": HangThresholds(),
    "low_mfu": LowMfuThresholds(),
    "nic_pcie_link": NicPcieLinkThresholds(),
    "node_silence": NodeSilenceThresholds(),
    "nvlink_errors": NvlinkThresholds(),
    "pcie_link": PcieLinkThresholds(),
    "pfc_pause": PfcThresholds(),
    "port_errors": PortErrorThresholds(),
    "port_loss": PortLossThresholds(),
    "port_speed": PortSpeedThresholds(),
    "device_peers": DevicePeersThresholds(),
    "power": PowerThresholds(),
    "row_remap": RowRemapThresholds(),
    "scattered_pauses": ScatteredPausesThresholds(),
    "slow_network": SlowNetworkThresholds(),
    "slow_storage": SlowStorageThresholds(),
    "sm_clock": SmClockThresholds(),
    "straggler": StragglerThresholds(),
    "thermal_violation": ThermalThresholds(),
    "uneven_work": UnevenWorkThresholds(),
    "xid": XidThresholds(),
}
SWITCHES = {"impossible_mfu", "job_pace", "mfu", "missing_ranks", "uncorrectable_ecc"}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "night.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def defaults(tmp_path: Path) -> Policy:
    return load_policy(written(tmp_path, default_policy_text()), SITE)


@pytest.mark.parametrize("rule", sorted(DEFAULTS))
def test_the_files_defaults_are_those_of_the_rule(rule: str, defaults: Policy) -> None:
    assert defaults.rules[rule].thresholds == {f.name: getattr(DEFAULTS[rule], f.name) for f in fields(DEFAULTS[rule])}
    assert thresholds_for(DEFAULTS[rule], defaults, rule, H100) == DEFAULTS[rule]


def test_the_file_lists_every_rule_and_each_is_on(defaults: Policy) -> None:
    assert set(defaults.rules) == set(DEFAULTS) | SWITCHES
    assert all(is_enabled(defaults, rule) for rule in defaults.rules)
    assert {rule for rule in SWITCHES if defaults.rules[rule].thresholds} == set()


def test_no_detector_has_thresholds_that_are_not_held_here() -> None:
    found = set()
    for module in pkgutil.iter_modules(streams.detectors.__path__):
        for thing in vars(importlib.import_module(f"streams.detectors.{module.name}")).values():
            if is_dataclass(thing) and isinstance(thing, type) and thing.__name__.endswith("Thresholds"):
                found.add(thing)
    assert found == {type(thresholds) for thresholds in DEFAULTS.values()}


def test_what_the_file_says_beside_rules_is_what_a_policy_is_anyway(defaults: Policy) -> None:
    plain = Policy(policy_version="x", site_id=SITE, effective_from_ns=0)
    assert defaults.policy_version == "defaults-1"
    assert defaults.model_copy(update={"rules": {}, "guards": {}, "failures": {}, "policy_version": "x"}) == plain


def test_the_examples_in_the_file_are_valid(tmp_path: Path) -> None:
    text = default_policy_text()
    examples = re.sub(r"^#\| ?", "", text, flags=re.MULTILINE)
    assert examples != text
    told = load_policy(written(tmp_path, examples), SITE)
    assert thresholds_for(SmClockThresholds(), told, "sm_clock", "NVIDIA H200").ceiling_mhz == 1500
    assert thresholds_for(SmClockThresholds(), told, "sm_clock", H100) == SmClockThresholds()
    assert told.mode_by_kind == {"collect_evidence": "auto"}


def test_a_file_states_only_what_it_changes(tmp_path: Path) -> None:
    told = load_policy(
        written(tmp_path, "[rules.power]\nthresholds = { hits = 5 }\n[rules.xid]\nenabled = false\n"), SITE
    )
    assert (told.policy_version, told.site_id, told.effective_from_ns) == ("night", SITE, 0)
    assert thresholds_for(PowerThresholds(), told, "power") == PowerThresholds(hits=5)
    assert not is_enabled(told, "xid")
    assert is_enabled(told, "straggler")


def test_an_empty_file_is_a_policy_that_changes_nothing(tmp_path: Path) -> None:
    assert load_policy(written(tmp_path, ""), SITE).rules == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rules.stragler]\n", "rules: no rule stragler; there are barrier_wait, "),
        ("[rules.power.thresholds]\nhit = 3\n", "rules.power.thresholds: no threshold hit; there are cap_busy_ns, "),
        ("[rules.job_pace.thresholds]\nhits = 3\n", "rules.job_pace.thresholds: no threshold hits; there is none"),
        ("[rules.power.per_sku.H200]\nhit = 3\n", "rules.power.per_sku.H200: no threshold hit; there are "),
        ("[rules.power]\nenabeld = true\n", "rules.power: no key enabeld; there are enabled, per_sku, thresholds"),
        ("modes = 'auto'\n", ": no key modes; there are "),
        ("mode = 'loud'\n", ": mode: Input should be 'observe', 'approve' or 'auto'"),
        ("rules = 3\n", ": rules: Input should be a valid dictionary"),
        ("[rules]\npower = 3\n", ": rules.power: Input should be"),
        ("[rules.power.thresholds]\nhits = 'many'\n", ": rules.power.thresholds.hits: Input should be a valid number"),
        ("[rules.power.thresholds]\nhits = nan\n", ": rules.power.thresholds.hits: Input should be a finite number"),
        ("[rules.power\n", "night.toml: "),
        ("[failures.heat]\n", "failures: no class heat; there are catalogue, clock, "),
        ("[failures.thermal]\nact = 'cordon'\n", "failures.thermal: no act cordon; there are collect_evidence, "),
        ("[failures.thermal]\nact = 'uncordon_node'\n", "failures.thermal: act uncordon_node answers no failure"),
        ("[failures.thermal]\nlevel = 'gpu'\n", "failures.thermal: no key level; there are act, advice, "),
        ("[failures.thermal]\nwhen = 'soon'\n", ": failures.thermal.when: Input should be 'now' or 'after_checkpoint'"),
        ("[failures.thermal]\nvalid_ns = 0\n", ": failures.thermal.valid_ns: Input should be greater than 0"),
        (
            "[failures.pcie]\nvalid_ns = 90_000_000_000_000\n",
            "failures.pcie: valid_ns is 90000000000000; actuators refuse",
        ),
        ("[failures.common_mode]\nact = 'drain_node'\n", "act drain_node costs a node, and common_mode blames none"),
        ("[codes.79]\nact = 'none'\n", "codes.79: no code 79; names are like xid-79 and sxid-12028"),
        ("[codes.xid-079]\nact = 'none'\n", "no code xid-079; names are like"),
        ("[codes.xid-9999]\nact = 'none'\n", "no code xid-9999 in the catalogue"),
        (
            "[codes.xid-31]\nact = 'drain_node'\n",
            "act drain_node costs a node, and xid-31 is a fault of the application",
        ),
    ],
)
def test_what_is_no_policy_is_an_error_that_says_where_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"night\.toml") as caught:
        load_policy(written(tmp_path, text), SITE)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        load_policy(tmp_path / "none.toml", SITE)
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"bytes\.toml"):
        load_policy(path, SITE)


def test_known_thresholds_are_by_rule() -> None:
    assert known_thresholds()["barrier_wait"] == {"share"}
    assert known_thresholds()["job_pace"] == frozenset()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[rules.straggler.thresholds]\nfast_steps = 2.5\n", "fast_steps is 2.5; it is a whole number from 1 on"),
        ("[rules.straggler.thresholds]\nquiet_steps = -1\n", "quiet_steps is -1; it cannot be negative"),
        ("[rules.straggler.thresholds]\nfloor = -5\n", "floor is -5; it cannot be negative"),
        ("[rules.sm_clock.per_sku.H100]\nhits = 0\n", "hits is 0; it is a whole number from 1 on"),
    ],
)
def test_a_threshold_that_no_rule_could_use_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        load_policy(path, SITE)

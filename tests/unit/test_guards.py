"""Guards: for each an act that it lets pass and one that it holds, with the reason; and that without it the second passes too."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, START_NS, at, finding, job, placement, policy
from signed_commands import command

from schemas.findings import Subject
from schemas.fleet import ModeScope, Node, RulePolicy
from schemas.remediation import Target
from streams.core.guard_limits import known_guards
from streams.core.policy_file import known_thresholds, load_policy
from streams.core.roster import Roster
from streams.decisions.acts import COSTS_A_NODE, GIVES_BACK, RUNGS, Act, Acts
from streams.decisions.gate import Gate, act_of
from streams.decisions.guards import GUARDS, Circumstances, Hold, Proposal, holds
from streams.decisions.modes import wanted_mode
from streams.decisions.signs import _AGENT_RULES, Signs, class_of

if TYPE_CHECKING:
    from pathlib import Path

    from schemas.fleet import Policy

HOUR_S = 3600
FATAL = Signs({"xid": "agent"}, is_fatal=True)
BOTH = Signs({"straggler": "tenant", "thermal_violation": "agent"})


def act(second: float = 0, node: str = "node-0", kind: str = "cordon_node", **fields: Any) -> Act:
    fields.setdefault("expires_at_ns", at(second + 600))
    named = {"rack": None, "leaf": None, "jobs": (), **fields}
    return Act(kind=kind, target=named.pop("target", node), node_id=node, at_ns=at(second), **named)


def given(*acts: Act) -> Acts:
    past = Acts()
    for one in acts:
        past.want(one)
        past.give(one)
    return past


def done(*acts: Act, outcome: str = "applied", code: str | None = None) -> Acts:
    """Orders of which it is known what came of them."""
    past = Acts()
    for number, one in enumerate(acts):
        past.give(replace(one, command_id=f"cmd-{number}"))
        past.conclude(f"cmd-{number}", outcome, code)
    return past


def wanted(*acts: Act) -> Acts:
    past = Acts()
    for one in acts:
        past.want(one)
    return past


def fleet(nodes: int = 0, racks: int = 1, leaves: int = 1, jobs: dict[str, int] | None = None) -> Roster:
    roster = Roster()
    for number in range(nodes):
        place = {"rack": f"r{number % racks}", "leaf": f"l{number % leaves}"}
        roster.take(Node(node_id=f"node-{number}", effective_from_ns=START_NS, **place))
    for job_id, size in (jobs or {}).items():
        roster.take(job(size, job_id=job_id))
        for number in range(size):
            roster.take(placement([number], node_id=f"node-{number}", job_id=job_id))
    return roster


def spread(count: int, **fields: Any) -> list[Act]:
    """Orders for some other nodes, one a minute, all long done."""
    return [act(60 * n, f"other-{n}", expires_at_ns=at(60 * n + 1), **fields) for n in range(count)]


CASES: list[tuple[str, str, Proposal, Proposal]] = [
    (
        "evidence",
        "rests on sm_clock, thermal_violation",
        Proposal(act(), Signs({"straggler": "tenant", "thermal_violation": "agent"}), Acts(), Roster()),
        Proposal(act(), Signs({"sm_clock": "agent", "thermal_violation": "agent"}), Acts(), Roster()),
    ),
    (
        "horizon",
        "was so 601 s ago, valid for 600 s",
        Proposal(act(0), FATAL, Acts(), Roster(), Circumstances(now_ns=at(600))),
        Proposal(act(0), FATAL, Acts(), Roster(), Circumstances(now_ns=at(601))),
    ),
    (
        "victims",
        "node-0 is stopped by a pause storm",
        Proposal(act(), BOTH, Acts(), Roster(), Circumstances(is_victim=False)),
        Proposal(act(), BOTH, Acts(), Roster(), Circumstances(is_victim=True)),
    ),
    (
        "ski_rental",
        "has lost 299 s, costs it 300 s",
        Proposal(act(), BOTH, Acts(), Roster(), Circumstances(paid_ns=300 * 10**9)),
        Proposal(act(), BOTH, Acts(), Roster(), Circumstances(paid_ns=299 * 10**9)),
    ),
    (
        "follows",
        "the cordon_node that it follows does not go out",
        Proposal(act(kind="restart_job", target="a"), FATAL, Acts(), Roster()),
        Proposal(act(kind="restart_job", target="a"), FATAL, Acts(), Roster(), Circumstances(held="cordon_node")),
    ),
    (
        "seat",
        "rank 3 was slow elsewhere",
        Proposal(act(86_400), BOTH, Acts(), Roster(), Circumstances(seat=(at(0), "rank 3 was slow elsewhere"))),
        Proposal(act(86_399), BOTH, Acts(), Roster(), Circumstances(seat=(at(0), "rank 3 was slow elsewhere"))),
    ),
    (
        "ownership",
        "was not taken out from here",
        Proposal(act(900, kind="uncordon_node"), Signs(), done(act(0)), Roster()),
        Proposal(act(900, kind="uncordon_node"), Signs(), done(act(0), act(600, kind="uncordon_node")), Roster()),
    ),
    (
        "in_flight",
        "drain_node of 1900 s ago is in flight",
        Proposal(
            act(1900, kind="cordon_node"), FATAL, given(act(0, kind="drain_node", expires_at_ns=at(9000))), Roster()
        ),
        Proposal(
            act(1900, kind="drain_node"), FATAL, given(act(0, kind="drain_node", expires_at_ns=at(9000))), Roster()
        ),
    ),
    (
        "cooldown",
        "had a cordon_node 1799 s ago",
        Proposal(act(1800), FATAL, given(act(0)), Roster()),
        Proposal(act(1799), FATAL, given(act(0)), Roster()),
    ),
    (
        "attempts",
        "had 3 acts within 24 h",
        Proposal(act(20 * HOUR_S), FATAL, given(*(act(n * 2 * HOUR_S, kind="reset_gpu") for n in range(2))), Roster()),
        Proposal(act(20 * HOUR_S), FATAL, given(*(act(n * 2 * HOUR_S, kind="reset_gpu") for n in range(3))), Roster()),
    ),
    (
        "common_mode",
        "5 nodes ask for it within 600 s",
        Proposal(act(300), FATAL, wanted(*spread(3)), Roster()),
        Proposal(act(300), FATAL, wanted(*spread(4)), Roster()),
    ),
    (
        "blast_job",
        "3 nodes of job a within 3600 s; 2 and 10% of 40",
        Proposal(act(3000, jobs=("a",)), FATAL, given(*spread(2, jobs=("b",))), fleet(jobs={"a": 40})),
        Proposal(act(3000, jobs=("a", "b")), FATAL, given(*spread(2, jobs=("a",))), fleet(jobs={"a": 40})),
    ),
    (
        "blast_rack",
        "2 nodes of rack r0 within 3600 s; 2 and 25% of 4",
        Proposal(act(3000, rack="r0"), FATAL, given(*spread(1, rack="r1")), fleet(80, racks=20)),
        Proposal(act(3000, rack="r0"), FATAL, given(*spread(1, rack="r0")), fleet(80, racks=20)),
    ),
    (
        "blast_leaf",
        "4 nodes of leaf l0 within 3600 s; 3 are allowed",
        Proposal(act(3000, leaf="l0"), FATAL, given(*spread(2, leaf="l0")), Roster()),
        Proposal(act(3000, leaf="l0"), FATAL, given(*spread(3, leaf="l0")), Roster()),
    ),
    (
        "blast_fleet",
        "3 nodes of the fleet within 3600 s; 4 and 5% of 40",
        Proposal(act(3000), FATAL, given(*spread(1)), fleet(40)),
        Proposal(act(3000), FATAL, given(*spread(2)), fleet(40)),
    ),
]


def held_by(proposal: Proposal, site_policy: Policy | None = None) -> list[str]:
    return [hold.guard for hold in holds(proposal, site_policy)]


@pytest.mark.parametrize(("guard", "reason", "passes", "is_held"), CASES, ids=[case[0] for case in CASES])
def test_a_guard_holds_one_and_lets_its_look_alike_pass(
    guard: str, reason: str, passes: Proposal, is_held: Proposal
) -> None:
    assert held_by(passes) == []
    found = [hold for hold in holds(is_held, None) if hold.guard == guard]
    assert len(found) == 1
    assert all(part in found[0].reason for part in reason.split(", ")), found[0].reason


@pytest.mark.parametrize(("guard", "is_held"), [(case[0], case[3]) for case in CASES], ids=[case[0] for case in CASES])
def test_without_its_guard_the_act_goes_out(guard: str, is_held: Proposal) -> None:
    assert held_by(is_held) == [guard]
    assert held_by(is_held, policy(guards={guard: RulePolicy(enabled=False)})) == []


def test_every_guard_has_a_case_limits_and_a_place_in_the_defaults() -> None:
    assert {case[0] for case in CASES} == set(GUARDS) == set(known_guards())


def test_the_kill_switch_holds_everything_and_no_policy_switches_it_off() -> None:
    thrown = policy(kill_switch=True, guards={name: RulePolicy(enabled=False) for name in GUARDS})
    for kind in sorted(COSTS_A_NODE | GIVES_BACK):
        assert held_by(Proposal(act(kind=kind), FATAL, Acts(), Roster()), thrown) == ["kill_switch"]


def test_all_reasons_are_told_and_not_the_first_alone() -> None:
    proposal = Proposal(act(10), Signs({"straggler": "tenant"}), given(act(0), *spread(4)), Roster())
    assert held_by(proposal) == ["evidence", "in_flight", "cooldown", "common_mode", "blast_fleet"]


def test_what_costs_nothing_is_held_by_nothing_but_ownership() -> None:
    crowded = done(act(0), *spread(30))
    for kind in sorted(GIVES_BACK):
        assert held_by(Proposal(act(10, kind=kind), Signs(), crowded, Roster())) == []


def test_a_fatal_code_is_no_consequence_of_waiting_and_no_matter_of_patience() -> None:
    about = Circumstances(paid_ns=0, is_victim=True)
    assert held_by(Proposal(act(), FATAL, Acts(), Roster(), about)) == []
    assert held_by(Proposal(act(), BOTH, Acts(), Roster(), about)) == ["victims", "ski_rental"]
    for kind in ("network_action", *sorted(GIVES_BACK - {"uncordon_node"})):
        assert held_by(Proposal(act(kind=kind), BOTH, Acts(), Roster(), about)) == []


def test_a_site_changes_limits_in_its_policy() -> None:
    is_held = next(case[3] for case in CASES if case[0] == "cooldown")
    softer = policy(guards={"cooldown": RulePolicy(thresholds={"span_ns": 60e9})})
    assert held_by(is_held, softer) == []


def test_the_ladder_is_climbed_and_not_descended() -> None:
    for lower, higher in (("reset_gpu", "cordon_node"), ("drain_node", "cordon_node"), ("cordon_node", "reboot_node")):
        assert held_by(Proposal(act(10, kind=higher), FATAL, given(act(0, kind=lower)), Roster())) == []
        descended = held_by(Proposal(act(10, kind=lower), FATAL, given(act(0, kind=higher)), Roster()))
        assert descended == ["in_flight", "cooldown"]
    assert set(RUNGS) >= COSTS_A_NODE


def test_one_node_of_a_small_place_may_be_taken() -> None:
    proposal = Proposal(act(0, rack="r0", leaf="l0", jobs=("a",)), FATAL, Acts(), fleet(2, jobs={"a": 2}))
    assert held_by(proposal) == []


# --- Evidence ---------------------------------------------------------------------------------------------------------


def xid(code: int, trusted: bool = True, **fields: Any) -> Any:
    device = Subject(level="gpu", node_id="node-0", pci_bus_id="0000:10:00")
    return finding("xid", 0, device, values={"code": code, "trusted": trusted}, **fields)


def test_a_code_is_fatal_only_if_the_catalogue_says_so_and_the_line_is_the_kernels() -> None:
    for sign, fatal in ((xid(79), True), (xid(79, trusted=False), False), (xid(94), False), (xid(31), False)):
        signs = Signs()
        signs.take(sign)
        assert (signs.is_fatal, signs.kinds, signs.classes) == (fatal, {"xid"}, {"agent"})


def test_what_was_a_day_ago_is_no_evidence_and_what_stands_is() -> None:
    signs = Signs()
    signs.take(xid(79))
    signs.take(finding("straggler", 0, Subject(level="rank", job_id="a", rank=1)))
    for second, reasons in ((24 * HOUR_S, []), (24 * HOUR_S + 1, ["evidence"])):
        assert held_by(Proposal(act(second), signs, Acts(), Roster())) == reasons
    signs.take(finding("thermal_violation", 1, Subject(level="gpu", node_id="node-0", pci_bus_id="0000:10:00")))
    assert held_by(Proposal(act(30 * HOUR_S), signs, Acts(), Roster())) == []


def test_what_was_cleared_is_no_evidence() -> None:
    signs = Signs()
    signs.take(xid(79, state="cleared"))
    assert (signs.is_fatal, signs.kinds) == (False, set())


def test_a_tenant_alone_costs_nobody_a_node_whatever_it_writes() -> None:
    signs = Signs({rule: class_of(rule) for rule in known_thresholds() if class_of(rule) == "tenant"})
    assert len(signs.kinds) > 5
    for kind in sorted(COSTS_A_NODE):
        assert held_by(Proposal(act(kind=kind), signs, Acts(), Roster())) == ["evidence"]


def test_rules_that_read_agents_records_are_rules_and_all_others_are_the_tenants() -> None:
    assert set(known_thresholds()) >= _AGENT_RULES
    assert class_of("straggler") == class_of("hang") == class_of("a rule of tomorrow") == "tenant"


# --- Modes ------------------------------------------------------------------------------------------------------------

NODE = Node(node_id="gpu-7", effective_from_ns=0, rack="r1", zone="z1")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "observe"),
        ({"mode": "auto"}, "auto"),
        ({"mode": "auto", "mode_by_kind": {"cordon_node": "approve"}}, "approve"),
        ({"scopes": (ModeScope(mode="auto", racks=("r1",)),)}, "auto"),
        ({"scopes": (ModeScope(mode="auto", racks=("r2",)),)}, "observe"),
        ({"scopes": (ModeScope(mode="auto", kinds=("drain_node",)),)}, "observe"),
        ({"scopes": (ModeScope(mode="auto", nodes=("gpu-*",), zones=("z1",), jobs=("a",)),)}, "auto"),
        ({"scopes": (ModeScope(mode="auto", jobs=("b",)),)}, "observe"),
        ({"scopes": (ModeScope(mode="auto"), ModeScope(mode="approve", racks=("r1",)))}, "approve"),
        ({"mode": "auto", "scopes": (ModeScope(mode="observe", nodes=("gpu-7",)),)}, "observe"),
    ],
)
def test_the_mode_of_a_kind_at_a_place(fields: dict[str, Any], expected: str) -> None:
    assert wanted_mode(policy(**fields), "cordon_node", "gpu-7", ["a"], NODE) == expected


def test_without_a_policy_and_for_unknown_places_nothing_is_opened() -> None:
    assert wanted_mode(None, "cordon_node", "gpu-7", [], NODE) == "observe"
    opened = policy(scopes=(ModeScope(mode="auto", racks=("r1",)), ModeScope(mode="auto", nodes=("*",), zones=("z1",))))
    assert wanted_mode(opened, "cordon_node", "gpu-8", [], None) == "observe"
    assert wanted_mode(opened, "network_action", None, [], None) == "observe"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[guards.blast]\nenabled = false", "no guard blast"),
        ("[guards.cooldown.thresholds]\nspan = 3", "no threshold span"),
        ("[guards.cooldown.thresholds]\nspan_ns = -1", "cannot be negative"),
        ("[guards.cooldown.thresholds]\nspan_ns = 1.5", "whole number"),
        ("[guards.cooldown]\nenable = false", "no key enable"),
        ("[guards.cooldown.per_sku.H100]\nspan_ns = 3", "no key per_sku"),
        ("[[scopes]]\nmode = 'auto'\nrack = ['r1']", "no key rack"),
        ("[[scopes]]\nmode = 'auto'\nkinds = ['cordon']", "no kind cordon"),
        ("[[scopes]]\nracks = ['r1']", "scopes.0.mode"),
        ("[mode_by_kind]\ncordon = 'auto'", "no kind cordon"),
        ("scopes = 3", "scopes"),
        ("guards = 3", "guards"),
    ],
)
def test_a_policy_file_that_names_what_there_is_not_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ValueError, match=reason):
        load_policy(tmp_path / "p.toml", SITE)


def test_guards_and_scopes_of_a_file_come_into_force(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        "[[scopes]]\nmode = 'auto'\nracks = ['r1']\n[guards.cooldown]\nenabled = false\n"
        "[guards.attempts.thresholds]\ncount = 1\n"
    )
    loaded = load_policy(tmp_path / "p.toml", SITE)
    assert loaded.scopes == (ModeScope(mode="auto", racks=("r1",)),)
    assert not loaded.guards["cooldown"].enabled
    assert loaded.guards["attempts"].thresholds == {"count": 1}


# --- The gate ---------------------------------------------------------------------------------------------------------


def auto_roster(**fields: Any) -> Roster:
    roster = fleet(40, racks=8, leaves=2, jobs={"a": 40})
    roster.policy = policy(mode="auto", **fields)
    return roster


def test_what_is_not_signed_stays_at_observe_and_is_not_held_by_anybody() -> None:
    assert Gate().pass_through(command(mode="observe"), FATAL, auto_roster(), False)[1:] == ("observe", [])


def test_a_signed_act_with_evidence_gets_the_mode_of_the_policy_once() -> None:
    gate, roster = Gate(), auto_roster()
    first, _, found = gate.pass_through(command(0, mode="observe"), FATAL, roster, True)
    assert (first.mode, found) == ("auto", [])
    second, asked, found = gate.pass_through(command(60, mode="observe", number=1), FATAL, roster, True)
    assert (second.mode, asked, [hold.guard for hold in found]) == ("observe", "auto", ["in_flight", "cooldown"])


def test_what_was_given_is_remembered_over_a_restart() -> None:
    gate, roster = Gate(), auto_roster()
    gate.pass_through(command(0, mode="observe"), FATAL, roster, True)
    restarted = Gate()
    restarted.restore(gate.snapshot())
    assert restarted.snapshot() == gate.snapshot()
    _, _, found = restarted.pass_through(command(60, mode="observe", number=1), FATAL, roster, True)
    assert found == [
        Hold("in_flight", "cordon_node of 60 s ago is in flight on node-1"),
        Hold("cooldown", "node-1 had a cordon_node 60 s ago; it is left alone for 1800 s"),
    ]


# --- What came of acts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["applied", "failed", "refused", "expired"])
def test_an_act_with_a_result_is_in_flight_no_more(outcome: str) -> None:
    long_term = act(0, kind="drain_node", expires_at_ns=at(9000))
    assert held_by(Proposal(act(1900, kind="drain_node"), FATAL, given(long_term), Roster())) == ["in_flight"]
    assert held_by(Proposal(act(1900, kind="drain_node"), FATAL, done(long_term, outcome=outcome), Roster())) == []


@pytest.mark.parametrize(
    ("outcome", "expected"), [("applied", True), ("failed", True), ("refused", False), ("expired", False)]
)
def test_what_was_refused_starts_no_cool_down_and_is_no_attempt_and_what_failed_does(
    outcome: str, expected: bool
) -> None:
    cooling = held_by(Proposal(act(60), FATAL, done(act(0), outcome=outcome), Roster()))
    assert cooling == (["cooldown"] if expected else [])
    resets = [act(n * 2 * HOUR_S, kind="reset_gpu") for n in range(3)]
    tried = held_by(Proposal(act(20 * HOUR_S), FATAL, done(*resets, outcome=outcome), Roster()))
    assert tried == (["attempts"] if expected else [])


def test_orders_count_for_the_blast_radius_whatever_is_said_to_have_come_of_them() -> None:
    refused = done(*spread(2), outcome="refused")
    assert held_by(Proposal(act(3000), FATAL, refused, fleet(40))) == ["blast_fleet"]


@pytest.mark.parametrize(
    ("outcome", "code", "owned"),
    [
        ("applied", None, True),
        ("applied", "found_done", True),
        ("applied", "already_so", False),
        ("failed", "interrupted", False),
        ("failed", "blocked", True),
        ("refused", "kill_switch", False),
        ("expired", "expired", False),
        ("", None, False),
    ],
)
def test_a_node_is_owned_once_it_is_known_that_it_was_taken_out_from_here(
    outcome: str, code: str | None, owned: bool
) -> None:
    past = done(act(0), outcome=outcome, code=code) if outcome else given(replace(act(0), command_id="cmd-0"))
    back = Proposal(act(60, kind="uncordon_node"), Signs(), past, Roster())
    assert held_by(back) == ([] if owned else ["ownership"])
    assert past.owner_of("node-0") == ("cmd-0" if owned else None)


def test_a_node_is_owned_for_as_long_as_it_is_out_and_over_a_restart() -> None:
    past = done(act(0))
    past.give(act(100 * HOUR_S, "node-9"))
    again = Acts()
    again.restore(past.snapshot())
    assert again.given_to("node-0") == []
    assert again.owner_of("node-0") == "cmd-0"
    for outcome, code, owner in (
        ("refused", "local_limit", "cmd-0"),
        ("refused", "not_ours", None),
        ("applied", None, None),
    ):
        back = Acts()
        back.restore(past.snapshot())
        back.give(replace(act(101 * HOUR_S, kind="uncordon_node"), command_id="cmd-back"))
        back.conclude("cmd-back", outcome, code)
        assert back.owner_of("node-0") == owner


def test_of_several_results_the_strongest_counts_in_any_order() -> None:
    for words in permutations(("refused", "failed", "applied", "expired")):
        past = given(replace(act(0), command_id="cmd-0"))
        for word in (*words, *words):
            past.conclude("cmd-0", word, None)
        assert past.outcome_of("cmd-0") == "applied"
    assert past.conclude("cmd-of-somebody", "applied", None) is None
    assert past.outcome_of("cmd-of-somebody") is None


def test_an_act_carries_the_place_and_the_jobs_of_its_node() -> None:
    roster = auto_roster()
    assert act_of(command(node_id="node-9"), roster) == replace(
        act(0, "node-9", expires_at_ns=at(600)), rack="r1", leaf="l1", jobs=("a",), command_id="cmd-node-9-0"
    )
    port = act_of(command(kind="network_action", target=Target(level="port", switch_id="leaf-1", port="e1")), roster)
    assert (port.target, port.node_id, port.jobs) == ("leaf-1", None, ())


def test_the_record_of_acts_is_bounded_in_time_and_number() -> None:
    acts = Acts()
    for number in range(3_000):
        acts.want(act(number / 1000, f"n{number}"))
    assert len(acts.wanted_since(0)) == 2_000
    acts.want(act(25 * HOUR_S))
    assert len(acts.wanted_since(0)) == 1

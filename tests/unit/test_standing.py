"""What stands now: the fold over incidents, commands and results, and the lines that tell of it."""

from __future__ import annotations

from typing import Any

import pytest
from factories import at
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline.cli import app
from paceline.review.standing import Standing, command_text, incident_lines, place_text
from schemas.codec import message
from schemas.findings import Subject
from schemas.remediation import ActionResult, Cause, Command, Incident, Target
from streams.recording.taken import Taken

NODE = Subject(level="node", node_id="node-7")


def incident(state: str = "open", seconds: float = 10, **fields: Any) -> Incident:
    given_ = {
        "incident_id": "inc-1",
        "site_id": "dc1",
        "cause_class": "gpu_lost",
        "onset_ns": at(0),
        "culprit": NODE,
    } | fields
    return Incident(state=state, event_time_ns=at(seconds), **given_)


def command(mode: str = "auto", **fields: Any) -> Command:
    given_ = {
        "command_id": "cmd-1",
        "site_id": "dc1",
        "kind": "cordon_node",
        "target": Target(level="node", node_id="node-7"),
        "audience": "scheduler",
        "cause": Cause(incident_id="inc-1"),
        "decided_at_ns": at(10),
        "expires_at_ns": at(600),
        "sequence": 0,
    } | fields
    return Command(mode=mode, **given_)


def result(outcome: str, seconds: float = 20, **fields: Any) -> ActionResult:
    given_ = {"command_id": "cmd-1", "site_id": "dc1", "actuator_id": "slurm"} | fields
    return ActionResult(outcome=outcome, event_time_ns=at(seconds), **given_)


def standing(*records: Any) -> Standing:
    found = Standing()
    for record in records:
        found.take(record)
    return found


@pytest.mark.parametrize(
    ("given_", "now_s", "became"),
    [
        ([incident(), command("observe")], 30, "observed"),
        ([incident(), command("approve")], 30, "waits"),
        ([incident(), command("approve")], 600, "lapsed"),
        ([incident("resolved"), command("approve")], 30, "lapsed"),
        ([incident(), command()], 30, "ordered"),
        ([incident(), command()], 600, "unanswered"),
        ([incident(), command(), result("applied")], 700, "applied"),
        ([incident(), command(), result("refused", code="bad_signature")], 30, "refused"),
        # An actuator of another kind refuses what the right one carries out.
        ([incident(), result("applied"), command(), result("refused", 30)], 40, "applied"),
    ],
)
def test_of_each_command_it_is_told_what_became_of_it(given_: list[Any], now_s: float, became: str) -> None:
    found = standing(*given_)
    assert found.state_of(found.commands["cmd-1"], at(now_s)) == became
    assert [c.command_id for c in found.waiting(at(now_s))] == (["cmd-1"] if became == "waits" else [])


def test_an_order_stands_in_place_of_the_command_that_waited() -> None:
    order = command(command_id="cmd-2", supersedes="cmd-1", approved_by="ada", sequence=1)
    found = standing(incident(), command("approve"), order)
    assert [c.command_id for c in found.commands_of("inc-1")] == ["cmd-2"]
    assert found.waiting(at(30)) == []
    assert "ordered, with ada's consent; no result yet" in command_text(found, order, at(30))


def test_what_is_over_is_shown_on_request_alone() -> None:
    found = standing(incident(), incident("resolved", 50))
    assert found.shown(with_resolved=False) == []
    assert [i.state for i in found.shown(with_resolved=True)] == ["resolved"]


def test_a_transition_that_is_said_again_does_not_undo_a_later_one() -> None:
    assert standing(incident(), incident("verifying", 50), incident()).incidents["inc-1"].state == "verifying"


_SAID = [
    incident(),
    incident("acting", 20),
    incident("resolved", 90),
    command("approve"),
    command(command_id="cmd-2", supersedes="cmd-1"),
    result("refused", 30, command_id="cmd-2"),
    result("applied", 31, command_id="cmd-2"),
]


@given(st.permutations(_SAID), st.lists(st.sampled_from(_SAID)))
def test_neither_order_nor_repeats_change_what_stands(said: list[Any], again: list[Any]) -> None:
    found, plain = standing(*said, *again), standing(*_SAID)
    assert (found.incidents, found.commands, found.results) == (plain.incidents, plain.commands, plain.results)


def test_a_person_reads_who_since_when_what_it_costs_and_what_to_type() -> None:
    told = incident(slowdown=1.5, gpu_hours_lost=12.25, job_id="pretrain", summary="rank 3 keeps 511 waiting")
    found = standing(told, command("approve"))
    lines = incident_lines(found, told, at(130))
    assert lines[0].startswith("inc-1  open  gpu_lost  since 2025-10-09 08:53:20Z (2 min)")
    assert lines[1] == "  to blame: node node-7; 1.50 times as slow, 12.2 GPU-hours lost, job pretrain"
    assert lines[2] == "  rank 3 keeps 511 waiting"
    assert lines[3] == ("  cmd-1  cordon_node node-7: waits for consent, 7 min left: paceline approve cmd-1 --key ...")


def test_nobody_to_blame_is_said_in_words() -> None:
    assert place_text(None) == "nobody to blame"


def test_a_name_neither_moves_the_cursor_nor_begins_a_line() -> None:
    standing = Standing()
    odd = "a\x1b[2J\ninc-2  open"
    standing.take(incident(culprit=Subject(level="node", node_id=odd), summary=odd))
    standing.take(command(target=Target(level="node", node_id=odd)))
    told = incident_lines(standing, standing.incidents["inc-1"], at(20))
    assert len(told) == 4
    assert all(line.isprintable() and r"a\x1b[2J\ninc-2  open" in line for line in told[1:])


# --- The command ------------------------------------------------------------------------------------------------------


class OneIncident:
    """A range of the topics that holds an open incident of site dc1."""

    def __init__(self, *_: object) -> None:
        self.close = lambda: None

    def messages(self) -> list[Taken]:
        wire = message(incident())
        return [Taken(wire.topic, 0, 0, at(10) // 10**6, wire.key, wire.value, ())]


@pytest.mark.parametrize(
    ("site", "told"),
    [
        ("dc1", "1 open, 0 commands wait for consent\n"),
        ("dc2", "paceline: nothing there is of site dc2: is that its name? There are dc1\n0 open, "),
    ],
)
def test_a_site_of_which_there_is_nothing_is_not_told_as_quiet(
    monkeypatch: pytest.MonkeyPatch, site: str, told: str
) -> None:
    monkeypatch.setattr("streams.recording.kafka_range.KafkaRange", OneIncident)
    ran = CliRunner().invoke(app, ["incidents", "--site", site])
    assert ran.exit_code == 0
    assert ran.stderr.startswith(told)

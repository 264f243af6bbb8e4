"""Every story holds; every row of the failure table and every guard is what makes at least one of them hold."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from decision_runner import (
    AFTER_S,
    Story,
    catalogue_classes,
    commands_of,
    load,
    outputs_of,
    policy_of,
    steps_of,
    unmet_of,
)

from schemas import catalog
from schemas.fleet import FailurePolicy, RulePolicy
from schemas.remediation import Command, Incident
from streams.core.failure_table import known_failures
from streams.core.guard_limits import known_guards
from streams.decisions.remedies import CLASS_OF_XID, remedy_for_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.base import Record

CATALOGUE = Path(__file__).parent / "catalogue.toml"
FILES = sorted(path for path in Path(__file__).parent.glob("*.toml") if path != CATALOGUE)
CLASSES = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))["class"]


@cache
def stories(path: Path) -> tuple[Story, Story]:
    return load(path)


@cache
def undisturbed(path: Path, part: int) -> list[Record]:
    """What comes of a story as it is told; two laws are held against it."""
    return outputs_of(stories(path)[part])


@pytest.mark.parametrize("part", [0, 1], ids=["fires", "look-alike"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_story_expects_comes_out(path: Path, part: int) -> None:
    assert unmet_of(stories(path)[part], undisturbed(path, part)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_look_alike_says_what_must_not_be(path: Path) -> None:
    assert any(name.startswith("no_") for name in stories(path)[1].told["expect"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_restart_of_the_decisions_role_changes_nothing_that_comes_out(path: Path) -> None:
    for part, story in enumerate(stories(path)):
        plain = [record.model_dump_json() for record in undisturbed(path, part)]
        for second in (20.7, 26.5, 61.5):
            restarts = [*story.told.get("restart", ()), {"at_s": second}]
            again = outputs_of(replace(story, told={"until_s": _until_s(story), **story.told, "restart": restarts}))
            assert [record.model_dump_json() for record in again] == plain


def _until_s(story: Story) -> float:
    """The end of a story as it is without a restart."""
    return max((step.second for step in steps_of(story)), default=0) + AFTER_S


def noticed(name: str, unmet: Callable[[Story], list[str]]) -> str | None:
    """The first story that does not hold, those that are named for it first."""
    ordered = sorted(FILES, key=lambda path: (name not in path.stem, path.stem))
    return next((story.name for path in ordered for story in stories(path) if unmet(story)), None)


@pytest.mark.parametrize("row", sorted(known_failures()))
def test_switching_off_any_one_row_makes_a_story_fail(row: str) -> None:
    def unmet(story: Story) -> list[str]:
        failures = {**story.policy.failures, row: FailurePolicy(enabled=False)}
        return unmet_of(story, outputs_of(story, failures=failures))

    assert noticed(row, unmet) is not None


@pytest.mark.parametrize("guard", sorted(known_guards()))
def test_switching_off_any_one_guard_makes_a_story_fail(guard: str) -> None:
    def unmet(story: Story) -> list[str]:
        guards = {**story.policy.guards, guard: RulePolicy(enabled=False)}
        return unmet_of(story, outputs_of(story, guards=guards))

    assert noticed(guard, unmet) is not None


# --- The catalogues -----------------------------------------------------------------------------------------------


def line_of(source: str, code: int, **fields: object) -> Story:
    """One kernel line of a code on a node of a job."""
    told = {"kernel": [{"at_s": 20, "source": source, "code": code, "gpu": 3, **fields}]}
    return Story(f"{source}-{code}", {"nodes": 40}, ({"job_id": "job-1", "nodes": [0, 1]},), policy_of({}), told)


@pytest.mark.parametrize("row", CLASSES, ids=lambda row: f"{row['source']}-{row['severity']}-{row['action']}")
def test_a_code_of_each_class_leads_to_what_its_catalogue_says_and_a_forged_line_to_nothing(
    row: dict[str, Any],
) -> None:
    orders = [c.kind for c in commands_of(outputs_of(line_of(row["source"], row["code"]))) if c.mode == "auto"]
    assert orders == ([] if row["command"] == "none" else [row["command"]])
    forged = line_of(row["source"], row["code"], trusted=False)
    assert [record for record in outputs_of(forged) if isinstance(record, Command | Incident)] == []


def test_every_class_of_the_catalogues_has_a_code_here() -> None:
    told = {(row["source"], row["severity"], row["action"]) for row in CLASSES}
    # What the class of 63 (info, observe) leads to is in the failure table.
    assert told == catalogue_classes()


def test_every_other_code_of_a_class_leads_to_the_same() -> None:
    kinds = {(row["source"], row["severity"], row["action"]): row["command"] for row in CLASSES}
    for source, entries in (("xid", catalog.xids()), ("sxid", catalog.sxids())):
        for code, entry in entries.items():
            if source == "xid" and code in CLASS_OF_XID:
                continue
            remedy = remedy_for_code(source, code)
            kind = remedy.kind if remedy is not None else None
            if source == "sxid" and kind == "restart_job":
                # A switch of the node says it: which job it served is not known, and nobody is asked.
                kind = None
            assert (kind or "none") == kinds[(source, entry.severity, entry.suggested_action)], (source, code)


@pytest.mark.parametrize("name", ["boot_ns", "maintenance_ns"])
def test_without_its_masks_a_boot_or_a_maintenance_would_cost_a_node(name: str) -> None:
    story = stories(Path(__file__).parent / "codes_masked.toml")[1]
    rules = {"xid": RulePolicy(thresholds={name: 0})}
    assert any(c.kind == "cordon_node" for c in commands_of(outputs_of(story, rules=rules)))

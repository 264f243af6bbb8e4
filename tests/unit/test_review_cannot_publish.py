"""Nothing that recording, replay, comparison and report are made of can write to a broker or belong to a group."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OURS = ("schemas", "agents", "streams", "deploy", "paceline")
COMMANDS = ("record_command", "replay_command", "diff_command", "journal_command", "report_command", "tune_command")
COMMANDS += ("redact_command", "export_command")
WRITERS = {"Producer", "SerializingProducer", "AIOKafkaProducer", "AdminClient", "KafkaPublisher"}
GROUP_CALLS = {"subscribe", "commit", "store_offsets", "produce", "send_offsets_to_transaction"}


def file_of(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def imported(path: Path) -> Iterator[str]:
    """Modules and names that a file imports anywhere in it, types alone left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def names_in(path: Path) -> frozenset[str]:
    """The same, once for all commands that lead to the file."""
    return frozenset(imported(path))


def closure(start: str) -> dict[Path, frozenset[str]]:
    """Every file of ours that a module leads to, with the names that it imports."""
    found: dict[Path, frozenset[str]] = {}
    waiting = [start]
    while waiting:
        path = file_of(waiting.pop())
        if path is None or path in found:
            continue
        found[path] = names_in(path)
        for name in found[path]:
            if name.partition(".")[0] in OURS:
                parts = name.split(".")
                waiting += [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_review_command_is_made_of_holds_no_producer(command: str) -> None:
    files = closure(f"paceline.{command}")
    assert len(files) > 5
    for path, names in files.items():
        assert {name.rpartition(".")[2] for name in names} & WRITERS == set(), path


def test_the_only_consumer_joins_no_group_and_commits_nothing() -> None:
    files = closure("paceline.replay_command")
    readers = [
        path for path, names in files.items() if any(name.startswith(("confluent_kafka", "aiokafka")) for name in names)
    ]
    by_name = {path.relative_to(ROOT).as_posix(): path for path in readers}
    # The other one knows the client's errors and asks what it is given to ask.
    assert set(by_name) == {"streams/recording/kafka_range.py", "schemas/kafka_answers.py"}
    assert not any(name.endswith("Consumer") for name in files[by_name["schemas/kafka_answers.py"]])
    tree = ast.parse(by_name["streams/recording/kafka_range.py"].read_text(encoding="utf-8"))
    called = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert called & GROUP_CALLS == set()
    assert "assign" in called


def test_the_check_would_see_a_producer() -> None:
    names = frozenset().union(*closure("paceline.registry_commands").values())
    assert {name.rpartition(".")[2] for name in names} & WRITERS != set()

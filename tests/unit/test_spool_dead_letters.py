"""The dead-letter file: complete, bounded, whole lines."""

from __future__ import annotations

import base64
import json
import logging
from typing import TYPE_CHECKING, Any

from agents.dead_letters import DeadLetters
from schemas.codec import Message

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

WIRE = Message("topic", b"key\xff", b"\x00value", (("schema", b"s"),))


def write(letters: DeadLetters, wire: Message = WIRE, text: str = "too large") -> bool:
    return letters.write(wire, "bulk", 5, 7, "MSG_SIZE_TOO_LARGE", text, sync=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_letter_has_the_original_bytes_and_why(tmp_path: Path) -> None:
    assert write(DeadLetters(tmp_path / "d.jsonl", 10_000))
    (letter,) = lines(tmp_path / "d.jsonl")
    assert base64.b64decode(letter.pop("value")) == WIRE.value
    assert base64.b64decode(letter.pop("key")) == WIRE.key
    assert letter == {
        "at_ns": 7,
        "lane": "bulk",
        "topic": "topic",
        "reason": "MSG_SIZE_TOO_LARGE",
        "text": "too large",
        "arrival_ns": 5,
        "headers": [["schema", base64.b64encode(b"s").decode()]],
    }


def test_the_file_is_bounded_and_one_before_it_is_kept(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "d.jsonl", 1000)
    for number in range(50):
        assert write(letters, text=str(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl", "d.jsonl.1"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    kept = [int(letter["text"]) for name in ("d.jsonl.1", "d.jsonl") for letter in lines(tmp_path / name)]
    assert kept == list(range(50 - len(kept), 50))


def test_a_line_that_a_crash_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"at_ns": 1, "la')
    assert write(DeadLetters(tmp_path / "d.jsonl", 10_000))
    cut, whole = (tmp_path / "d.jsonl").read_text().splitlines()
    assert cut == '{"at_ns": 1, "la'
    assert json.loads(whole)["topic"] == "topic"


def test_what_cannot_be_kept_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    letters = DeadLetters(tmp_path / "missing" / "d.jsonl", 10_000)
    with caplog.at_level(logging.WARNING):
        assert [write(letters) for _ in range(3)] == [False] * 3
    assert len(caplog.records) == 1
    (tmp_path / "missing").mkdir()
    assert write(letters)


def test_a_letter_larger_than_the_file_may_be_is_not_kept(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "d.jsonl", 1000)
    assert not write(letters, Message("topic", b"", bytes(5000), ()))
    assert write(letters)
    assert len(lines(tmp_path / "d.jsonl")) == 1

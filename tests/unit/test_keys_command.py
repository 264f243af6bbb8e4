"""`paceline keys`: what it writes, prints and refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from schemas.key_files import load_keyring, load_private_key
from schemas.signatures import key_id_of

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def keys(tmp_path: Path) -> Any:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["keys", *arguments, "--ring", str(tmp_path / "ring.json")])

    return run


def listed(keys: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in keys("list", "--json").stdout.splitlines()]


def test_a_new_key_is_in_its_file_and_in_the_ring(keys: Any, tmp_path: Path) -> None:
    made = keys("new", "--key", str(tmp_path / "a.key"))
    assert made.exit_code == 0
    private = load_private_key(tmp_path / "a.key")
    assert made.stdout.strip() == key_id_of(private.public_key().public_bytes_raw())
    [key] = listed(keys)
    assert (key["key_id"], key["state"], key["purpose"], key["holder"]) == (
        made.stdout.strip(),
        "valid",
        "commands",
        "decisions",
    )
    assert "PRIVATE" not in (tmp_path / "ring.json").read_text()


def test_rotation_keeps_the_old_key_until_the_overlap_is_over(keys: Any, tmp_path: Path) -> None:
    old = keys("new", "--key", str(tmp_path / "a.key"), "--holder", "site-1").stdout.strip()
    rotated = keys("rotate", "--key", str(tmp_path / "a.key"), "--new-key", str(tmp_path / "b.key"))
    assert rotated.exit_code == 0
    assert [(key["key_id"], key["state"], key["holder"]) for key in listed(keys)] == [
        (old, "retiring", "site-1"),
        (rotated.stdout.strip(), "valid", "site-1"),
    ]
    first, second = load_keyring(tmp_path / "ring.json").keys
    assert first.valid_until_ns is not None
    assert 24.9 < (first.valid_until_ns - second.valid_from_ns) / 3.6e12 <= 25.0
    again = keys(
        "rotate", "--key", str(tmp_path / "a.key"), "--new-key", str(tmp_path / "c.key"), "--overlap-hours", "99"
    )
    assert load_keyring(tmp_path / "ring.json").keys[0] == first, "it goes on no longer for that"
    assert again.stderr.splitlines()[0] == rotated.stderr.splitlines()[0]


def test_a_revoked_key_is_listed_as_such(keys: Any, tmp_path: Path) -> None:
    made = keys("new", "--key", str(tmp_path / "a.key")).stdout.strip()
    assert keys("revoke", made).exit_code == 0
    assert [key["state"] for key in listed(keys)] == ["revoked"]
    assert "revoked" in keys("list").stdout


def test_what_cannot_be_done_is_said_with_status_2(keys: Any, tmp_path: Path) -> None:
    a, b = str(tmp_path / "a.key"), str(tmp_path / "b.key")
    assert keys("list").exit_code == 2
    assert keys("new", "--key", a, "--purpose", "frames").exit_code == 2
    assert not (tmp_path / "a.key").exists()
    assert keys("new", "--key", a).exit_code == 0
    for arguments, reason in (
        (("new", "--key", a), "never written over"),
        (("revoke", "ed25519-0"), "no key ed25519-0"),
        (("rotate", "--key", a, "--new-key", a), "never written over"),
        (("rotate", "--key", b, "--new-key", b), "No such file"),
        (("rotate", "--key", a, "--new-key", b, "--overlap-hours", "nan"), "--overlap-hours"),
        (("new", "--key", b, "--holder", ""), "--holder"),
    ):
        result = keys(*arguments)
        assert (result.exit_code, reason in result.stderr) == (2, True), result.output
    assert [key["state"] for key in listed(keys)] == ["valid"]


def test_a_key_of_another_ring_is_not_rotated(keys: Any, tmp_path: Path) -> None:
    keys("new", "--key", str(tmp_path / "a.key"))
    (tmp_path / "ring.json").rename(tmp_path / "other.json")
    keys("new", "--key", str(tmp_path / "b.key"))
    result = keys("rotate", "--key", str(tmp_path / "a.key"), "--new-key", str(tmp_path / "c.key"))
    assert result.exit_code == 2
    assert "not in the ring" in result.stderr
    assert not (tmp_path / "c.key").exists()

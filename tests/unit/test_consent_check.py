"""Signatures of approvals: each way in which one does not count has its word; and the command that makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deciding import approval
from factories import SITE, at
from fake_producer import FakeProducer
from signed_commands import KEY
from typer.testing import CliRunner

from paceline.cli import app
from schemas.codec import decode, encode
from schemas.key_files import load_keyring, store_keyring
from schemas.keyring import Keyring
from schemas.remediation import Approval
from schemas.signatures import SIGNATURE_HEADER, key_id_of, sign
from streams.faust_roles.consent_check import ConsentCheck

if TYPE_CHECKING:
    from pathlib import Path

ADA = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
ADA_ID = key_id_of(ADA.public_key().public_bytes_raw())
RING = (
    Keyring()
    .with_key(KEY.public_key().public_bytes_raw(), "commands", "decisions", at(-3600))
    .with_key(ADA.public_key().public_bytes_raw(), "approvals", "ada", at(-3600))
)


def word(
    given: Approval,
    key: Ed25519PrivateKey = ADA,
    ring: Keyring | None = RING,
    headers: list[tuple[str, bytes | None]] | None = None,
    second: float = 0,
    signed: Approval | None = None,
) -> str | None:
    payload = encode(given)
    if headers is None:
        headers = [("schema", b"paceline.approval.v1"), (SIGNATURE_HEADER, sign(key, encode(signed or given)))]
    check = ConsentCheck((lambda: ring) if ring is not None else None, lambda: at(second))
    return check.refusal(given, payload, headers)


def test_a_consent_signed_by_whom_it_names_holds() -> None:
    assert word(approval(0, "cmd-1")) is None


def test_each_forgery_has_its_word() -> None:
    true = approval(0, "cmd-1")
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    assert word(true, ring=None) == "no_keyring"
    assert word(true, headers=[]) == "unsigned"
    assert word(true, headers=[(SIGNATURE_HEADER, None)]) == "unsigned"
    assert word(true, headers=[(SIGNATURE_HEADER, sign(ADA, encode(true)))] * 2) == "unsigned"
    assert word(true, headers=[(SIGNATURE_HEADER, b"ed25519-1")]) == "malformed_signature"
    assert word(true, key=stranger) == "unknown_key"
    # Whoever signs commands does not approve them.
    assert word(true, key=KEY) == "key_of_other_purpose"
    assert word(true, signed=approval(0, "cmd-2")) == "bad_signature"
    assert word(approval(0, "cmd-1", approver="grace")) == "another_approver"
    assert word(true, ring=RING.without_trust(ADA_ID)) == "key_revoked"
    assert word(true, ring=RING.retired(ADA_ID, at(10)), second=11) == "key_expired"
    assert word(true, second=-7200) == "key_not_yet_valid"


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was sent, by a client that delivers at once."""
    sent: list[Any] = []

    class Delivering(FakeProducer):
        def produce(self, topic: str, **named: Any) -> None:
            sent.append((topic, named))

    monkeypatch.setattr(confluent_kafka, "Producer", Delivering)
    return sent


def run(tmp_path: Path, *options: str) -> Any:
    keyfile, ring = tmp_path / "ada.key", tmp_path / "ring.json"
    if not keyfile.exists():
        made = CliRunner().invoke(
            app,
            ["keys", "new", "--ring", str(ring), "--key", str(keyfile), "--purpose", "approvals", "--holder", "ada"],
        )
        assert made.exit_code == 0
    return CliRunner().invoke(app, ["approve", "cmd-1", "--key", str(keyfile), "--site", SITE, *options])


def test_the_command_makes_a_consent_that_holds(tmp_path: Path, producer: list[Any]) -> None:
    ring = tmp_path / "ring.json"
    done = run(tmp_path, "--keyring", str(ring), "--minutes", "5")
    assert done.exit_code == 0, done.output
    [(topic, named)] = producer
    given = decode(topic, named["value"])
    assert isinstance(given, Approval)
    assert (given.command_id, given.approver, given.site_id) == ("cmd-1", "ada", SITE)
    assert given.expires_at_ns - given.event_time_ns == 300 * 10**9
    assert named["key"] == SITE.encode()
    check = ConsentCheck(lambda: load_keyring(ring), lambda: given.event_time_ns)
    assert check.refusal(given, named["value"], named["headers"]) is None


def test_what_could_not_count_is_not_published(tmp_path: Path, producer: list[Any]) -> None:
    nameless = run(tmp_path)
    assert (nameless.exit_code, "name yourself" in nameless.output) == (2, True)
    other = run(tmp_path, "--keyring", str(tmp_path / "ring.json"), "--approver", "grace")
    assert (other.exit_code, "ada's" in other.output) == (2, True)
    store_keyring(tmp_path / "other.json", RING)
    unknown = run(tmp_path, "--keyring", str(tmp_path / "other.json"))
    assert (unknown.exit_code, "not in the ring" in unknown.output) == (2, True)
    assert producer == []

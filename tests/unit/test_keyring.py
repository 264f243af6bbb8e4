"""The ring of trusted keys: who may speak when, what a change does, and what its files refuse."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from schemas import key_files
from schemas.key_files import KeyFileError, load_keyring, load_private_key, make_private_key, store_keyring
from schemas.keyring import Keyring, KeyringError, UntrustedKeyError, read_keyring
from schemas.signatures import key_id_of

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000
PUBLIC, OTHER = bytes(range(32)), bytes(range(1, 33))
KEY_ID, OTHER_ID = key_id_of(PUBLIC), key_id_of(OTHER)
RING = Keyring().with_key(PUBLIC, "commands", "decisions", 100 * SECOND)


def refusal_code(ring: Keyring, key_id: str, now_s: float, purpose: str = "commands", skew_s: float = 0) -> str | None:
    try:
        ring.trusted(key_id, purpose, round(now_s * SECOND), round(skew_s * SECOND))  # type: ignore[arg-type]
    except UntrustedKeyError as error:
        return error.code
    return None


def test_a_key_is_trusted_from_when_it_was_made() -> None:
    assert refusal_code(RING, KEY_ID, 99) == "key_not_yet_valid"
    assert refusal_code(RING, KEY_ID, 99, skew_s=1) is None
    assert refusal_code(RING, KEY_ID, 100) is None
    assert refusal_code(RING, KEY_ID, 10**9) is None


def test_a_key_speaks_for_its_purpose_alone() -> None:
    assert refusal_code(RING, KEY_ID, 200, purpose="approvals") == "key_of_other_purpose"


def test_a_key_that_is_not_in_the_ring_is_unknown() -> None:
    assert refusal_code(RING, OTHER_ID, 200) == "unknown_key"


def test_a_retired_key_goes_on_until_its_overlap_is_over() -> None:
    ring = RING.with_key(OTHER, "commands", "decisions", 200 * SECOND).retired(KEY_ID, 300 * SECOND)
    assert refusal_code(ring, KEY_ID, 300) is None
    assert refusal_code(ring, KEY_ID, 300.001) == "key_expired"
    assert refusal_code(ring, OTHER_ID, 301) is None
    assert [key.state(250 * SECOND) for key in ring.keys] == ["retiring", "valid"]


def test_retiring_a_key_again_never_lengthens_its_life() -> None:
    ring = RING.retired(KEY_ID, 300 * SECOND).retired(KEY_ID, 400 * SECOND)
    assert ring.keys[0].valid_until_ns == 300 * SECOND
    assert ring.retired(KEY_ID, 200 * SECOND).keys[0].valid_until_ns == 200 * SECOND


def test_a_revoked_key_is_refused_at_once_and_stays_named() -> None:
    ring = RING.without_trust(KEY_ID)
    assert refusal_code(ring, KEY_ID, 200) == "key_revoked"
    assert ring.keys[0].state(200 * SECOND) == "revoked"


def test_a_change_of_a_key_that_is_not_there_says_which_are() -> None:
    with pytest.raises(KeyringError, match=f"no key {OTHER_ID}; there are {KEY_ID}"):
        RING.without_trust(OTHER_ID)
    with pytest.raises(KeyringError, match="in the ring already"):
        RING.with_key(PUBLIC, "commands", "decisions", 0)


def test_a_ring_survives_its_own_text() -> None:
    ring = RING.with_key(OTHER, "approvals", "Zoë", 0).retired(KEY_ID, 5).without_trust(OTHER_ID)
    assert read_keyring(ring.text()) == ring


def test_a_ring_whose_ids_are_not_of_its_keys_is_refused() -> None:
    with pytest.raises(KeyringError, match="is not the id of its public key"):
        read_keyring(RING.text().replace(KEY_ID, OTHER_ID))
    key = RING.keys[0].model_dump_json()
    with pytest.raises(KeyringError, match="stands twice"):
        read_keyring(f'{{"keys":[{key},{key}]}}')


@given(st.binary(max_size=100))
def test_any_other_bytes_are_no_ring_and_nothing_worse(text: bytes) -> None:
    # A ring without keys, as an empty object is one, is a ring that trusts nobody.
    with suppress(KeyringError):
        assert read_keyring(text) == Keyring()


def test_a_private_key_is_read_back_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "decisions.key"
    made = make_private_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_private_key(path).private_bytes_raw() == made.private_bytes_raw()
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="others may read it"):
        load_private_key(path)


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "decisions.key"
    made = make_private_key(path)
    with pytest.raises(KeyFileError, match="never written over"):
        make_private_key(path)
    assert load_private_key(path).private_bytes_raw() == made.private_bytes_raw()


def test_what_holds_no_plain_ed25519_key_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "k"
    curve = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    locked = make_private_key(tmp_path / "plain").private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    for content, reason in ((b"", "no private key"), (b"\xff\x00", "no private key"), (curve, "not of Ed25519")):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(KeyFileError, match=reason):
            load_private_key(path)
    path.write_bytes(locked)
    with pytest.raises(KeyFileError, match="without a passphrase"):
        load_private_key(path)
    with pytest.raises(KeyFileError, match="No such file"):
        load_private_key(tmp_path / "none")
    with pytest.raises(KeyFileError, match="Is a directory"):
        load_private_key(tmp_path)


def test_a_ring_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    store_keyring(path, RING)
    assert load_keyring(path) == RING
    path.chmod(0o664)
    with pytest.raises(KeyFileError, match="others may write it"):
        load_keyring(path)


def test_a_ring_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ring.json"
    store_keyring(path, RING)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_files.os, "fsync", no_space)
    with pytest.raises(KeyFileError, match="No space left"):
        store_keyring(path, Keyring())
    monkeypatch.undo()
    assert load_keyring(path) == RING
    assert [file.name for file in tmp_path.iterdir()] == ["ring.json"]

"""Signatures of payloads: what holds, and that nothing else does."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from schemas.signatures import MalformedSignatureError, holds, key_id_of, read_signature, sign

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()


def accepted(payload: bytes, header: bytes, public_key: bytes = PUBLIC) -> bool:
    """What a verifier makes of a payload and its header."""
    try:
        signature = read_signature(header)
    except MalformedSignatureError:
        return False
    return signature.key_id == key_id_of(public_key) and holds(public_key, payload, signature)


@given(st.binary(max_size=300))
def test_a_payload_holds_under_its_own_signature_and_no_other_key(payload: bytes) -> None:
    header = sign(KEY, payload)
    assert accepted(payload, header)
    assert not accepted(payload, header, OTHER)
    assert not holds(OTHER, payload, read_signature(header))


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_changed_byte_of_the_payload_does_not_hold(payload: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(payload) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != payload[place]))
    assert not accepted(payload[:place] + bytes([byte]) + payload[place + 1 :], sign(KEY, payload))


@given(st.data())
def test_a_changed_byte_of_the_header_does_not_hold(data: st.DataObject) -> None:
    header = sign(KEY, b"payload")
    place = data.draw(st.integers(0, len(header) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != header[place]))
    assert not accepted(b"payload", header[:place] + bytes([byte]) + header[place + 1 :])


@given(st.binary(max_size=200))
def test_any_other_header_is_malformed_and_nothing_worse(header: bytes) -> None:
    with pytest.raises(MalformedSignatureError):
        read_signature(header)


def test_a_signature_has_one_spelling() -> None:
    header = sign(KEY, b"payload")
    for other in (header.upper(), header + b"\n", b" " + header, header + b"00", header[:-2], b""):
        with pytest.raises(MalformedSignatureError):
            read_signature(other)


def test_bytes_that_are_no_public_key_hold_nothing() -> None:
    signature = read_signature(sign(KEY, b"payload"))
    assert not holds(b"", b"payload", signature)
    assert not holds(b"\xff" * 32, b"payload", signature)


def test_a_key_id_is_that_of_the_public_half() -> None:
    assert key_id_of(PUBLIC) == "ed25519-56475aa75463474c"
    assert sign(KEY, b"").startswith(b"ed25519-56475aa75463474c:")

"""The signer of the decisions role: what it signs, and who may read its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from factories import at
from signed_commands import command

from paceline.worker_command import worker_command
from schemas.codec import message
from schemas.findings import ProgressMark
from schemas.key_files import KeyFileError, make_private_key
from schemas.signatures import SIGNATURE_HEADER, holds, read_signature
from streams.faust_roles.command_signer import CommandSigner

if TYPE_CHECKING:
    from pathlib import Path


def test_a_command_under_the_key_is_signed_over_the_bytes_that_are_published(tmp_path: Path) -> None:
    private = make_private_key(tmp_path / "key")
    signer = CommandSigner.of_file(tmp_path / "key")
    record = command(key_id=signer.key_id)
    wire = message(record)
    signed = signer.signed(record, wire)
    headers = dict(signed.headers)
    assert (signed.topic, signed.key, signed.value) == (wire.topic, wire.key, wire.value)
    assert signed.headers[:-1] == wire.headers
    signature = read_signature(headers[SIGNATURE_HEADER])
    assert signature.key_id == signer.key_id
    assert holds(private.public_key().public_bytes_raw(), signed.value, signature)


def test_what_is_no_command_or_names_another_key_is_not_signed(tmp_path: Path) -> None:
    make_private_key(tmp_path / "key")
    signer = CommandSigner.of_file(tmp_path / "key")
    for record in (
        command(key_id=None),
        command(key_id="ed25519-other"),
        ProgressMark(site_id="s", role="jobs", partition=0, mark_ns=at(1)),
    ):
        wire = message(record)
        assert signer.signed(record, wire) is wire


def test_a_key_that_others_can_read_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    make_private_key(key)
    key.chmod(0o644)
    with pytest.raises(KeyFileError, match="others may read it"):
        CommandSigner.of_file(key)
    status = worker_command("decisions", "localhost:1", "site", None, None, False, 10.0, 15.0, key)
    assert status == 2
    assert "others may read it" in capsys.readouterr().err

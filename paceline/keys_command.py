"""`paceline keys`: makes signing keys, and keeps the ring of those that are trusted.

The private half of a key stays in a file of its own, which the decisions role (or the person who approves) alone can read;
the ring holds public halves and goes to every actuator. The clock is read here, for when a key begins and ends.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.keyring import KeyPurpose, Keyring

__all__ = ["keys_app"]

keys_app = typer.Typer(
    help="Keys that sign commands and approvals, and the ring of those trusted.", no_args_is_help=True
)

_Ring = Annotated[
    Path, typer.Option(help="The ring: a file that actuators read.", envvar="PACELINE_KEYRING", show_default=False)
]
_Purpose = Annotated[str, typer.Option(help="commands or approvals.")]


@keys_app.command("new")
def new(
    ring: _Ring,
    key: Annotated[Path, typer.Option(help="Where the private half is written; nothing may be there.")],
    purpose: _Purpose = "commands",
    holder: Annotated[str, typer.Option(help="Who has it: a worker's or a person's name.")] = "decisions",
) -> None:
    """Make a key and trust it from now on."""
    _end_with(_add(ring, key, purpose, holder))


@keys_app.command("list")
def show(ring: _Ring, json: Annotated[bool, typer.Option("--json", help="NDJSON.")] = False) -> None:
    """All keys of a ring, and which of them are valid now."""
    import orjson

    from schemas.key_files import KeyFileError, load_keyring

    now_ns = time.time_ns()
    try:
        keys = load_keyring(ring).keys
    except KeyFileError as error:
        _end_with(str(error))
        return
    for key in keys:
        state = key.state(now_ns)
        if json:
            fields = key.model_dump(exclude={"public_key", "revoked"}, exclude_none=True)
            typer.echo(orjson.dumps({**fields, "state": state}).decode())
        else:
            until = f", until {_moment(key.valid_until_ns)}" if key.valid_until_ns is not None else ""
            typer.echo(
                f"{key.key_id}  {state:8}  {key.purpose:9}  {key.holder}  from {_moment(key.valid_from_ns)}{until}"
            )


@keys_app.command("rotate")
def rotate(
    ring: _Ring,
    key: Annotated[Path, typer.Option(help="The private half that is to be replaced.")],
    new_key: Annotated[Path, typer.Option(help="Where the new one is written; nothing may be there.")],
    overlap_hours: Annotated[
        float, typer.Option(help="How long the old key goes on; commands that it signed may be valid for 24 hours.")
    ] = 25.0,
) -> None:
    """Make a key in the place of another, which expires after an overlap."""
    from schemas.errors import SchemaError
    from schemas.key_files import load_keyring, load_private_key
    from schemas.signatures import key_id_of

    if not 0 <= overlap_hours <= 24 * 366:
        _end_with("--overlap-hours is from 0 to a year")
        return
    try:
        old_id = key_id_of(load_private_key(key).public_key().public_bytes_raw())
        old = next((known for known in load_keyring(ring).keys if known.key_id == old_id), None)
    except SchemaError as error:
        _end_with(str(error))
        return
    if old is None:
        _end_with(f"{ring}: {key} is of {old_id}, which is not in the ring")
        return
    until_ns = time.time_ns() + round(overlap_hours * 3.6e12)
    trouble = _add(ring, new_key, old.purpose, old.holder, lambda known: known.retired(old_id, until_ns))
    if trouble is None:
        if old.valid_until_ns is not None:
            until_ns = min(until_ns, old.valid_until_ns)  # a key that was retired before goes on no longer for it
        typer.echo(f"{old_id} expires {_moment(until_ns)}", err=True)
        typer.echo("take the ring to all actuators, then start the decisions role with the new key", err=True)
    _end_with(trouble)


@keys_app.command("revoke")
def revoke(ring: _Ring, key_id: Annotated[str, typer.Argument(help="As `paceline keys list` names it.")]) -> None:
    """Trust a key no more, at once: for a key that others may have."""
    from schemas.errors import SchemaError
    from schemas.key_files import load_keyring, store_keyring

    try:
        store_keyring(ring, load_keyring(ring).without_trust(key_id))
    except SchemaError as error:
        _end_with(str(error))
        return
    typer.echo(f"{key_id} revoked; it holds where the ring is read", err=True)


def _add(
    ring: Path, key: Path, purpose: str, holder: str, change: Callable[[Keyring], Keyring] = lambda ring: ring
) -> str | None:
    """Make a key and put it into a ring; what kept it from being done, else None."""
    from schemas.errors import SchemaError
    from schemas.key_files import load_keyring, make_private_key, store_keyring
    from schemas.keyring import KEY_PURPOSES, Keyring
    from schemas.signatures import key_id_of

    chosen: KeyPurpose | None = next((known for known in KEY_PURPOSES if known == purpose), None)
    if chosen is None:
        return f"no purpose {purpose!r}; there are {', '.join(KEY_PURPOSES)}"
    if not 1 <= len(holder) <= 253:
        return "--holder has 1 to 253 characters"
    try:
        known = change(load_keyring(ring) if ring.exists() else Keyring())
        public_key = make_private_key(key).public_key().public_bytes_raw()
        store_keyring(ring, known.with_key(public_key, chosen, holder, time.time_ns()))
    except SchemaError as error:
        return str(error)
    typer.echo(key_id_of(public_key))
    return None


def _moment(at_ns: int | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((at_ns or 0) // 10**9))


def _end_with(trouble: str | None) -> None:
    if trouble is not None:
        typer.echo(f"paceline: {trouble}", err=True)
        raise typer.Exit(2)

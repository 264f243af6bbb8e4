"""`paceline approve`: a person's signed consent to one command that waits for it.

The clock is read here, for when the consent was given and until when it holds. Nothing is carried out: the decisions role checks
the signature, asks its guards again, and publishes the order.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from paceline.brokers_option import Bootstrap

if TYPE_CHECKING:
    from schemas.codec import Message

__all__ = ["approve"]

_CONFIRM_S = 10.0


def approve(
    command_id: Annotated[str, typer.Argument(help="The command, as the topic of actions names it.")],
    key: Annotated[Path, typer.Option(help="Your private key, of purpose approvals: paceline keys.")],
    approver: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Your name as the ring has it; read from the ring where there is one."),
    ] = None,
    keyring: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The ring, to see before that the key may approve.", envvar="PACELINE_KEYRING"),
    ] = None,
    bootstrap: Bootstrap = "localhost:9092",
    site: Annotated[str, typer.Option(help="The site that the command is of.", envvar="PACELINE_SITE")] = "default",
    minutes: Annotated[float, typer.Option(min=1, max=24 * 60, help="For how long the consent holds.")] = 60.0,
) -> None:
    """Consent to a command of mode approve: the decisions role then orders it, if it still stands and guards let it out."""
    wire, trouble = _signed(command_id, key, approver, keyring, site, minutes)
    if wire is not None:
        trouble = _send(bootstrap, wire)
    if trouble is not None:
        typer.echo(f"paceline: {trouble}", err=True)
        raise typer.Exit(2)
    told = "whether it counts is told in paceline.decisions.v1, and the order in paceline.actions.v1"
    typer.echo(f"consent to {command_id} published; {told}", err=True)


def _signed(
    command_id: str, key: Path, approver: str | None, keyring: Path | None, site: str, minutes: float
) -> tuple[Message | None, str | None]:
    """The message of a consent; or what keeps it from being made."""
    from dataclasses import replace

    from pydantic import ValidationError

    from schemas.codec import message
    from schemas.errors import SchemaError
    from schemas.key_files import load_keyring, load_private_key
    from schemas.remediation import Approval
    from schemas.signatures import SIGNATURE_HEADER, key_id_of, sign

    now_ns = time.time_ns()
    try:
        private_key = load_private_key(key)
        if keyring is not None:
            key_id = key_id_of(private_key.public_key().public_bytes_raw())
            holder = load_keyring(keyring).trusted(key_id, "approvals", now_ns).holder
            if approver is not None and approver != holder:
                return None, f"{key} is {holder}'s in {keyring}, not {approver}'s"
            approver = holder
        if approver is None:
            return None, "name yourself with --approver, or the ring with --keyring"
        approval = Approval(
            command_id=command_id,
            site_id=site,
            approver=approver,
            event_time_ns=now_ns,
            expires_at_ns=now_ns + round(minutes * 60e9),
        )
    except SchemaError as error:
        return None, str(error)
    except ValidationError as error:
        return None, error.errors(include_url=False)[0]["msg"]
    wire = message(approval)
    return replace(wire, headers=(*wire.headers, (SIGNATURE_HEADER, sign(private_key, wire.value)))), None


def _send(bootstrap_servers: str, wire: Message) -> str | None:
    """Publish a message; what kept it from arriving, else None."""
    from confluent_kafka import Producer

    from agents.publisher_settings import PublisherSettings

    settings = PublisherSettings(bootstrap_servers, client_id="paceline-approve", linger_ms=5)
    producer = Producer(settings.producer_config())
    troubles: list[str] = []
    producer.produce(
        wire.topic,
        key=wire.key,
        value=wire.value,
        headers=list(wire.headers),
        on_delivery=lambda error, _: troubles.append(error.str()) if error is not None else None,
    )
    if producer.flush(_CONFIRM_S):
        return "the brokers did not take it"
    return troubles[0] if troubles else None

"""How a reference record comes into force: the checks that a worker's feed and a replay of its journal both make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.errors import InvalidRecordError
from schemas.fleet import Policy
from streams.core.admission import refusal_of_name
from streams.core.policy_file import check_policy

if TYPE_CHECKING:
    from schemas.base import Record
    from schemas.findings import Evidence
    from streams.core.roster import Roster

__all__ = ["take_reference"]


def take_reference(roster: Roster, record: Record, key: bytes | None, schema: str | None, place: Evidence) -> bool:
    """Take a decoded reference record; false when it changes nothing.

    Args:
        roster: what it is taken into.
        record: a job, placement, node or policy.
        key: the message's key: under another one it would be on another partition, out of the order of its own.
        schema: the message's `schema` header, if it has one.
        place: where it stands.

    Raises:
        InvalidRecordError: key or header is not the record's.
        ValueError: a policy that names what there is not.
    """
    refused = refusal_of_name(record, key, schema, place.topic)
    if refused is not None:
        raise InvalidRecordError(refused)
    if isinstance(record, Policy):
        check_policy(record)
    return roster.take(record, place)

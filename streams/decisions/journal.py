"""The decisions journal: numbered entries of what was taken, from where, and what followed.

What a partition decides follows from its own log and from the reference records that were in force at each place of it.
The log is in the findings topic; when a worker had read which reference records is in no topic, so the journal says it:
an entry `reference_taken` stands before the first record that was judged by them. Every entry names the record that made
it, and so does the key by which a worker signs. Nothing else is kept here: `streams.journal_replay` runs the engine
again by these entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.remediation import Command, Decision, Incident

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.base import Record
    from schemas.findings import Evidence
    from streams.core.roster import Roster

__all__ = ["NO_KEY", "Journal", "in_journal_order"]

NO_KEY = "none"
"""Subject of the entry that says that commands are signed no more."""


class Journal:
    """Writes the entries of one partition."""

    def __init__(self, site_id: str) -> None:
        self._site_id = site_id
        self._next = 0
        self._reference: dict[str, int] = {}
        self._key_id: str | None = None
        self.source: Evidence | None = None
        """Place of the record that is being taken."""

    def reference(self, roster: Roster, at_ns: int) -> list[Decision]:
        """An entry when reference records have come into force since the last record, else nothing.

        Args:
            roster: the reference records as they are now.
            at_ns: time of the record that is about to be judged by them.
        """
        if roster.taken_up_to == self._reference:
            return []
        self._reference = dict(sorted(roster.taken_up_to.items()))
        return [self.entry("reference_taken", "reference", at_ns, detail=self._reference)]

    def signing_key(self, key_id: str | None, at_ns: int) -> list[Decision]:
        """An entry when commands are signed by another key since the last record, else nothing.

        Args:
            key_id: the key, None for none.
            at_ns: time of the record that is about to be judged.
        """
        if key_id == self._key_id:
            return []
        self._key_id = key_id
        return [self.entry("signing_key_taken", key_id or NO_KEY, at_ns)]

    def entry(
        self,
        action: str,
        subject_id: str,
        at_ns: int,
        lane: str | None = None,
        source: Evidence | None = None,
        followed: Iterable[Record] = (),
        detail: dict[str, Any] | None = None,
    ) -> Decision:
        """The next entry.

        Args:
            action: what was done.
            subject_id: what it was done with: a finding, a mark's partition, an incident.
            at_ns: event time, nanoseconds; below 0 is written as 0.
            lane: `urgent` or `settled`, of a finding that was taken.
            source: place of what was taken, where it is not the record that is being taken; the offset of that one is
                then said as `taken_at`.
            followed: incidents and commands that came of it.
            detail: more, as plain data.
        """
        sequence, self._next = self._next, self._next + 1
        said = dict(detail or {})
        if source is not None and self.source is not None and source != self.source:
            said["taken_at"] = self.source.offset
        return Decision(
            site_id=self._site_id,
            sequence=sequence,
            event_time_ns=max(0, at_ns),
            action=action,
            lane=lane,
            subject_id=subject_id,
            source=source or self.source,
            followed=tuple(_identity(record) for record in followed if not isinstance(record, Decision)),
            detail=said,
        )

    def decided(self, followed: list[Record], at_ns: int) -> list[Record]:
        """What was decided when the wait for it was over, with an entry of each of its incidents before it."""
        incidents = dict.fromkeys(record.incident_id for record in followed if isinstance(record, Incident))
        entries = [self.entry("incident", incident_id, at_ns, followed=followed) for incident_id in incidents]
        return in_journal_order(entries, followed)

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {"next": self._next, "reference": dict(self._reference), "key_id": self._key_id}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._next, self._reference = snapshot["next"], dict(snapshot["reference"])
        self._key_id = snapshot.get("key_id")


def in_journal_order(entries: list[Decision], followed: list[Record]) -> list[Record]:
    """Entries and what followed them, as they are to be published: entries by their numbers, then the rest as it is."""
    earlier = [record for record in followed if isinstance(record, Decision)]
    rest = [record for record in followed if not isinstance(record, Decision)]
    return [*sorted([*earlier, *entries], key=lambda entry: entry.sequence), *rest]


def _identity(record: Record) -> str:
    return record.command_id if isinstance(record, Command) else str(getattr(record, "incident_id", ""))

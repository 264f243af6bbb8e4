"""Whether an approval is signed by a key that may approve, and by whom it says: checked where it is read, over its very bytes.

The ring and the clock are the worker's. What follows from a consent is decided in `streams.decisions.consents`; the word found
here goes with it and into the journal, because a replay has neither ring nor clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.keyring import UnprovenError, signer_of
from streams.core.position import MAX_AHEAD_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schemas.keyring import Keyring
    from schemas.remediation import Approval

__all__ = ["ConsentCheck"]


class ConsentCheck:
    """Checks approvals.

    Args:
        keyring: gives the ring that is trusted now; None where this worker has none, and nobody can approve.
        clock_ns: wall time, nanoseconds since the epoch.
    """

    def __init__(self, keyring: Callable[[], Keyring] | None, clock_ns: Callable[[], int]) -> None:
        self._keyring, self._clock_ns = keyring, clock_ns

    def refusal(self, approval: Approval, payload: bytes, headers: Iterable[tuple[str, bytes | None]]) -> str | None:
        """Why the signature of an approval does not count, in a word; None for one that holds.

        Args:
            approval: as it was decoded.
            payload: its bytes as they came.
            headers: all of its message's.
        """
        if self._keyring is None:
            return "no_keyring"
        try:
            key = signer_of(payload, headers, self._keyring(), "approvals", self._clock_ns(), MAX_AHEAD_NS)
        except UnprovenError as error:
            return error.code
        return None if key.holder == approval.approver else "another_approver"

"""PCI addresses in the one spelling that the rest of the program compares: `dddd:bb:dd`, lower case.

The function is dropped, because a GPU or switch is one device whichever of its functions a source names. The
domain keeps all its significant digits: clouds and Grace systems use others than 0000, and virtual ones are
wider than four digits. An address that cannot be read is None, never a guess.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"(?:PCI:)?(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-9a-f]{1,2})?",
    re.IGNORECASE | re.ASCII,
)

_DOMAIN_DIGITS = 4


def normalise(text: str) -> str | None:
    """The address as `dddd:bb:dd`, or None if `text` is not one.

    Takes a leading `PCI:`, any case, a domain of one to eight digits or none (which means 0000), and a
    function. A domain wider than four digits loses leading zeros down to four: `00010002:3b:00.0` is
    `10002:3b:00`.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return None
    domain = (found["domain"] or "").lstrip("0").rjust(_DOMAIN_DIGITS, "0")
    return f"{domain}:{found['bus']}:{found['device']}".lower()

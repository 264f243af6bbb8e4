"""Numbers as trainers print them: thousands separators, `K/M/G/B/T/P` suffixes, units, `current/average` pairs.

Guarantees: scaling is exact (decimal, not binary), so `11.5K` is 11500; a value that is unknown, not finite or cut
with `...` is None, never 0; no text raises. Deliberately does not guess: a comma that separates no thousands, or
digits glued to other digits, is no number.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final, NamedTuple

_SCALE: Final = {
    "": Decimal(1),
    "K": Decimal(10) ** 3,
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "B": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
}

# The suffix stands alone: in `41.7TFLOPS` and `3.2MHz` the letter belongs to the unit.
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3}){1,8}|\d{1,40})(?:\.\d{0,60})?|\.\d{1,60})"
    r"(?P<exponent>[eE][+-]?\d{1,3}(?![\d.]))?"
    r"(?P<suffix>[KkMGBTP](?![A-Za-z]))?"
    r"(?P<rest>(?![eE][+-]?\d)[\s%A-Za-zµ/(\[)].*)?"
)


class Quantity(NamedTuple):
    """A number and what followed it: a unit, a percent sign, the average of a pair, or nothing."""

    value: Decimal
    rest: str


def quantity(text: str) -> Quantity | None:
    """The number that `text` begins with, suffix resolved; None when it does not say one."""
    text = text.strip().rstrip(",;")
    match = _NUMBER.fullmatch(text)
    if match is None or "..." in text:
        return None
    digits = match["sign"] + match["digits"].replace(",", "") + (match["exponent"] or "")
    return Quantity(Decimal(digits) * _SCALE[match["suffix"] or ""], (match["rest"] or "").strip())


def number(text: str, scale: int = 1) -> float | None:
    """`text` as a finite float times `scale`; of a `current/average` pair the current value."""
    found = quantity(text)
    if found is None:
        return None
    value = float(found.value * scale)
    return value if math.isfinite(value) else None


def integer(text: str) -> int | None:
    """`text` as an exact integer, `794.0` among them; None for fractions and what exceeds 64 bits."""
    found = quantity(text)
    # Sizes first: making an integer of 1e999 costs a thousand digits.
    if found is None or abs(found.value) >= Decimal(2) ** 63 or found.value != found.value.to_integral_value():
        return None
    return int(found.value)

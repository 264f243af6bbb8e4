"""Numbers as tools print them: thousands separators, `K/M/G/T` suffixes, exponents, hex masks, and "not known".

Guarantees: a spelling of unknown is None and never 0; integers stay exact, and those beyond 64 bits are None,
because no counter of ours is that wide; text that is neither number nor unknown raises `Unreadable`. It knows
no units, no sentinels of a particular tool, and no range that a quantity should lie in.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

Number = int | float

_LONGEST = 64
"""Characters of a number at most: 20 digits with separators and a suffix fit many times over."""

_UNKNOWN = frozenset(
    {
        "",
        "-",
        "--",
        "n/a",
        "na",
        "nan",
        "-nan",
        "+nan",
        "inf",
        "+inf",
        "-inf",
        "infinity",
        "none",
        "null",
        "nil",
        "unknown",
        "not supported",
        "not available",
        "not found",
        "not applicable",
        "insufficient permissions",
        "no permission",
        "deprecated",
        "requested functionality has been deprecated",
    }
)

_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_PLAIN = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_HEX = re.compile(r"0x[0-9a-f]{1,16}", re.ASCII | re.IGNORECASE)
_GENERAL = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,4})?)[ ]?(?P<suffix>[kmgt]?)",
    re.ASCII | re.IGNORECASE,
)

_BITS = 64
_CERTAIN_DIGITS = 19
"""Numbers of fewer digits fit into 64 bits."""


class Unreadable(ValueError):  # noqa: N818 - says what the text is
    """The text is neither a number nor a known way to say that there is none."""


def is_unknown(text: str) -> bool:
    """Whether `text` says that the value is not known.

    That is `N/A`, `[Not Supported]`, `<unknown>`, `<<<NULL>>>`, nothing at all, NaN, or a cell cut with `...`.
    """
    bare = text.strip()
    if bare.endswith(("...", "\u2026")) or bare.startswith("<<<"):
        return True
    if len(bare) > 1 and (bare[0], bare[-1]) in {("[", "]"), ("<", ">"), ("(", ")")}:
        bare = bare[1:-1].strip()
    return bare.lower() in _UNKNOWN or bare.lower().startswith("n/a ")


def number(text: str) -> Number | None:
    """The number that `text` states, or None where it states that there is none.

    Whole numbers come out as int when written without fraction and exponent, or when separators or a suffix
    make them whole (`11.5K` is 11500); everything else as float.

    Raises:
        Unreadable: `text` is no number and no spelling of unknown.
    """
    bare = text.strip()
    if _PLAIN.fullmatch(bare):
        return bounded(int(bare))
    if _HEX.fullmatch(bare):
        return int(bare, 16)
    if is_unknown(bare):
        return None
    found = _GENERAL.fullmatch(bare) if len(bare) <= _LONGEST else None
    if found is None:
        raise Unreadable(f"not a number: {bare[:_LONGEST]!r}")
    try:
        value = Decimal(found["number"].replace(",", "")) * _SCALE[found["suffix"].lower()]
    except InvalidOperation:
        raise Unreadable(f"not a number: {bare!r}") from None
    fractional = "." in bare or "e" in bare.lower()
    if fractional and not found["suffix"]:
        as_float = float(value)
        return None if as_float in (float("inf"), float("-inf")) else as_float
    if value == value.to_integral_value():
        return bounded(int(value))
    return float(value)


def integer(text: str) -> int | None:
    """Like `number`, for what can only be whole: a count, an index, a code. `3.0` and `1.2e3` are taken.

    Raises:
        Unreadable: `text` is no number, has a fraction, or is no spelling of unknown.
    """
    bare = text.strip()
    if len(bare) < _CERTAIN_DIGITS and bare.isascii() and bare.isdigit():
        return int(bare)  # what nearly all counters are, and an agent reads hundreds of them every second
    value = number(bare)
    if value is None or isinstance(value, int):
        return value
    exact = Decimal(text.strip().replace(",", ""))
    if exact != exact.to_integral_value():
        raise Unreadable(f"not a whole number: {text.strip()[:_LONGEST]!r}")
    return bounded(int(exact))


def times(value: int | None, factor: int) -> int | None:
    """`value` in a finer unit; None stays None, and so does what no longer fits into 64 bits."""
    return None if value is None else bounded(value * factor)


def bounded(value: int) -> int | None:
    """`value`, or None where it does not fit into 64 bits, signed or not."""
    return value if -(1 << (_BITS - 1)) <= value < (1 << _BITS) else None

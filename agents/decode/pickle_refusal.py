"""What the operations of a pickle that are refused would do, for people who are told of it."""

from __future__ import annotations

from typing import Final

__all__ = ["refusal"]

_NAMES: Final = {
    ord("c"): "a global",
    ord("i"): "an instance",
    ord("o"): "an object",
    ord("b"): "a state to set",
    ord("R"): "a call",
    ord("P"): "a persistent id",
    ord("Q"): "a persistent id",
    0x81: "an object",
    0x82: "an extension",
    0x83: "an extension",
    0x84: "an extension",
    0x92: "an object",
    0x93: "a global",
    0x97: "an outside buffer",
    0x98: "an outside buffer",
    0x8F: "a set",
    0x90: "a set",
    0x91: "a set",
}


def refusal(code: int, position: int) -> str:
    """What is told of an operation that is not carried out, by its code and its byte in the pickle."""
    what = _NAMES.get(code)
    if what is not None:
        return f"refused: it names {what} (operation {code:#04x} at byte {position})"
    return f"operation {code:#04x} at byte {position} is none of plain data"

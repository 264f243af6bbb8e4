"""Pickles of plain data, read without anything that a pickle could run.

Guarantees: only dict, list, tuple, str, bytes, int, float, bool and None come out. Classes, globals, reductions,
persistent and extension ids are refused by their operation code, before any argument of theirs is looked at. A length is
held against what is left of the data before anything is taken, and memory, nesting and the size of the data written
out in full (so that shared parts cannot multiply) have limits. Protocols 2 to 5 are read: what is older is text, and
no recorder writes it. Deliberately an interpreter of its own: the standard one sets memory aside for lengths that a
pickle merely claims.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from agents.decode.pickle_refusal import refusal
from agents.decode.plain_limits import DEFAULT_LIMITS, Limits, PickleError, check_extent

__all__ = ["Limits", "PickleError", "loads"]


_PROTO: Final = 0x80
_STOP: Final = ord(".")
_GET1: Final = ord("h")
_GET4: Final = ord("j")
_PUT4: Final = ord("r")
_MARK_CODE: Final = ord("(")
_INT1: Final = ord("K")
_EMPTY_DICT: Final = ord("}")
_PROTOCOLS: Final = range(2, 6)
_LARGEST_KEY: Final = 1 << 31
"""Integer keys beyond could be chosen to fall on each other; texts are hashed with a secret."""

_SLOT_BYTES: Final = 16  # on the stack and in the container that takes it from there
_ITEM_BYTES: Final = 104  # of a dictionary, its share of the table
_LIST_BYTES: Final = 72
_DICT_BYTES: Final = 72
_TUPLE_BYTES: Final = 48
_TEXT_BYTES: Final = 56
_NUMBER_BYTES: Final = 36


def loads(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The value of one pickle, which must end where the data does.

    Args:
        data: A whole pickle of protocol 2 to 5.
        limits: What it may ask for.

    Raises:
        PickleError: It is no such pickle, holds more than plain data, is cut, or passes a limit.
    """
    if len(data) < 2 or data[0] != _PROTO:
        raise PickleError("not a pickle of protocol 2 or later")
    machine = _Machine(data, limits)
    value = machine.run()
    check_extent(value, limits)
    return value


class _Machine:
    """Stack, memo and position of one pickle."""

    __slots__ = ("_budget_bytes", "_data", "_end", "_limits", "_marks", "_memo", "_position", "_stack")

    def __init__(self, data: bytes, limits: Limits) -> None:
        self._data = data
        self._end = len(data)
        self._position = 0
        self._stack: list[Any] = []
        self._marks = [0]
        """Where runs of items begin on the stack, behind the stack's own beginning."""
        self._memo: dict[int, Any] = {}
        self._limits = limits
        self._budget_bytes = limits.memory_bytes

    def run(self) -> Any:
        # Four in five operations of a dump are one of these six: they cost no call here.
        data, end, operations, costs = self._data, self._end, _OPERATIONS, _COSTS
        push, memo, stack, marks = self._stack.append, self._memo, self._stack, self._marks
        position, budget_bytes, spent_bytes = self._position, self._budget_bytes, 0
        try:
            while position < end:
                code = data[position]
                position += 1
                spent_bytes += costs[code]
                if spent_bytes > budget_bytes:
                    raise self._too_much()
                if code == _GET1:
                    push(memo[data[position]])
                    position += 1
                elif code == _GET4:
                    push(memo[int.from_bytes(data[position : position + 4], "little")])
                    position += 4
                elif code == _PUT4 and position + 4 <= end and len(stack) > marks[-1]:
                    memo[int.from_bytes(data[position : position + 4], "little")] = stack[-1]
                    position += 4
                elif code == _MARK_CODE:
                    marks.append(len(stack))
                elif code == _INT1:
                    push(data[position])
                    position += 1
                elif code == _EMPTY_DICT:
                    push({})
                else:
                    self._position = position
                    if code == _STOP:
                        return self._result()
                    operation = operations[code]
                    if operation is None:
                        raise PickleError(refusal(code, position - 1))
                    operation(self)
                    position, budget_bytes = self._position, self._budget_bytes
        except (KeyError, IndexError):
            raise PickleError("cut, or nothing is where it looks") from None
        raise PickleError("cut: it has no end")

    def _result(self) -> Any:
        if self._position != self._end:
            raise PickleError(f"{self._end - self._position} bytes follow its end")
        if len(self._stack) != 1 or len(self._marks) != 1:
            raise PickleError("it does not end with one value")
        return self._stack[0]

    # What operations are made of.

    def _spend(self, size_bytes: int) -> None:
        """Accounts for what the operation's code alone does not tell; the loop holds the rest against what is left."""
        self._budget_bytes -= size_bytes
        if self._budget_bytes < 0:
            raise self._too_much()

    def _too_much(self) -> PickleError:
        return PickleError(f"it asks for more than {self._limits.memory_bytes} bytes of memory")

    def _take(self, size: int) -> bytes:
        position = self._position
        if size > self._end - position:
            raise PickleError(f"cut: {size} bytes are said to follow, {self._end - position} do")
        self._position = position + size
        return self._data[position : position + size]

    def _octet(self) -> int:
        position = self._position
        if position >= self._end:
            raise PickleError("cut: an operation lacks its byte")
        self._position = position + 1
        return self._data[position]

    def _unsigned(self, size: int) -> int:
        position = self._position
        self._position = end = position + size
        if end > self._end:
            raise PickleError("cut: an operation lacks its bytes")
        return int.from_bytes(self._data[position:end], "little")

    def _signed(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little", signed=True)

    def _pop(self) -> Any:
        if len(self._stack) <= self._marks[-1]:
            raise PickleError("an operation lacks its value")
        return self._stack.pop()

    def _top(self, kind: type[Any], what: str) -> Any:
        if len(self._stack) <= self._marks[-1] or type(self._stack[-1]) is not kind:
            raise PickleError(f"an operation lacks its {what}")
        return self._stack[-1]

    def _since_mark(self) -> list[Any]:
        if len(self._marks) == 1:
            raise PickleError("an operation lacks its mark")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _text(self, size: int) -> None:
        raw = self._take(size)
        try:
            text = raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise PickleError("a text is not UTF-8") from None
        # A text of one wide character is stored with four bytes for each.
        self._spend(size if text.isascii() else 4 * len(text))
        self._stack.append(text)

    def _octets(self, size: int) -> None:
        octets = self._take(size)
        self._spend(size)
        self._stack.append(octets)

    def _integer(self, size: int) -> None:
        if not 0 <= size <= self._limits.integer_bytes:
            raise PickleError(f"an integer of {size} bytes")
        self._stack.append(self._signed(size))

    def _remember(self, slot: int) -> None:
        if len(self._stack) <= self._marks[-1]:
            raise PickleError("an operation lacks its value")
        self._memo[slot] = self._stack[-1]

    def _fill(self, target: dict[Any, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise PickleError("a key has no value")
        self._spend(_ITEM_BYTES * (len(items) // 2))
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str and not (type(key) is int and -_LARGEST_KEY < key < _LARGEST_KEY):
                raise PickleError(f"a key of type {type(key).__name__}")
            target[key] = value

    # The operations.

    def proto(self) -> None:
        protocol = self._unsigned(1)
        if self._position != 2 or protocol not in _PROTOCOLS:
            raise PickleError(f"protocol {protocol} is not known here")

    def frame(self) -> None:
        size = self._unsigned(8)
        if size > self._end - self._position:
            raise PickleError(f"cut: a frame of {size} bytes is said to follow, {self._end - self._position} do")

    def none(self) -> None:
        self._stack.append(None)

    def true(self) -> None:
        self._stack.append(True)

    def false(self) -> None:
        self._stack.append(False)

    def int2(self) -> None:
        self._stack.append(self._unsigned(2))

    def int4(self) -> None:
        self._stack.append(self._signed(4))

    def long1(self) -> None:
        self._integer(self._unsigned(1))

    def long4(self) -> None:
        self._integer(self._signed(4))

    def double(self) -> None:
        self._stack.append(struct.unpack(">d", self._take(8))[0])

    def text1(self) -> None:
        self._text(self._unsigned(1))

    def text4(self) -> None:
        self._text(self._unsigned(4))

    def text8(self) -> None:
        self._text(self._unsigned(8))

    def octets1(self) -> None:
        self._octets(self._unsigned(1))

    def octets4(self) -> None:
        self._octets(self._unsigned(4))

    def octets8(self) -> None:
        self._octets(self._unsigned(8))

    def empty_list(self) -> None:
        self._stack.append([])

    def empty_tuple(self) -> None:
        self._stack.append(())

    def append(self) -> None:
        value = self._pop()
        self._top(list, "list").append(value)

    def appends(self) -> None:
        items = self._since_mark()
        self._top(list, "list").extend(items)

    def set_item(self) -> None:
        value = self._pop()
        key = self._pop()
        self._fill(self._top(dict, "dictionary"), [key, value])

    def set_items(self) -> None:
        items = self._since_mark()
        self._fill(self._top(dict, "dictionary"), items)

    def list_of(self) -> None:
        items = self._since_mark()
        self._stack.append(items)

    def dict_of(self) -> None:
        items = self._since_mark()
        built: dict[Any, Any] = {}
        self._fill(built, items)
        self._stack.append(built)

    def tuple_of(self) -> None:
        items = self._since_mark()
        self._stack.append(tuple(items))

    def _last(self, count: int) -> None:
        stack = self._stack
        if len(stack) - count < self._marks[-1]:
            raise PickleError("an operation lacks its value")
        stack[-count:] = [tuple(stack[-count:])]

    def tuple1(self) -> None:
        self._last(1)

    def tuple2(self) -> None:
        self._last(2)

    def tuple3(self) -> None:
        self._last(3)

    def put1(self) -> None:
        self._remember(self._octet())

    def put4(self) -> None:
        self._remember(self._unsigned(4))

    def memoize(self) -> None:
        self._remember(len(self._memo))

    def drop(self) -> None:
        if len(self._stack) > self._marks[-1]:
            self._stack.pop()
        else:
            self._since_mark()

    def drop_to_mark(self) -> None:
        self._since_mark()

    def again(self) -> None:
        self._stack.append(self._top_value())

    def _top_value(self) -> Any:
        if len(self._stack) <= self._marks[-1]:
            raise PickleError("an operation lacks its value")
        return self._stack[-1]


_BY_CODE: Final[dict[int, Callable[[_Machine], None]]] = {
    _PROTO: _Machine.proto,
    0x95: _Machine.frame,
    ord("N"): _Machine.none,
    0x88: _Machine.true,
    0x89: _Machine.false,
    ord("M"): _Machine.int2,
    ord("J"): _Machine.int4,
    0x8A: _Machine.long1,
    0x8B: _Machine.long4,
    ord("G"): _Machine.double,
    0x8C: _Machine.text1,
    ord("X"): _Machine.text4,
    0x8D: _Machine.text8,
    ord("C"): _Machine.octets1,
    ord("B"): _Machine.octets4,
    0x8E: _Machine.octets8,
    0x96: _Machine.octets8,  # a bytearray
    ord("]"): _Machine.empty_list,
    ord(")"): _Machine.empty_tuple,
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    ord("l"): _Machine.list_of,
    ord("d"): _Machine.dict_of,
    ord("t"): _Machine.tuple_of,
    0x85: _Machine.tuple1,
    0x86: _Machine.tuple2,
    0x87: _Machine.tuple3,
    ord("q"): _Machine.put1,
    ord("r"): _Machine.put4,
    0x94: _Machine.memoize,
    ord("0"): _Machine.drop,
    ord("1"): _Machine.drop_to_mark,
    ord("2"): _Machine.again,
}
_OPERATIONS: Final = tuple(_BY_CODE.get(code) for code in range(256))

_COST_BY_OPERATION: Final[dict[Callable[[_Machine], None], int]] = {
    **dict.fromkeys((_Machine.int2, _Machine.int4, _Machine.long1, _Machine.long4, _Machine.double), _NUMBER_BYTES),
    **dict.fromkeys((_Machine.text1, _Machine.text4, _Machine.text8), _TEXT_BYTES),
    **dict.fromkeys((_Machine.octets1, _Machine.octets4, _Machine.octets8), _TEXT_BYTES),
    **dict.fromkeys((_Machine.empty_list, _Machine.list_of), _LIST_BYTES),
    **dict.fromkeys((_Machine.dict_of,), _DICT_BYTES),
    **dict.fromkeys((_Machine.tuple_of, _Machine.tuple1, _Machine.tuple2, _Machine.tuple3), _TUPLE_BYTES),
    **dict.fromkeys((_Machine.put1, _Machine.put4, _Machine.memoize), _ITEM_BYTES),
}
_COSTS: Final = tuple(
    _SLOT_BYTES + (_DICT_BYTES if code == _EMPTY_DICT else _COST_BY_OPERATION.get(operation, 0) if operation else 0)
    for code, operation in enumerate(_OPERATIONS)
)

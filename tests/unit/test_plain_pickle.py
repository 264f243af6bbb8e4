"""Pickles give plain data or a clear refusal, whatever they claim, in bounded memory and time."""

from __future__ import annotations

import collections
import contextlib
import pickle
import pickletools
import struct
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.decode.plain_limits import Limits
from agents.decode.plain_pickle import PickleError, loads

PLAIN = {
    "version": "2.5",
    "entries": [
        {"frames": [], "process_group": ("0", "default_pg"), "sizes": [[3, 4]], "seq": 1, "state": "scheduled"},
        {"none": None, "yes": True, "no": False, "real": 152.4375, "large": 1_764_000_000_000_000_000, "less": -1},
    ],
    5: ("é" * 300, "", (), {}, -70_000, 2**70, (1,), (1, 2, 3, 4)),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_comes_back_as_it_was(protocol: int) -> None:
    assert loads(pickle.dumps(PLAIN, protocol)) == PLAIN
    assert loads(pickletools.optimize(pickle.dumps(PLAIN, protocol))) == PLAIN


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_bytes_are_plain(protocol: int) -> None:
    assert loads(pickle.dumps([b"ab", b"x" * 400], protocol)) == [b"ab", b"x" * 400]


def test_shared_parts_are_the_same_part() -> None:
    part = [1]
    assert loads(pickle.dumps([part, part], 2)) == [[1], [1]]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(plain, st.sampled_from([3, 4, 5]))
@settings(max_examples=150, deadline=None)
def test_what_the_standard_pickler_writes_of_plain_data_is_read(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x80\x02", b"\x80\x04"]))
@settings(max_examples=300, deadline=None)
def test_no_bytes_do_more_than_be_refused(noise: bytes, start: bytes) -> None:
    with contextlib.suppress(PickleError):
        loads(start + noise)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_cut_pickle_is_refused(data: st.DataObject) -> None:
    whole = pickle.dumps(PLAIN, data.draw(st.sampled_from([2, 4, 5])))
    with pytest.raises(PickleError):
        loads(whole[: data.draw(st.integers(0, len(whole) - 1))])


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


class State:
    pass


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        Trap(),
        State(),
        collections.OrderedDict(a=1),
        {1, 2},
        frozenset({1}),
        datetime(2026, 1, 1, tzinfo=UTC),
        1j,
        print,
        ValueError("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_data_is_refused(value: Any, protocol: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PickleError):
        loads(pickle.dumps({"entries": [value]}, protocol))
    assert capsys.readouterr().out == ""


def test_persistent_ids_extensions_and_outside_buffers_are_refused() -> None:
    for body in (
        b"K\x01Q.",
        b"Px\n.",
        b"\x82\x01.",
        b"\x83\x01\x00.",
        b"\x84\x01\x00\x00\x00.",
        b"\x97.",
        b"\x97\x98.",
    ):
        with pytest.raises(PickleError, match="refused"):
            loads(b"\x80\x04" + body)
    with pytest.raises(PickleError, match="global"):
        loads(b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.")


def test_a_claimed_length_takes_no_memory() -> None:
    huge = 2 << 30
    claims = [
        b"\x8d" + struct.pack("<Q", huge),  # text
        b"\x8e" + struct.pack("<Q", huge),  # bytes
        b"\x96" + struct.pack("<Q", 1 << 62),  # a bytearray
        b"\x95" + struct.pack("<Q", huge),  # a frame
        b"X" + struct.pack("<I", huge),
        b"B" + struct.pack("<I", huge),
        b"\x8b" + struct.pack("<i", 2**31 - 1),  # an integer
        b"\x8b" + struct.pack("<i", -5),
        b"\x8a\xff" + b"\x01" * 255,
        b"r" + struct.pack("<I", 2**32 - 1),  # a slot to remember nothing in
        b"Nr" + struct.pack("<I", 2**32 - 1) + b"j" + struct.pack("<I", 7),
    ]
    tracemalloc.start()
    try:
        for claim in claims:
            with pytest.raises(PickleError):
                loads(b"\x80\x04" + claim + b".")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_nesting_has_an_end() -> None:
    for opening, closing in ((b"]", b"a"), (b"(", b"l"), (b"(", b"t")):
        depth = 100_000
        with pytest.raises(PickleError, match="nested"):
            loads(
                b"\x80\x02"
                + opening * depth
                + (b"" if opening == b"]" else b"N")
                + closing * (depth - (opening == b"]"))
                + b"."
            )


def test_remembered_parts_cannot_multiply() -> None:
    body = b"]q\x00(" + b"K\x01" * 10 + b"e"
    for level in range(1, 30):
        body += b"]q" + bytes([level]) + b"(" + (b"h" + bytes([level - 1])) * 10 + b"e"
    body = b"(" + body + b"t."
    with pytest.raises(PickleError, match="written out"):
        loads(b"\x80\x02" + body)


def test_what_holds_itself_is_refused() -> None:
    with pytest.raises(PickleError, match="itself"):
        loads(b"\x80\x02]q\x00h\x00a.")
    loop: list[Any] = []
    loop.append((loop,))
    with pytest.raises(PickleError, match="itself"):
        loads(pickle.dumps(loop, 4))


def test_memory_has_a_limit() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PickleError, match="memory"):
            loads(b"\x80\x02(" + b"}" * 2_000_000 + b"l.", Limits(memory_bytes=8 << 20))
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_keys_that_could_fall_on_each_other_are_refused() -> None:
    with pytest.raises(PickleError, match="key"):
        loads(pickle.dumps({2**61 - 1: 0}, 2))
    with pytest.raises(PickleError, match="key"):
        loads(pickle.dumps({(1,): 0}, 2))
    with pytest.raises(PickleError, match="key"):
        loads(b"\x80\x02}]K\x01s.")


def test_one_value_ends_with_the_data() -> None:
    with pytest.raises(PickleError, match="follow"):
        loads(pickle.dumps([1], 2) + b"\n")
    with pytest.raises(PickleError, match="one value"):
        loads(b"\x80\x02NN.")
    with pytest.raises(PickleError, match="one value"):
        loads(b"\x80\x02(.")
    with pytest.raises(PickleError, match="protocol"):
        loads(b"\x80\x06N.")
    with pytest.raises(PickleError, match="protocol 2"):
        loads(pickle.dumps([1], 0))

"""Messages that no engine may see, made from good ones by a seed: kinds of damage x families of records.

Each says what its dead letter must tell. Damage that is drawn blindly may leave a good record: such a draw is made again,
until the edge refuses it. What is damaged on purpose must be refused at once, or the edge has a hole.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.codec import decode, message, schema_name
from schemas.errors import SchemaError
from schemas.findings import Finding
from schemas.topics import topic_of
from streams.core.admission import refusal
from streams.core.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.base import Record

__all__ = ["KINDS", "LARGEST_MESSAGE", "Poison", "poisons", "reference_poisons"]

LARGEST_MESSAGE = 1_048_400
"""Bytes of a value that still goes into an input topic."""
LIMIT = 1_000_000

S = 1_000_000_000


@dataclass(frozen=True)
class Poison:
    """One message.

    Attributes:
        kind: what was done to it.
        told: what the text of its dead letter must hold.
    """

    kind: str
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    told: str = ""


@dataclass(frozen=True)
class Good:
    """A good record to start from, and a moment about which all of it arrives."""

    record: Record
    now_ns: int

    @property
    def topic(self) -> str:
        return topic_of(self.record).name

    @property
    def key(self) -> bytes:
        return message(self.record).key

    @property
    def value(self) -> bytes:
        return message(self.record).value

    @property
    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.value)
        return fields

    def poison(self, kind: str, value: bytes | None, told: str = "", **changes: Any) -> Poison:
        return Poison(kind, self.topic, changes.pop("key", self.key), value, changes.pop("headers", ()), told)


def is_refused(poison: Poison, now_ns: int) -> bool:
    """Whether the edge refuses it."""
    if poison.value is None:
        return True
    try:
        record = decode(poison.topic, poison.value)
    except SchemaError:
        return True
    schema = next((value.decode(errors="replace") for name, value in poison.headers if name == "schema"), None)
    return refusal(record, poison.key, schema, Position(poison.topic, 0, 0, now_ns // 1_000_000)) is not None


def dumped(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all that is not a container."""
    if isinstance(value, dict):
        return [found for name, entry in value.items() for found in places(entry, (*path, name))]
    if isinstance(value, list):
        return [found for number, entry in enumerate(value) for found in places(entry, (*path, number))]
    return [path]


def put(fields: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    node: Any = fields
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return fields


def numbers(good: Good) -> list[tuple[Any, ...]]:
    fields = good.fields

    def at(path: tuple[Any, ...]) -> Any:
        node: Any = fields
        for step in path:
            node = node[step]
        return node

    return [path for path in places(fields) if isinstance(at(path), int) and not isinstance(at(path), bool)]


# --- Drawn blindly: what stays good is drawn again --------------------------------------------------------------------


def flipped(good: Good, rng: random.Random) -> Poison:
    value = bytearray(good.value)
    for _ in range(rng.choice([1, 1, 2, 8])):
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
    return good.poison("bits flipped", bytes(value))


def overwritten(good: Good, rng: random.Random) -> Poison:
    value = bytearray(good.value)
    start = rng.randrange(len(value))
    length = rng.randint(1, 64)
    value[start : start + length] = rng.randbytes(length)
    return good.poison("bytes overwritten", bytes(value))


def swapped(good: Good, rng: random.Random) -> Poison:
    path = rng.choice(places(good.fields))
    other = rng.choice([None, "text", "", [], {}, True, -1, 1.5, [1], {"a": 1}])
    return good.poison("a value of another type", dumped(put(good.fields, path, other)))


def spliced(good: Good, rng: random.Random) -> Poison:
    value = good.value
    cut, to = sorted((rng.randrange(len(value)), rng.randrange(len(value))))
    return good.poison("a piece cut out", value[:cut] + value[to:])


# --- Done on purpose: the edge must refuse it -------------------------------------------------------------------------


def torn(good: Good, rng: random.Random) -> Poison:
    return good.poison("torn", good.value[: rng.randrange(1, len(good.value))], "JSON")


def not_utf8(good: Good, rng: random.Random) -> Poison:
    bad = rng.choice([b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x00"])
    return good.poison("wrong UTF-8", good.value.replace(b'":"', b'":"' + bad, 1))


def other_encoding(good: Good, rng: random.Random) -> Poison:
    return good.poison("another encoding", good.value.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"])))


def huge(good: Good, rng: random.Random) -> Poison:
    digits = rng.choice([20, 30, 400, 5000])
    path = rng.choice(numbers(good))
    marked = dumped(put(good.fields, path, "@@"))
    sign = rng.choice([b"", b"-"])
    return good.poison("a number without end", marked.replace(b'"@@"', sign + b"9" * digits))


def no_number(good: Good, rng: random.Random) -> Poison:
    literal = rng.choice([b"NaN", b"Infinity", b"-Infinity", b"1e999", b"0x10", b"01", b"1_000", b"1e30"])
    marked = dumped(put(good.fields, rng.choice(numbers(good)), "@@"))
    return good.poison("a literal that is no number", marked.replace(b'"@@"', literal))


def deep(good: Good, rng: random.Random) -> Poison:
    levels = rng.choice([2_000, 20_000, 100_000])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    whole = rng.random() < 0.5
    nested = opening * levels + b"1" + (closing * levels if whole else b"")
    return good.poison("nested without end", good.value[:-1] + b',"extra":' + nested + b"}", "JSON")


def version(good: Good, rng: random.Random) -> Poison:
    name = f"{good.fields['record']}.v{rng.randint(2, 9)}"
    return good.poison("another version", dumped(good.fields | {"record": name}), "")


def version_header(good: Good, rng: random.Random) -> Poison:
    name = schema_name(good.record).rpartition(".v")[0] + f".v{rng.randint(2, 9)}"
    return good.poison("another version in its header", good.value, name, headers=(("schema", name.encode()),))


def foreign_header(good: Good, rng: random.Random) -> Poison:
    name = rng.choice([b"paceline.command.v1", b"", b"\xff\xfe", b"x" * 5000, b"somebody.elses.v1"])
    headers = (("trace", b"1"), ("schema", name))
    return good.poison("a header of another record", good.value, "schema header", headers=headers)


def unknown(good: Good, rng: random.Random) -> Poison:
    name = rng.choice(["rumour", "", "GPU_FRAME", "decision", "command"])
    return good.poison("an unknown record", dumped(good.fields | {"record": name}))


def lacking(good: Good, rng: random.Random) -> Poison:
    model = type(good.record)
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    name = rng.choice(required)
    return good.poison("a field missing", dumped({k: v for k, v in good.fields.items() if k != name}), name)


def ahead(good: Good, rng: random.Random) -> Poison:
    name = "mark_ns" if "mark_ns" in good.fields else "event_time_ns"
    # Half a minute more than the bound: the test itself takes time to publish.
    by_ns = rng.choice([95, 600, 3600, 86_400, 366 * 86_400]) * S
    return good.poison("of the future", dumped(good.fields | {name: good.now_ns + by_ns}), "ahead of its arrival")


def beyond_time(good: Good, rng: random.Random) -> Poison:
    name = "mark_ns" if "mark_ns" in good.fields else "event_time_ns"
    return good.poison("a time that no clock shows", dumped(good.fields | {name: rng.choice([2**63, -1])}), name)


def foreign_key(good: Good, rng: random.Random) -> Poison:
    key = rng.choice([b"node-9999", b"", b"\xff", good.key + b" ", good.key.upper(), b"k" * 4000])
    return good.poison("under another's key", good.value, "was published under the key", key=key)


def keyless(good: Good, rng: random.Random) -> Poison:
    return good.poison("without a key", good.value, "without a key", key=None)


def tombstone(good: Good, rng: random.Random) -> Poison:
    return good.poison("a tombstone", None, "no value", key=rng.choice([good.key, good.key, None]))


def no_object(good: Good, rng: random.Random) -> Poison:
    return good.poison(
        "no object", rng.choice([b"", b" ", b"null", b"[]", b"79", b'"x"', b"true", b"{}", b"[79]", b"\n"])
    )


def trailing(good: Good, rng: random.Random) -> Poison:
    more = rng.choice([b"}", b"x", b"\x00", good.value, b",", b"//"])
    return good.poison("more behind it", good.value + more, "JSON")


def name_too_long(good: Good, rng: random.Random) -> Poison:
    name = next(n for n in ("node_id", "job_id", "site_id", "switch_id") if n in good.fields)
    return good.poison("a name that is none", dumped(good.fields | {name: rng.choice(["", "n" * 254])}), name)


def above_limit(good: Good, rng: random.Random) -> Poison:
    size = rng.choice([LIMIT + 1, LIMIT + 1000, LARGEST_MESSAGE, 3_000_000, 8_000_000])
    head = good.value[:-1] + b',"extra":"'
    return good.poison("above the limit", head + b"x" * (size - len(head) - 2) + b'"}', "limit")


def noise_at_limit(good: Good, rng: random.Random) -> Poison:
    size = rng.choice([LIMIT, LIMIT + 1, LARGEST_MESSAGE])
    return good.poison("noise about the limit", rng.randbytes(size), "limit" if size > LIMIT else "JSON")


def figures(good: Good, rng: random.Random) -> Poison:
    """A finding that is one, with a figure that is none."""
    name = rng.choice(["excess_us", "step_time_us", "host_excess_us", "data_excess_us"])
    values = {**good.fields.get("values", {}), name: rng.choice(["much", True, [1.0]])}
    return good.poison("a figure that is none", dumped(good.fields | {"values": values}), name)


_BLIND = (flipped, overwritten, swapped, spliced)
_ON_PURPOSE = (
    torn,
    not_utf8,
    other_encoding,
    huge,
    no_number,
    deep,
    version,
    version_header,
    foreign_header,
    unknown,
    lacking,
    ahead,
    beyond_time,
    foreign_key,
    keyless,
    tombstone,
    no_object,
    trailing,
    name_too_long,
)
_LARGE = (above_limit, noise_at_limit)
_OF_REFERENCE = (torn, not_utf8, huge, deep, version_header, foreign_header, unknown, foreign_key, keyless, trailing)
KINDS = len(_BLIND) + len(_ON_PURPOSE) + len(_LARGE) + 1


def poisons(goods: list[Record], now_ns: int, count: int, seed: int, large: int = 24) -> list[Poison]:
    """That many messages of all kinds, in a drawn order.

    Args:
        goods: records of every family, to damage.
        now_ns: about when they arrive.
        count: how many.
        seed: of all that is drawn.
        large: how many of them are about a megabyte or more.
    """
    rng = random.Random(seed)
    by_family: dict[str, list[Record]] = {}
    for record in goods:
        by_family.setdefault(type(record).__name__, []).append(record)
    families = sorted(by_family)
    made = []
    for number in range(count):
        if number < large:
            damage: Callable[[Good, random.Random], Poison] = _LARGE[number % len(_LARGE)]
        elif number % 29 == 0:
            damage = figures
        else:
            damage = (*_BLIND, *_ON_PURPOSE)[number % (len(_BLIND) + len(_ON_PURPOSE))]
        family = families[number % len(families)] if damage is not figures else Finding.__name__
        good = Good(rng.choice(by_family[family]), now_ns)
        made.append(_made(damage, good, rng))
    rng.shuffle(made)
    return made


def reference_poisons(goods: list[Record], now_ns: int, count: int, seed: int) -> list[Poison]:
    """Messages for the topics that every worker reads whole."""
    rng = random.Random(seed)
    return [
        _made(_OF_REFERENCE[number % len(_OF_REFERENCE)], Good(rng.choice(goods), now_ns), rng)
        for number in range(count)
    ]


def _made(damage: Callable[[Good, random.Random], Poison], good: Good, rng: random.Random) -> Poison:
    for _ in range(200):
        poison = damage(good, rng)
        if damage is figures or is_refused(poison, good.now_ns):
            return poison
        assert damage in _BLIND, f"the edge takes {poison.kind}: {poison}"
    raise AssertionError(f"{damage.__name__} does no harm to {good.record}")

"""Operator state as bytes: plain data, numpy arrays and records in, compressed chunks out, and back.

JSON with arrays as their bytes, compressed with zstd, cut into chunks of at most 512 kB: what a table record may hold.
Tuples come back as lists. Reading never builds any class but arrays and our own records.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import zstandard

from schemas.base import Record
from schemas.codec import decode_value
from schemas.topics import topic_of

__all__ = ["CHUNK_BYTES", "DamagedSnapshotError", "PackedSnapshot", "pack", "unpack"]

CHUNK_BYTES = 512 * 1024
_ARRAY_KINDS = frozenset({"int64", "float64", "float32", "uint64", "uint32", "uint16", "uint8", "int32", "bool"})
_MAX_BYTES = 1 << 30


class DamagedSnapshotError(Exception):
    """The chunks do not make up the snapshot that was written."""


@dataclass(frozen=True, slots=True)
class PackedSnapshot:
    """A snapshot ready to be written.

    Attributes:
        chunks: compressed bytes, each at most `CHUNK_BYTES`.
        digest: SHA-256 over all chunks, hexadecimal.
        plain_bytes: size before compression.
    """

    chunks: tuple[bytes, ...]
    digest: str
    plain_bytes: int


def pack(state: Any) -> PackedSnapshot:
    """Bytes of a state; costs a few milliseconds a megabyte, so callers keep it off their loop."""
    plain = orjson.dumps(state, default=_tagged, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
    packed = zstandard.ZstdCompressor(level=1).compress(plain)
    chunks = tuple(packed[start : start + CHUNK_BYTES] for start in range(0, len(packed), CHUNK_BYTES))
    return PackedSnapshot(chunks, hashlib.sha256(packed).hexdigest(), len(plain))


def unpack(chunks: tuple[bytes, ...], digest: str) -> Any:
    """The state of a snapshot.

    Raises:
        DamagedSnapshotError: a chunk is missing, changed, or of another snapshot.
    """
    packed = b"".join(chunks)
    if hashlib.sha256(packed).hexdigest() != digest:
        raise DamagedSnapshotError("the chunks do not have the digest that was written with them")
    try:
        plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MAX_BYTES)
        return _untagged(orjson.loads(plain))
    except (zstandard.ZstdError, orjson.JSONDecodeError) as error:
        raise DamagedSnapshotError(str(error)) from None


def _tagged(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.name not in _ARRAY_KINDS:
            raise TypeError(f"arrays of {value.dtype} are no operator state")
        return {"$array": value.dtype.name, "data": base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()}
    if isinstance(value, Record):
        return {"$record": topic_of(value).family, "value": value.model_dump(mode="json", exclude_none=True)}
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is no operator state")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        if value["$array"] not in _ARRAY_KINDS:
            raise DamagedSnapshotError(f"unknown array kind {value['$array']!r}")
        return np.frombuffer(base64.b64decode(value["data"]), dtype=value["$array"]).copy()
    if "$record" in value:
        return decode_value(value["$record"], value["value"])
    return {key: _untagged(entry) for key, entry in value.items()}

"""What a collective's size and duration say about bandwidth, and what of it its links carry.

The conventions are those of nccl-tests (`doc/PERFORMANCE.md`): algorithm bandwidth is bytes over time, where the bytes are
those of the larger of the two buffers of a rank; bus bandwidth is that times the share of the bytes which one rank must
send (and receive) whatever the algorithm, so that it can be held against a link whatever the number of ranks.
Guarantees: an operation without such a share, or of one rank, has no bandwidth. Deliberately not: which algorithm ran.
No dump says it, and a kernel's name does not either: NCCL runs other algorithms under the name of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BYTES_PER_ELEMENT", "Bandwidth", "bandwidth", "bus_share", "bytes_of", "operation_of"]

_REDUCED: Final = "all_reduce"
_SHARED: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
_PASSED: Final = frozenset({"broadcast", "reduce", "send", "recv"})

_WORDS: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather_base": "all_gather",
    "allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_base": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast_oop": "broadcast",
    "reduce_oop": "reduce",
}
"""Names that PyTorch's recorder and profiler give operations, without a leading underscore."""

BYTES_PER_ELEMENT: Final = {
    "Double": 8,
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
    "ComplexHalf": 4,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1,
    "UInt16": 2,
    "UInt32": 4,
    "UInt64": 8,
}
"""By PyTorch's name of the type."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Of one operation or many alike, GB/s (10^9).

    Attributes:
        algorithm_gb_s: Bytes over time.
        bus_gb_s: Times 2(N-1)/N for an all-reduce, (N-1)/N for all-gather, reduce-scatter, all-to-all, gather and scatter, 1
            for the others: what every rank's link carries each way in a ring, and at least in any algorithm on links.
        tree_gb_s: Of an all-reduce, what a rank's link would carry each way in a double binary tree, twice the algorithm
            bandwidth: a rank is an inner node of one tree and a leaf of the other, half of the data in each, up and down.
    """

    algorithm_gb_s: float
    bus_gb_s: float
    tree_gb_s: float | None


def operation_of(name: str | None) -> str | None:
    """The operation by one word (`all_reduce`, `all_gather`, ...); None for one that has no bandwidth, as a barrier."""
    if name is None:
        return None
    word = name.strip().lower().removeprefix("nccl:").lstrip("_").removesuffix("_coalesced")
    word = _WORDS.get(word, word)
    return word if word == _REDUCED or word in _SHARED or word in _PASSED else None


def bytes_of(elements: int | None, other_elements: int | None, dtype: str | None) -> int | None:
    """Bytes of the larger of a rank's two buffers; None where type or both counts are unknown."""
    width = BYTES_PER_ELEMENT.get(dtype.removeprefix("c10::")) if dtype is not None else None
    counts = [count for count in (elements, other_elements) if count is not None]
    if width is None or not counts:
        return None
    return max(counts) * width or None


def bandwidth(operation: str, rank_count: int, size_bytes: int, transfer_us: float) -> Bandwidth | None:
    """The bandwidth of an operation.

    Args:
        operation: As `operation_of` gives it.
        rank_count: Ranks of its communicator.
        size_bytes: Of the larger buffer of a rank.
        transfer_us: From the arrival of the last rank to the end.

    Returns:
        None for a single rank, or no time or size.
    """
    if rank_count < 2 or size_bytes <= 0 or transfer_us <= 0:
        return None
    algorithm = size_bytes / transfer_us / 1000
    is_reduced = operation == _REDUCED
    return Bandwidth(algorithm, algorithm * bus_share(operation, rank_count), 2 * algorithm if is_reduced else None)


def bus_share(operation: str, rank_count: int) -> float:
    """Of a rank's bytes, the share (times) that each rank's link carries each way."""
    if operation == _REDUCED:
        return 2 * (rank_count - 1) / rank_count
    return (rank_count - 1) / rank_count if operation in _SHARED else 1.0

"""Matrix products of a trace whose shapes were recorded: their FLOP and the bytes that they must move at least.

Guarantees: only the operators that launch a product themselves are counted (`aten::mm`, `addmm`, `bmm`, `baddbmm`,
`_scaled_mm`, `_int_mm`), so nothing that calls another is counted twice; one multiply-add is two FLOP; bytes are each
operand read and the result written once, as if a cache kept everything between. Deliberately not: attention,
convolutions and fused kernels, whose work the shapes do not settle.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from agents.decode.kineto_event import whole

_FIRST_OPERAND: Final = {
    "aten::mm": 0,
    "aten::_scaled_mm": 0,
    "aten::_int_mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
}
"""Operator to the place of its first factor among its inputs; the second follows it."""

_BYTES_BY_DTYPE: Final = {
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "float": 4,
    "double": 8,
    "signed char": 1,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
}
_NARROW_RESULT_BYTES: Final = 2
"""The result of an 8-bit product is held as 16 bits."""
_MATRIX, _BATCH_OF_MATRICES = 2, 3


class Products:
    """The products of a trace, one row each; rows are joined to kernels by the operator's `External id`."""

    def __init__(self) -> None:
        self.external_ids = array("q")
        self.flops = array("d")
        self.bytes = array("d")
        self.dtypes = array("L")
        self.dtype_names: list[str] = []

    def take(self, name: str, args: dict[str, Any]) -> None:
        """Takes an operator if it is a product whose factors' shapes and types are recorded."""
        place = _FIRST_OPERAND.get(name)
        external_id = whole(args.get("External id"))
        if place is None or external_id is None or external_id >= 1 << 63:
            return
        shapes, dtypes = args.get("Input Dims"), args.get("Input type")
        if not isinstance(shapes, list) or not isinstance(dtypes, list) or min(len(shapes), len(dtypes)) < place + 2:
            return
        work = product_work(shapes[place], shapes[place + 1], dtypes[place])
        if work is None:
            return
        dtype = str(dtypes[place])
        if dtype not in self.dtype_names:
            self.dtype_names.append(dtype)
        self.external_ids.append(external_id)
        self.flops.append(work[0])
        self.bytes.append(work[1])
        self.dtypes.append(self.dtype_names.index(dtype))


def product_work(first: object, second: object, dtype: object) -> tuple[float, float] | None:
    """FLOP and bytes of the product of two matrices, or of two batches of them; None where the shapes are not such.

    Args:
        first: `[M, K]` or `[B, M, K]`.
        second: `[K, N]` or `[B, K, N]`.
        dtype: The factors' type as the profiler prints it, `c10::BFloat16`.
    """
    left, right = _sizes(first), _sizes(second)
    width = _BYTES_BY_DTYPE.get(dtype) if isinstance(dtype, str) else None
    if left is None or right is None or width is None or len(left) != len(right):
        return None
    if left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    batch = left[0] if len(left) == _BATCH_OF_MATRICES else 1
    rows, inner, columns = left[-2], left[-1], right[-1]
    result_width = max(width, _NARROW_RESULT_BYTES)
    moved = width * (rows * inner + inner * columns) + result_width * rows * columns
    return 2.0 * batch * rows * inner * columns, float(batch * moved)


def _sizes(value: object) -> list[int] | None:
    if not isinstance(value, list) or len(value) not in (_MATRIX, _BATCH_OF_MATRICES):
        return None
    sizes = [size for size in value if type(size) is int and 0 < size < 1 << 40]
    return sizes if len(sizes) == len(value) else None

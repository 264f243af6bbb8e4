"""What an error of NVML says: about the call, about the GPU, or about the driver as a whole.

Guarantees: every error falls in exactly one class, and one that nobody knows is taken as passing. The library is asked
for its numbers by name, so that an older or newer binding is read the same way.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

__all__ = ["LOST", "RESET_REQUIRED", "UNKNOWN", "DriverGoneError", "Verdict", "verdict"]

LOST = "GPU is lost"
RESET_REQUIRED = "GPU requires reset"
UNKNOWN = "Unknown Error"
"""Faults of a GPU in the words of nvidia-smi."""


class Verdict(Enum):
    """What to make of an error."""

    LOST = auto()
    """The GPU is gone: nothing that was read of it counts."""
    RESET = auto()
    """The GPU asks for a reset; part of it may still answer."""
    UNKNOWN = auto()
    """The driver does not know. From every call of one GPU it means that the GPU is gone."""
    REFUSED = auto()
    """This GPU, driver or permission does not have the call, and will not have it the next time."""
    STALE = auto()
    """The call is refused, or the handle is from before: which one, the other calls tell."""
    DRIVER = auto()
    """The library must be started anew."""
    PASSING = auto()
    """No value this time."""


_VERDICTS = {
    "NVML_ERROR_GPU_IS_LOST": Verdict.LOST,
    "NVML_ERROR_GPU_NOT_FOUND": Verdict.LOST,
    "NVML_ERROR_RESET_REQUIRED": Verdict.RESET,
    "NVML_ERROR_UNKNOWN": Verdict.UNKNOWN,
    "NVML_ERROR_NOT_SUPPORTED": Verdict.REFUSED,
    "NVML_ERROR_FUNCTION_NOT_FOUND": Verdict.REFUSED,
    "NVML_ERROR_NO_PERMISSION": Verdict.REFUSED,
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": Verdict.REFUSED,
    "NVML_ERROR_DEPRECATED": Verdict.REFUSED,
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED": Verdict.REFUSED,
    "NVML_ERROR_INVALID_ARGUMENT": Verdict.STALE,
    "NVML_ERROR_UNINITIALIZED": Verdict.DRIVER,
    "NVML_ERROR_DRIVER_NOT_LOADED": Verdict.DRIVER,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": Verdict.DRIVER,
    "NVML_ERROR_LIBRARY_NOT_FOUND": Verdict.DRIVER,
}


class DriverGoneError(Exception):
    """The driver was unloaded or exchanged under the library."""


def verdict(library: Any, number: int | None) -> Verdict:
    """What an error number means to one who reads a GPU.

    Args:
        library: the `pynvml` module, or what answers like it.
        number: `value` of its exception, or `nvmlReturn` of a field value.
    """
    for name, meaning in _VERDICTS.items():
        if number is not None and number == getattr(library, name, None):
            return meaning
    return Verdict.PASSING

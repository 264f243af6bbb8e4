"""What a trainer's surroundings say about its collectives: the environment of NCCL and PyTorch, PyTorch's version.

Only variables that set up communication are read, never the whole environment, and PyTorch only if the program has
imported it. What they mean is for others to say.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

__all__ = ["collective_environment", "torch_version"]

_PREFIXES = ("TORCH_NCCL_", "TORCH_FR_", "NCCL_", "TORCH_DISTRIBUTED_DEBUG")
"""In order of weight: what comes first is kept where there are too many."""

_VARIABLES = 64
_VALUE_CHARACTERS = 256


def collective_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that set up collectives, at most 64 with 256 characters each."""
    named = [name for name in environ if name.startswith(_PREFIXES) and len(name) <= _VALUE_CHARACTERS]
    named.sort(key=lambda name: (next(i for i, prefix in enumerate(_PREFIXES) if name.startswith(prefix)), name))
    return {name: environ[name][:_VALUE_CHARACTERS] for name in named[:_VARIABLES]}


def torch_version() -> str | None:
    """PyTorch's version, or None as long as the program has not imported it."""
    version = getattr(sys.modules.get("torch"), "__version__", None)
    return None if version is None else str(version)[:64]

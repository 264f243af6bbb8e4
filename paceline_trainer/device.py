"""Which GPU this process computes on, by UUID and PCI address.

Guarantees: PyTorch is asked only if the program has imported it and has initialised CUDA itself; nothing here loads a
library or creates a context. An index is never taken for a device, because `CUDA_VISIBLE_DEVICES` renumbers: without a
name that is certain the answer is None, and the agent looks the process up in the driver.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["current_device"]

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_VISIBLE = re.compile(rf"(?:GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d+/\d+)")
_BARE = re.compile(_UUID)


def current_device(environ: Mapping[str, str], local_rank: int | None) -> dict[str, str] | None:
    """The device of this process as `uuid`, `pci_bus_id` and `source`, or None while it is unknown.

    Source `cuda` is what the runtime says and certain. Source `visible_devices` is an entry of a
    `CUDA_VISIBLE_DEVICES` that holds several UUIDs, by the convention that a process uses the entry of its local rank;
    the agent believes it only where the driver does not know better. A single UUID there is certain.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = _visible_uuids(text)
    cuda = _from_cuda(visible)
    if cuda is not None:
        return cuda
    if visible and "," not in text:
        return {"uuid": visible[0], "source": "cuda"}
    if local_rank is not None and local_rank < len(visible):
        return {"uuid": visible[local_rank], "source": "visible_devices"}
    return None


def _visible_uuids(text: str) -> list[str]:
    # CUDA stops at the first entry that it cannot use, so what follows one that is no UUID is not visible either.
    # Shortened UUIDs, which CUDA accepts, are no names, and indices do not count on from UUIDs.
    uuids: list[str] = []
    for entry in text.split(","):
        name = entry.strip()
        if not _VISIBLE.fullmatch(name):
            break
        uuids.append(name)
    return uuids


def _from_cuda(visible: list[str]) -> dict[str, str] | None:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    ordinal = int(cuda.current_device())
    properties = cuda.get_device_properties(ordinal)
    device = {"source": "cuda"}
    # Of a MIG instance the runtime gives a bare UUID, which cannot be told from a GPU's: the environment can.
    if ordinal < len(visible) and visible[ordinal].startswith("MIG-"):
        device["uuid"] = visible[ordinal]
    else:
        uuid = _BARE.search(str(getattr(properties, "uuid", "")))
        if uuid:
            device["uuid"] = f"GPU-{uuid.group().lower()}"
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if domain is not None and bus is not None and slot is not None:
        device["pci_bus_id"] = f"{domain:04x}:{bus:02x}:{slot:02x}"
    return device if len(device) > 1 else None

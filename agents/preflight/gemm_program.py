"""Multiplies matrices on all GPUs at once and prints what each reaches. Run as a file by the interpreter that has PyTorch.

    python gemm_program.py SECONDS SIZE

Prints JSON, a line each: `{"working": true}` when the GPUs are at work, then a line per GPU with `gpu_uuid`, `pci_bus_id`,
`name` and `tflops` (the median over bursts, bf16, 2 SIZE^3 operations a product); or `{"why": "..."}` where there is nothing
to measure. It imports the standard library and PyTorch alone, and computes nothing on a CPU.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from typing import Any

_BURST = 8
_WARM_UP = 3


def main(seconds: float, size: int) -> int:
    """Measure, and print."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return _say(why=f"PyTorch cannot be imported: {error}")
    if not torch.cuda.is_available():
        return _say(why=f"PyTorch {torch.__version__} sees no GPU")
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    places = []
    for device in devices:
        torch.manual_seed(0)
        left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
        places.append((device, left, right, torch.empty_like(left)))
    _multiply(torch, places, _WARM_UP)
    _say(working=True)
    figures: dict[int, list[float]] = {device.index: [] for device in devices}
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s or not figures[0]:
        for index, milliseconds in _multiply(torch, places, _BURST).items():
            figures[index].append(2 * size**3 * _BURST / milliseconds / 1e9)
    for index, tflops in figures.items():
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        bus = getattr(properties, "pci_bus_id", None)
        domain, slot = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
        _say(
            gpu_uuid=None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}",
            pci_bus_id=None if bus is None else f"{domain:04x}:{bus:02x}:{slot:02x}",
            name=properties.name,
            tflops=statistics.median(tflops),
        )
    return 0


def _multiply(torch: Any, places: list[Any], times: int) -> dict[int, float]:
    """Milliseconds of so many products on each GPU, all at work at once."""
    marks = []
    for device, left, right, product in places:
        with torch.cuda.device(device):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(times):
                torch.matmul(left, right, out=product)
            end.record()
            marks.append((device, begin, end))
    for _, _, end in marks:
        end.synchronize()
    return {device.index: begin.elapsed_time(end) for device, begin, end in marks}


def _say(**said: object) -> int:
    print(json.dumps(said), flush=True)  # noqa: T201 - it is what this program is for
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))

"""What one reading of a node's GPUs and network cards says of them. Pure: rows in, checks out.

Rows have the columns of a GPU frame. Null is not zero: what a device does not tell is not measured, and never passed. The
limits are those of the rules that watch the same columns, and where each is from stands with them (docs/rules.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agents.collectors.nvml_errors import LOST, RESET_REQUIRED
from agents.collectors.pcie import NO_ANSWER
from agents.preflight.check import PreflightCheck, Status

__all__ = ["device_checks", "gpu_name", "in_use", "port_checks"]

_FATAL_READ_ERRORS = (LOST, RESET_REQUIRED, NO_ANSWER)
_RECOVERY_ACTIONS = {1: "reset the GPU", 2: "reboot the node", 3: "drain P2P", 4: "drain and reset"}
_MOST_REMAPPED_ROWS = 512
"""Rows remapped after uncorrectable errors, from which on DCGM fails a GPU."""

_BUSY_PCT = 5
_BUSY_MIB = 4096
"""What an idle driver keeps for itself is less."""

Row = Mapping[str, Any]


def device_checks(
    gpus: Sequence[Row], node: str, *, nvml_error: str | None, expected: int | None = None, is_working: bool = False
) -> list[PreflightCheck]:
    """The checks `gpu`, `pcie_width`, `pcie_speed`, `row_remap` and `ecc`.

    Args:
        gpus: a row for each GPU that any source knows.
        node: its name, for what concerns it as a whole.
        nvml_error: why NVML could not be read; None if it was.
        expected: how many GPUs there should be; None if nobody said.
        is_working: whether the GPUs were at work when they were read.
    """
    checks = [*_counted(gpus, node, nvml_error, expected)]
    for gpu in gpus:
        checks += [
            _answers(gpu, nvml_error),
            _pcie_width(gpu),
            _pcie_speed(gpu, is_working),
            _row_remap(gpu),
            _ecc(gpu),
        ]
    if not gpus:
        reason = nvml_error or "there is no GPU"
        for name in ("pcie_width", "pcie_speed", "row_remap", "ecc"):
            checks.append(PreflightCheck(name, node, "not_measured", reason))
    return checks


def port_checks(ports: Iterable[Row], node: str, error: str | None) -> list[PreflightCheck]:
    """The check `nic_pcie_width`, for each port.

    Args:
        ports: a row for each port, with its card's link.
        node: its name.
        error: why they could not be read; None if they were.
    """
    checks = []
    for port in ports:
        name = str(port["device"]) if port.get("port") is None else f"{port['device']}/{port['port']}"
        checks.append(_width("nic_pcie_width", name, port))
    return checks or [PreflightCheck("nic_pcie_width", node, "not_measured", error or "no network card tells its link")]


def gpu_name(gpu: Row) -> str:
    """What a GPU is called: its UUID, else its address, else its index."""
    name = gpu.get("gpu_uuid") or gpu.get("pci_bus_id")
    return str(name) if name else f"GPU {gpu.get('gpu_index')}"


def in_use(gpus: Iterable[Row]) -> list[str]:
    """Names of GPUs on which somebody works; measuring would disturb them, and they the measurement."""
    return [
        gpu_name(gpu)
        for gpu in gpus
        if (gpu.get("gpu_util_pct") or 0) > _BUSY_PCT or (gpu.get("fb_used_mib") or 0) > _BUSY_MIB
    ]


def _counted(gpus: Sequence[Row], node: str, nvml_error: str | None, expected: int | None) -> Iterator[PreflightCheck]:
    if nvml_error is not None:
        yield PreflightCheck("gpu", node, "not_measured", nvml_error)
    elif not gpus:
        yield PreflightCheck("gpu", node, "not_measured", "there is no GPU")
    if expected is None or (nvml_error is not None and len(gpus) >= expected):
        return
    known = sum(gpu.get("gpu_uuid") is not None for gpu in gpus) if nvml_error is None else len(gpus)
    status: Status = "passed" if known == expected else "failed"
    yield PreflightCheck("gpu", node, status, f"{known} of {expected} GPUs", {"gpus": known, "expected_gpus": expected})


def _answers(gpu: Row, nvml_error: str | None) -> PreflightCheck:
    error, action = gpu.get("read_error"), gpu.get("gpu_recovery_action")
    name = gpu_name(gpu)
    if error in _FATAL_READ_ERRORS:
        return PreflightCheck("gpu", name, "failed", str(error))
    if action:
        asks = _RECOVERY_ACTIONS.get(action, f"recovery action {action}")
        return PreflightCheck("gpu", name, "failed", f"the driver asks: {asks}", {"gpu_recovery_action": action})
    if error:
        return PreflightCheck("gpu", name, "not_measured", str(error))
    if nvml_error is not None or gpu.get("gpu_uuid") is None:
        note = "NVML was not read" if nvml_error is not None else "it is on the bus, and NVML does not know it"
        return PreflightCheck("gpu", name, "not_measured", note)
    return PreflightCheck("gpu", name, "passed", f"answers; {gpu.get('sku') or 'of unknown name'}")


def _pcie_width(gpu: Row) -> PreflightCheck:
    return _width("pcie_width", gpu_name(gpu), gpu)


def _width(check: str, name: str, row: Row) -> PreflightCheck:
    width, most = row.get("pcie_link_width"), row.get("pcie_max_link_width")
    values = {"link_width": width, "max_link_width": most}
    if not width or not most:
        return PreflightCheck(check, name, "not_measured", "nothing tells its width, now and at best", values)
    if width < most:
        note = f"x{width}, could be x{most}: reseat it, or look at its riser and slot"
        return PreflightCheck(check, name, "failed", note, values)
    return PreflightCheck(check, name, "passed", f"x{width}", values)


def _pcie_speed(gpu: Row, is_working: bool) -> PreflightCheck:
    name = gpu_name(gpu)
    generation, most = gpu.get("pcie_link_gen"), gpu.get("pcie_max_link_gen")
    values = {"link_gen": generation, "max_link_gen": most}
    if not generation or not most:
        return PreflightCheck("pcie_speed", name, "not_measured", "nothing tells its generation", values)
    if generation >= most:
        return PreflightCheck("pcie_speed", name, "passed", f"generation {generation}", values)
    if is_working:
        note = f"generation {generation} at work, could be {most}"
        return PreflightCheck("pcie_speed", name, "failed", note, values)
    note = f"generation {generation} of {most} at rest, which is normal; the check `gemm` puts it to work"
    return PreflightCheck("pcie_speed", name, "not_measured", note, values)


def _row_remap(gpu: Row) -> PreflightCheck:
    name = gpu_name(gpu)
    pending, failure = gpu.get("row_remap_pending"), gpu.get("row_remap_failure")
    rows, pages = gpu.get("uncorrectable_remapped_rows"), gpu.get("retired_pages_pending")
    values = {"row_remap_pending": pending, "row_remap_failure": failure, "uncorrectable_remapped_rows": rows}
    if failure:
        return PreflightCheck("row_remap", name, "failed", "a row could not be remapped: exchange the GPU", values)
    if pending:
        return PreflightCheck("row_remap", name, "failed", "a row waits to be remapped: reset the GPU", values)
    if (rows or 0) >= _MOST_REMAPPED_ROWS:
        note = f"{rows} rows remapped after uncorrectable errors, limit {_MOST_REMAPPED_ROWS}"
        return PreflightCheck("row_remap", name, "failed", note, values)
    if pending is not None and failure is not None:
        return PreflightCheck("row_remap", name, "passed", "none waits, none failed", values)
    # Parts before Ampere retire pages instead.
    values["retired_pages_pending"] = pages
    if pages:
        return PreflightCheck("row_remap", name, "failed", "a page waits to be retired: reset the GPU", values)
    if pages is not None:
        return PreflightCheck("row_remap", name, "passed", "no page waits to be retired", values)
    return PreflightCheck("row_remap", name, "not_measured", "the GPU does not tell", values)


def _ecc(gpu: Row) -> PreflightCheck:
    name, errors = gpu_name(gpu), gpu.get("ecc_dbe_volatile_count")
    values = {"ecc_dbe_volatile_count": errors}
    if errors is None:
        return PreflightCheck("ecc", name, "not_measured", "the GPU does not tell: ECC is off, or it has none", values)
    if errors:
        note = f"{errors} uncorrectable errors since the driver was loaded: reset the GPU"
        return PreflightCheck("ecc", name, "failed", note, values)
    return PreflightCheck("ecc", name, "passed", "no uncorrectable error since the driver was loaded", values)

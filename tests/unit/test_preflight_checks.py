"""The checks of one node: what passes, what fails, and what was not measured and must not pass for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.preflight.check import CHECKS, PreflightCheck, confirmed, fitness
from agents.preflight.devices import device_checks, in_use, port_checks
from agents.preflight.gemm import GemmLimits, GemmRun, judged_gemm

GPU = "GPU-1"
SOUND = {
    "gpu_uuid": GPU,
    "pci_bus_id": "0000:1a:00",
    "gpu_index": 0,
    "sku": "NVIDIA H100 80GB HBM3",
    "pcie_link_width": 16,
    "pcie_max_link_width": 16,
    "pcie_link_gen": 5,
    "pcie_max_link_gen": 5,
    "row_remap_pending": 0,
    "row_remap_failure": 0,
    "uncorrectable_remapped_rows": 0,
    "ecc_dbe_volatile_count": 0,
}


def statuses(row: dict[str, Any], **options: Any) -> dict[str, str]:
    checks = device_checks([row], "n", **{"nvml_error": None, **options})
    return {check.name: check.status for check in checks if check.subject == GPU}


def changed(**columns: Any) -> dict[str, str]:
    """The statuses that are not `passed` when some columns of a sound GPU are changed."""
    return {name: status for name, status in statuses(SOUND | columns).items() if status != "passed"}


# --- Devices --------------------------------------------------------------------------------------------------------


def test_a_sound_gpu_passes_everything() -> None:
    assert statuses(SOUND) == dict.fromkeys(("gpu", "pcie_width", "pcie_speed", "row_remap", "ecc"), "passed")


@pytest.mark.parametrize(
    ("columns", "check"),
    [
        ({"read_error": "GPU is lost"}, "gpu"),
        ({"read_error": "GPU requires reset"}, "gpu"),
        ({"read_error": "PCIe device does not answer"}, "gpu"),
        ({"gpu_recovery_action": 1}, "gpu"),
        ({"pcie_link_width": 8}, "pcie_width"),
        ({"row_remap_pending": 1}, "row_remap"),
        ({"row_remap_failure": 1}, "row_remap"),
        ({"uncorrectable_remapped_rows": 512}, "row_remap"),
        ({"row_remap_pending": None, "row_remap_failure": None, "retired_pages_pending": 1}, "row_remap"),
        ({"ecc_dbe_volatile_count": 1}, "ecc"),
    ],
)
def test_each_fault_fails_its_check_alone(columns: dict[str, Any], check: str) -> None:
    assert changed(**columns) == {check: "failed"}


@pytest.mark.parametrize(
    "columns",
    [
        {"uncorrectable_remapped_rows": 511},
        {"uncorrectable_remapped_rows": None},
        {"gpu_recovery_action": 0},
        {"ecc_dbe_aggregate_count": 40},  # of the part's whole life
        {"row_remap_pending": None, "row_remap_failure": None, "retired_pages_pending": 0},
        {"pcie_link_width": 8, "pcie_max_link_width": 8},  # a slot that has no more
    ],
)
def test_what_only_looks_like_a_fault_passes(columns: dict[str, Any]) -> None:
    assert changed(**columns) == {}


@pytest.mark.parametrize(
    ("columns", "check"),
    [
        ({"read_error": "Unknown Error"}, "gpu"),
        ({"pcie_link_width": None}, "pcie_width"),
        ({"pcie_max_link_width": None}, "pcie_width"),
        ({"pcie_max_link_gen": None}, "pcie_speed"),
        ({"row_remap_pending": None}, "row_remap"),
        ({"ecc_dbe_volatile_count": None}, "ecc"),
    ],
)
def test_what_a_gpu_does_not_tell_is_not_measured(columns: dict[str, Any], check: str) -> None:
    assert changed(**columns) == {check: "not_measured"}


def test_a_low_generation_fails_at_work_and_says_nothing_at_rest() -> None:
    idle = SOUND | {"pcie_link_gen": 1}
    assert statuses(idle)["pcie_speed"] == "not_measured"
    assert statuses(idle, is_working=True)["pcie_speed"] == "failed"


def test_without_nvml_no_gpu_passes_for_answering_and_its_link_is_still_judged() -> None:
    row = {"gpu_uuid": None, "pci_bus_id": "0000:1a:00", "pcie_link_width": 8, "pcie_max_link_width": 16}
    checks = device_checks([row], "n", nvml_error="NVML does not start: Driver Not Loaded", expected=1)
    found = {(check.name, check.subject): check.status for check in checks}
    assert found["gpu", "n"] == found["gpu", "0000:1a:00"] == "not_measured"
    assert found["pcie_width", "0000:1a:00"] == "failed"


def test_the_count_of_gpus_is_held_against_what_there_should_be() -> None:
    other = SOUND | {"gpu_uuid": "GPU-2"}
    on_the_bus = {"gpu_uuid": None, "pci_bus_id": "0000:1b:00"}

    def counted(rows: list[dict[str, Any]], expected: int | None, error: str | None = None) -> list[tuple[str, str]]:
        checks = device_checks(rows, "n", nvml_error=error, expected=expected)
        return [(check.name, check.status) for check in checks if check.subject == "n" and check.name == "gpu"]

    assert counted([SOUND, other], 2) == [("gpu", "passed")]
    assert counted([SOUND, on_the_bus], 2) == [("gpu", "failed")]
    assert counted([SOUND], 2) == [("gpu", "failed")]
    assert counted([SOUND], None) == []
    assert counted([], None) == [("gpu", "not_measured")]
    assert counted([], 8) == [("gpu", "not_measured"), ("gpu", "failed")]
    # The bus shows all of them, and whether they answer nobody knows.
    assert counted([on_the_bus], 1, "no driver") == [("gpu", "not_measured")]


def test_ports_are_judged_by_width_and_named_by_device_and_port() -> None:
    rows = [
        {"device": "mlx5_0", "port": "1", "pcie_link_width": 8, "pcie_max_link_width": 16},
        {"device": "eth0", "port": None, "pcie_link_width": 16, "pcie_max_link_width": 16},
    ]
    assert [(check.subject, check.status) for check in port_checks(rows, "n", None)] == [
        ("mlx5_0/1", "failed"),
        ("eth0", "passed"),
    ]
    (none,) = port_checks([], "n", "no sysfs")
    assert (none.subject, none.status, none.note) == ("n", "not_measured", "no sysfs")


def test_a_gpu_on_which_somebody_works_is_in_use() -> None:
    assert in_use([SOUND]) == []
    assert in_use([SOUND | {"gpu_util_pct": 0, "fb_used_mib": 700}]) == []
    assert in_use([SOUND | {"gpu_util_pct": 90}]) == [GPU]
    assert in_use([SOUND | {"fb_used_mib": 40_000}]) == [GPU]


# --- What they come to ----------------------------------------------------------------------------------------------


def made(name: str, status: Any, bears_on: Any = "node", subject: str = "s") -> PreflightCheck:
    return PreflightCheck(name, subject, status, "note", bears_on=bears_on)


@pytest.mark.parametrize(
    ("checks", "status"),
    [
        ([made("gpu", "passed"), made("gemm", "not_measured")], 0),
        ([made("gpu", "passed"), made("ecc", "failed")], 1),
        ([made("gpu", "not_measured"), made("ecc", "failed")], 1),
        ([made("gpu", "passed"), made("gpu", "not_measured", subject="t")], 2),
        ([made("ecc", "passed")], 2),
        ([made("gpu", "passed"), made("pairs", "failed", "other")], 0),
        ([made("gpu", "passed"), made("pairs", "failed", "link")], 2),
        ([made("gpu", "passed"), made("pairs", "not_measured", "link")], 2),
        ([made("gpu", "passed"), made("pairs", "failed", "link"), made("ecc", "failed")], 1),
        ([], 2),
    ],
)
def test_the_status_is_that_of_this_node(checks: list[PreflightCheck], status: int) -> None:
    assert fitness(checks, {"gpu"}).status == status


def test_where_nothing_was_measured_nothing_is_fit() -> None:
    assert fitness([made("gemm", "not_measured")], ()).status == 2
    assert fitness([made("gemm", "passed")], ()).status == 0


def test_a_failure_in_one_of_two_readings_fails_nobody() -> None:
    good, bad = made("pcie_width", "passed"), made("pcie_width", "failed")
    assert [check.status for check in confirmed([bad], [bad])] == ["failed"]
    assert [check.status for check in confirmed([good], [bad])] == ["not_measured"]
    assert [check.status for check in confirmed([bad], [good])] == ["passed"]
    # A GPU that was not there before is judged as it is.
    assert [check.status for check in confirmed([], [bad])] == ["failed"]


def test_every_check_has_a_name_and_a_line() -> None:
    assert all(text and name.replace("_", "").isalpha() for name, text in CHECKS.items())


# --- GEMM -----------------------------------------------------------------------------------------------------------

TORCH = """
import os
__version__ = "0-stub"
bfloat16 = "bf16"
class _Cuda:
    is_available = staticmethod(lambda: os.environ["STUB_GPUS"] != "0")
    device_count = staticmethod(lambda: int(os.environ["STUB_GPUS"]))
    class device:
        def __init__(self, device): pass
        def __enter__(self): pass
        def __exit__(self, *_): pass
    class Event:
        def __init__(self, enable_timing): pass
        def record(self): pass
        def synchronize(self): pass
        def elapsed_time(self, other): return 8 * 2 * 8192**3 / 700e9
    class get_device_properties:
        name, pci_bus_id, pci_domain_id, pci_device_id = "NVIDIA H100 80GB HBM3", 0x1a, 0, 0
        def __init__(self, index): self.uuid = f"u{index}"
cuda = _Cuda
class device:
    def __init__(self, kind, index): self.index = index
def manual_seed(seed): pass
def randn(*size, device, dtype): return size
def empty_like(other): return other
def matmul(left, right, out): pass
"""


@pytest.fixture
def torch_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("STUB_GPUS", "2")
    return tmp_path / "torch.py"


def test_the_program_tells_when_gpus_work_and_what_each_reaches(torch_stub: Path) -> None:
    with GemmRun(sys.executable, 0.01) as run:
        assert run.is_working()
        rows, why = run.figures()
    assert why == ""
    assert [row["gpu_uuid"] for row in rows] == ["GPU-u0", "GPU-u1"]
    assert [row["pci_bus_id"] for row in rows] == ["0000:1a:00"] * 2
    assert [round(row["tflops"]) for row in rows] == [700, 700]


@pytest.mark.parametrize(
    ("stub", "gpus", "why"),
    [
        (TORCH, "0", "PyTorch 0-stub sees no GPU"),
        ("raise ImportError('libcudart')", "0", "PyTorch cannot be imported: libcudart"),
        ("raise SystemExit('driver too old')", "0", "driver too old"),
    ],
)
def test_without_pytorch_or_a_gpu_there_is_a_reason_and_no_figure(
    torch_stub: Path, monkeypatch: pytest.MonkeyPatch, stub: str, gpus: str, why: str
) -> None:
    torch_stub.write_text(stub)
    monkeypatch.setenv("STUB_GPUS", gpus)
    with GemmRun(sys.executable, 0.01) as run:
        assert not run.is_working()
        assert run.figures() == ([], why)
    (check,) = judged_gemm([], "n", why, GemmLimits())
    assert (check.status, check.note) == ("not_measured", why)


def test_an_interpreter_that_is_not_there_is_a_reason() -> None:
    with GemmRun("/nowhere/python3", 1.0) as run:
        assert not run.is_working()
        assert run.figures() == ([], "/nowhere/python3 cannot be run: No such file or directory")


@pytest.mark.needs_gpu
@pytest.mark.needs_torch
def test_real_gpus_are_measured_by_the_real_pytorch() -> None:
    with GemmRun(os.environ.get("PACELINE_TORCH_PYTHON") or sys.executable, 1.0) as run:
        is_working = run.is_working()
        rows, why = run.figures()
    assert is_working == bool(rows), why
    assert all(check.status in {"passed", "not_measured"} for check in judged_gemm(rows, "n", why, GemmLimits()))


@pytest.mark.needs_torch
def test_a_pytorch_that_sees_no_gpu_computes_nothing_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with GemmRun(os.environ.get("PACELINE_TORCH_PYTHON") or sys.executable, 1.0) as run:
        rows, why = run.figures()
    assert rows == []
    assert "sees no GPU" in why


def judged(*tflops: float, name: str = "NVIDIA H100 80GB HBM3", **limits: Any) -> list[str]:
    rows = [{"gpu_uuid": f"GPU-{index}", "name": name, "tflops": figure} for index, figure in enumerate(tflops)]
    return [check.status for check in judged_gemm(rows, "n", "", GemmLimits(**limits))]


def test_a_gpu_is_slow_against_its_neighbours_its_datasheet_or_a_floor() -> None:
    assert judged(700, 690, 705, 600) == ["passed", "passed", "passed", "failed"]
    assert judged(700, 690, 705, 640) == ["passed"] * 4
    assert judged(390, 390) == ["failed", "failed"]  # below 40 % of 989
    assert judged(410) == ["passed"]
    assert judged(410, floor_tflops=600.0) == ["failed"]
    assert judged(700, 690, name="Another Part") == ["not_measured"] * 2
    assert judged(700, 690, name="Another Part", floor_tflops=600.0) == ["passed"] * 2

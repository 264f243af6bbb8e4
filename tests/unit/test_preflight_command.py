"""`paceline preflight`: what it asks for, what it prints, and its status."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import typer.main
from nvml_node import gpu
from typer.testing import CliRunner

from agents.collectors.nvml import NvmlCollector
from agents.collectors.pcie import PcieCollector
from agents.preflight.bisection import BisectionVerdict
from agents.preflight.check import fitness
from agents.preflight.pairs import PairsOutcome
from agents.testing import FakeClock, FakeNvml, FakeSysfs, NvmlFault
from paceline import preflight_node
from paceline.cli import app
from paceline.preflight_node import NodeReader, node_checks
from paceline.preflight_options import NodeOptions, PairsOptions
from paceline.preflight_pairs import PreflightUsageError, first_host, nccl_meters, pair_checks, pairs_settings

if TYPE_CHECKING:
    from agents.testing import FakeGpu

PROLOG = Path(__file__).parents[2] / "deploy" / "slurm" / "prolog.sh"

STEP = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "rack[1-2]n[07-09],login1",
    "SLURM_JOB_ID": "123456",
    "PACELINE_PREFLIGHT_TOKEN": "0123456789abcdef",
}


# --- The place among the others -------------------------------------------------------------------------------------


def test_a_step_of_slurm_needs_no_options() -> None:
    found = pairs_settings(PairsOptions(), "n", STEP)
    assert (found.rank, found.nodes, found.host, found.port) == (3, 8, "rack1n07", 23456)
    assert found.token == b"0123456789abcdef"
    assert "0123456789abcdef" not in repr(found)


def test_options_come_before_slurms_variables(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("fedcba9876543210\n")
    token.chmod(0o600)
    options = PairsOptions(rank=0, nodes=2, rendezvous="[::1]:5000", token_file=token, throttle_mb_s=2.0)
    found = pairs_settings(options, "n", STEP)
    assert (found.rank, found.nodes, found.host, found.port) == (0, 2, "::1", 5000)
    assert (found.token, found.throttle_bytes_per_s) == (b"fedcba9876543210", 2e6)
    token.chmod(0o644)
    with pytest.raises(PreflightUsageError, match="others may read it"):
        pairs_settings(options, "n", STEP)


@pytest.mark.parametrize(
    ("options", "left_out", "why"),
    [
        (PairsOptions(), "SLURM_PROCID", "--rank is missing"),
        (PairsOptions(), "SLURM_STEP_NUM_TASKS", "--nodes is missing"),
        (PairsOptions(), "SLURM_JOB_ID", "--rendezvous"),
        (PairsOptions(), "PACELINE_PREFLIGHT_TOKEN", "a secret of at least 16"),
        (PairsOptions(nodes=1), "", "pairs need two nodes"),
        (PairsOptions(rank=8), "", "rank 8 of 8"),
        (PairsOptions(backend="gloo"), "", "auto, nccl or sockets"),
        (PairsOptions(rendezvous="host"), "", "HOST:PORT"),
        (PairsOptions(rendezvous="host:99999"), "", "HOST:PORT"),
        (PairsOptions(limits=replace(PairsOptions().limits, slow_below=1.5)), "", "a share between 0 and 1"),
    ],
)
def test_what_is_missing_is_said(options: PairsOptions, left_out: str, why: str) -> None:
    environment = {name: value for name, value in STEP.items() if name != left_out}
    with pytest.raises(PreflightUsageError, match=why):
        pairs_settings(options, "n", environment)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node7", "node7"),
        ("node[01-16]", "node01"),
        ("node[3,5-9],other", "node3"),
        ("a1,b2", "a1"),
        ("rack[2-3]n[10-11]-ib", "rack2n10-ib"),
    ],
)
def test_the_first_host_of_a_list_of_slurm(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_nccl_needs_a_program_a_launcher_and_gpus(tmp_path: Path) -> None:
    program = tmp_path / "all_reduce_perf"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    options = PairsOptions(nccl_launcher="srun")
    assert set(nccl_meters(options, str(program), lambda: 8, {})) == {"nccl"}
    assert nccl_meters(options, str(program), lambda: 0, {}) == {}
    assert nccl_meters(options, str(tmp_path / "none"), lambda: 8, {}) == {}
    assert nccl_meters(PairsOptions(backend="sockets"), str(program), lambda: pytest.fail("asked"), {}) == {}


# --- What came of the pairs -----------------------------------------------------------------------------------------

VERDICT = BisectionVerdict(
    slow=(1,),
    slow_links=((2, 3),),
    broken_links=(),
    at_pace=(0, 2, 3),
    unsettled=(),
    unmeasured=(4,),
    is_widespread=False,
    pace_gb_s=40.0,
    gb_s={0: 40.0, 1: 9.5, 2: 40.0, 3: 40.0},
    rounds=4,
)
OUTCOME = PairsOutcome(("a", "b", "c", "d", "e"), "sockets", VERDICT, {4: "did not join within 120 s"})


@pytest.mark.parametrize(("rank", "status"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 2)])
def test_each_rank_ends_with_the_status_of_its_own_node(rank: int, status: int) -> None:
    assert fitness(pair_checks(OUTCOME, rank), {"pairs"}).status == status


def test_rank_0_tells_of_all_and_the_others_of_themselves() -> None:
    assert [check.subject for check in pair_checks(OUTCOME, 0)] == ["a", "b", "c", "d", "e", "c - d"]
    assert [(check.subject, check.bears_on) for check in pair_checks(OUTCOME, 2)] == [("c", "node"), ("c - d", "link")]
    (slow,) = pair_checks(OUTCOME, 1)
    assert slow.note == "9.5 GB/s with everyone, where the others reach 40"
    (gone,) = pair_checks(OUTCOME, 4)
    assert (gone.status, gone.note) == ("not_measured", "did not join within 120 s")


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"is_widespread": True}, "look at the fabric"),
        ({"pace_gb_s": None}, "--floor-gb-s"),
        ({}, "too few to compare with"),
    ],
)
def test_who_is_not_named_is_told_why(changes: dict[str, Any], note: str) -> None:
    verdict = replace(VERDICT, slow=(), unsettled=(1,), **changes)
    (check,) = pair_checks(replace(OUTCOME, verdict=verdict), 1)
    assert check.status == "not_measured"
    assert note in check.note


# --- The node -------------------------------------------------------------------------------------------------------


def sound(uuid: str, bus: str, **readings: Any) -> FakeGpu:
    fields = {
        "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
        "NVML_FI_DEV_REMAPPED_COR": 0,
        "NVML_FI_DEV_REMAPPED_UNC": 0,
        "NVML_FI_DEV_REMAPPED_PENDING": 0,
        "NVML_FI_DEV_REMAPPED_FAILURE": 0,
        "NVML_FI_DEV_RETIRED_PENDING": NvmlFault(3),
    }
    link = {"CurrPcieLinkWidth": 16, "MaxPcieLinkWidth": 16, "CurrPcieLinkGeneration": 5, "MaxPcieLinkGeneration": 5}
    fields |= readings.pop("fields", {})
    return gpu(uuid, bus, **link | readings, fields=fields)


def reader(tmp_path: Path, *gpus: FakeGpu, library: Any = None) -> NodeReader:
    tree = FakeSysfs(tmp_path)
    tree.add_pci("0000:18:00.0", vendor="0x15b3", device_class="0x020000")
    tree.write("bus/pci/devices/0000:18:00.0/net/eth0/mtu", 9000)
    tree.add_interface("eth0")
    nvml = NvmlCollector(library or FakeNvml(gpus), deadline_s=10.0)
    return NodeReader(nvml, PcieCollector(tmp_path), 30.0, FakeClock())


CHEAP = {"gpu", "pcie_width", "nic_pcie_width", "row_remap", "ecc"}


def found(node: NodeReader, selected: set[str] = CHEAP, **options: Any) -> dict[tuple[str, str], str]:
    checks = node_checks(node, "n", selected, NodeOptions(**options))
    return {(check.name, check.subject): check.status for check in checks}


def test_a_sound_node_passes_from_the_agents_own_sources(tmp_path: Path) -> None:
    statuses = found(reader(tmp_path, sound("GPU-1", "1A"), sound("GPU-2", "1B")), gpus=2)
    assert set(statuses.values()) == {"passed"}
    assert {subject for _, subject in statuses} == {"GPU-1", "GPU-2", "n", "eth0"}
    assert {name for name, _ in statuses} == CHEAP


def test_what_is_wrong_with_one_gpu_fails_that_gpu(tmp_path: Path) -> None:
    bad = sound("GPU-2", "1B", CurrPcieLinkWidth=4, fields={"NVML_FI_DEV_REMAPPED_PENDING": 1})
    statuses = found(reader(tmp_path, sound("GPU-1", "1A"), bad))
    failed = {key for key, status in statuses.items() if status == "failed"}
    assert failed == {("pcie_width", "GPU-2"), ("row_remap", "GPU-2")}


def test_columns_that_are_read_once_a_minute_are_in_both_readings(tmp_path: Path) -> None:
    old = sound(
        "GPU-1",
        "1A",
        fields={"NVML_FI_DEV_REMAPPED_PENDING": NvmlFault(3), "NVML_FI_DEV_RETIRED_PENDING": 1}
        | {"NVML_FI_DEV_RETIRED_SBE": 0, "NVML_FI_DEV_RETIRED_DBE": 1, "NVML_FI_DEV_REMAPPED_FAILURE": NvmlFault(3)},
    )
    assert found(reader(tmp_path, old), {"row_remap"}) == {("row_remap", "GPU-1"): "failed"}


def test_gpus_that_somebody_uses_are_not_put_to_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_node, "GemmRun", lambda *_: pytest.fail("put to work"))
    used = sound("GPU-1", "1A", MemoryInfo=type("Memory", (), {"used": 60 << 30}))
    checks = node_checks(reader(tmp_path, used), "n", {"gemm", "nccl"}, NodeOptions())
    assert [(check.name, check.status, check.note) for check in checks] == [
        ("gemm", "not_measured", "in use: GPU-1"),
        ("nccl", "not_measured", "in use: GPU-1"),
    ]


def test_a_link_that_stays_slow_at_work_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Working:
        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def is_working(self) -> bool:
            idle.CurrPcieLinkGeneration = 5
            return True

        def figures(self) -> tuple[list[dict[str, Any]], str]:
            return [{"gpu_uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "tflops": 700.0}], ""

    monkeypatch.setattr(preflight_node, "GemmRun", Working)
    idle = sound("GPU-1", "1A", CurrPcieLinkGeneration=1)
    slow = sound("GPU-2", "1B", CurrPcieLinkGeneration=3)
    statuses = found(reader(tmp_path, idle, slow), {"pcie_speed", "gemm"})
    assert statuses["pcie_speed", "GPU-1"] == "passed"
    assert statuses["pcie_speed", "GPU-2"] == "failed"
    assert statuses["gemm", "GPU-1"] == "passed"
    # NVML knows it, and PyTorch does not.
    assert statuses["gemm", "GPU-2"] == "not_measured"


def test_without_a_driver_only_what_needs_none_is_measured(tmp_path: Path) -> None:
    library = FakeNvml([])
    library.unload()
    statuses = found(reader(tmp_path, library=library), CHEAP | {"gemm"})
    assert statuses.pop(("nic_pcie_width", "eth0")) == "passed"
    assert set(statuses.values()) == {"not_measured"}


# --- The command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FakeGpu]:
    """The GPUs of the node that the command looks at; a test may change them."""
    gpus = [sound("GPU-1", "1A")]
    made = reader(tmp_path, *gpus)
    monkeypatch.setattr(NodeReader, "of_this_node", classmethod(lambda *_: made))
    return gpus


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["preflight", "--node-name", "n", *arguments])
    return done.exit_code, done.stdout


def test_the_status_and_the_last_line_say_whether_the_node_is_fit(node: list[FakeGpu]) -> None:
    cheap = ",".join(CHEAP)
    status, out = run("--only", cheap)
    assert (status, out.splitlines()[-1]) == (0, "n: fit")
    node[0].CurrPcieLinkWidth = 8
    status, out = run("--only", cheap)
    assert status == 1
    assert "FAILED        pcie_width GPU-1: x8, could be x16" in out
    assert out.splitlines()[-1].startswith("n: not fit: pcie_width GPU-1")
    node[0].lost = True
    assert run("--only", "gpu")[0] == 1


def test_lines_are_json_and_the_last_one_sums_up(node: list[FakeGpu]) -> None:
    status, out = run("--json", "--only", "gpu,ecc,nccl", "--require", "gpu,nccl")
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 2
    assert [(line["record"], line.get("check"), line.get("status")) for line in lines] == [
        ("preflight_check", "gpu", "passed"),
        ("preflight_check", "ecc", "passed"),
        ("preflight_check", "nccl", "not_measured"),
        ("preflight", None, 2),
    ]
    assert lines[-1] | {"summary": ""} == {
        "record": "preflight",
        "node": "n",
        "fit": None,
        "status": 2,
        "summary": "",
        "failed": [],
        "not_measured": ["nccl"],
        "links": [],
        "required": ["gpu", "nccl"],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--only", "nothing"),
        ("--only", ","),
        ("--require", "speed"),
        ("--only", "ecc", "--require", "gpu"),
        ("--pairs",),
        ("--config", "/nowhere/agent.toml"),
    ],
)
def test_bad_usage_is_status_2_before_anything_is_measured(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in STEP:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(NodeReader, "of_this_node", classmethod(lambda *_: pytest.fail("measured")))
    assert run(*arguments) == (2, "")


def test_a_program_that_breaks_says_nothing_of_the_node(node: list[FakeGpu], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_node, "device_checks", lambda *_, **__: 1 / 0)
    assert run("--only", "gpu") == (2, "")


# --- The prolog -----------------------------------------------------------------------------------------------------

FIT, UNFIT, UNKNOWN = (
    f'{{"record":"preflight","node":"n","fit":{fit},"status":{status}}}'
    for fit, status in (("true", 0), ("false", 1), ("null", 2))
)


@pytest.mark.parametrize(
    ("status", "words", "setting", "ends_with"),
    [
        (0, FIT, "", 0),
        (1, UNFIT, "", 1),
        (2, UNKNOWN, "", 0),
        (2, UNKNOWN, "ON_UNKNOWN=drain", 1),
        (1, "ModuleNotFoundError: no module", "", 0),
        (0, "", "", 0),
        (0, "", "ON_UNKNOWN=drain", 1),
        (0, FIT, "PACELINE=/nowhere/paceline", 0),
        (0, FIT, "GPUS=8", 0),
    ],
)
def test_the_prolog_fails_only_where_the_node_is_said_not_to_be_fit(
    tmp_path: Path, status: int, words: str, setting: str, ends_with: int
) -> None:
    command, settings, prolog = (tmp_path / name for name in ("paceline", "preflight.conf", "prolog.sh"))
    command.write_text(f"#!/bin/sh\necho \"$*\" > {tmp_path}/asked\necho '{words}'\nexit {status}\n")
    command.chmod(0o755)
    settings.write_text(f"PACELINE={command}\n{setting}\n")
    prolog.write_text(PROLOG.read_text().replace("/etc/paceline/preflight.conf", str(settings)))
    done = subprocess.run(["sh", str(prolog)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ends_with, done.stderr
    assert (done.stderr == "") == (status == 0 and words == FIT and "nowhere" not in setting)
    if "nowhere" in setting:
        return
    # What it asks is a command line that there is.
    name, *arguments = (tmp_path / "asked").read_text().split()
    made = typer.main.get_command(app).commands[name].make_context(name, arguments)  # type: ignore[attr-defined]
    assert (made.params["gpus"], set(made.params["only"].split(","))) == (8 if "GPUS" in setting else None, CHEAP)


def test_pairs_that_cannot_be_held_are_not_measured(node: list[FakeGpu], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PREFLIGHT_TOKEN", STEP["PACELINE_PREFLIGHT_TOKEN"])
    place = ("--rank", "1", "--nodes", "2", "--rendezvous", "127.0.0.1:1", "--join-timeout", "0.1")
    status, out = run("--only", "pairs", "--backend", "sockets", *place)
    assert status == 2
    assert out.startswith("not measured  pairs n: rank 0 at 127.0.0.1:1")

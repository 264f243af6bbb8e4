"""The dependency rule: who may import whom, and what starts light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OURS = {"schemas", "agents", "streams", "deploy", "paceline", "paceline_trainer"}
PURE = (
    "agents/preflight/bisection.py",
    "agents/preflight/check.py",
    "agents/preflight/devices.py",
    "agents/preflight/matching.py",
    "streams/core",
    "streams/detectors",
    "streams/engines",
    "streams/decisions",
    "streams/profiles",
    "streams/replay.py",
    "streams/recorded_journal.py",
    "streams/recording/arrival_merge.py",
    "streams/recording/recorder.py",
    "streams/recording/selection.py",
    "streams/recording/taken.py",
    "streams/journal_replay.py",
)
NOT_PURE = {
    "faust",
    "aiokafka",
    "confluent_kafka",
    "kafka",
    "mode",
    "asyncio",
    "threading",
    "concurrent",
    "multiprocessing",
    "subprocess",
    "socket",
    "selectors",
    "time",
    "random",
    "secrets",
    "uuid",
}


def modules(*places: str) -> list[Path]:
    found = []
    for place in places:
        path = ROOT / place
        found += [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    assert found, places
    return found


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it, in dotted names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)} & OURS


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", modules("schemas"), ids=relative)
def test_schemas_import_nothing_of_ours(path: Path) -> None:
    assert ours(path) <= {"schemas"}


@pytest.mark.parametrize("path", modules("agents"), ids=relative)
def test_agents_import_schemas_alone(path: Path) -> None:
    assert ours(path) <= {"agents", "schemas"}


@pytest.mark.parametrize("path", modules("streams"), ids=relative)
def test_streams_import_schemas_alone(path: Path) -> None:
    assert ours(path) <= {"streams", "schemas"}


@pytest.mark.parametrize("path", modules("deploy"), ids=relative)
def test_deploy_imports_neither_agents_nor_streams(path: Path) -> None:
    assert ours(path) <= {"deploy", "schemas"}


@pytest.mark.parametrize("path", modules("paceline_trainer"), ids=relative)
def test_the_trainer_hook_imports_the_standard_library_alone(path: Path) -> None:
    names = {name.partition(".")[0] for name in imports(path)} - {"paceline_trainer"}
    # The training environment's own; the hook runs without it as well.
    assert names - {"torch"} <= sys.stdlib_module_names


@pytest.mark.parametrize("path", modules(*PURE), ids=relative)
def test_pure_code_knows_no_broker_no_loop_no_clock_and_no_chance(path: Path) -> None:
    names = set(imports(path))
    assert {name.partition(".")[0] for name in names} & NOT_PURE == set()
    assert not {name for name in names if name.startswith(("datetime", "numpy.random"))}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("np", "random"), f"{path}:{node.lineno}"
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"{path} awaits"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            # The hash of a text differs from process to process.
            assert node.func.id not in {"hash", "id", "open", "input", "eval", "exec"}, f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", modules(*PURE), ids=relative)
def test_pure_code_does_not_know_its_adapters(path: Path) -> None:
    adapters = [name for name in imports(path) if name.startswith(("streams.faust_roles", "streams.dashboard"))]
    assert adapters == []


@pytest.mark.parametrize("path", modules("schemas", "agents", "streams", "deploy", "paceline"), ids=relative)
def test_nothing_unpickles_evaluates_or_opens_a_shell(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in {"eval", "exec", "pickle.load", "pickle.loads", "os.system", "os.popen"}, node.lineno
        shells = [keyword for keyword in node.keywords if keyword.arg == "shell"]
        assert not shells, f"{path}:{node.lineno}"


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after a statement."""
    process = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    return {name.partition(".")[0] for name in process.stdout.split()}


HEAVY = {"faust", "pyarrow", "pydantic", "numpy", "aiokafka", "confluent_kafka", "kubernetes", "rich", "typer"}


def test_decoding_starts_without_faust_pyarrow_and_pydantic() -> None:
    assert loaded_by("import agents.decode.driver") & HEAVY == set()


@pytest.mark.parametrize("kind", ["kernel-log", "dcgm", "fabric", "steps", "kineto"])
def test_each_decoder_is_light_as_well(kind: str) -> None:
    statement = (
        "import importlib\n"
        "from agents.decode.driver import DECODERS\n"
        f"assert callable(importlib.import_module(DECODERS[{kind!r}]).decode)"
    )
    assert loaded_by(statement) & HEAVY == set()


def test_the_engines_run_without_faust_and_without_a_broker() -> None:
    assert loaded_by("import streams.replay") & (HEAVY - {"pydantic", "numpy"}) == set()


def test_schemas_do_without_numpy() -> None:
    assert "numpy" not in loaded_by("import schemas.codec, schemas.archive, schemas.topics")

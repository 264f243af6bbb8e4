"""The files under deploy/ that nothing here can build or start: held against the code, the command line and promtool."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from paceline.cli import app
from streams.faust_roles.metrics import WorkerMetrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
COMPOSE = DEPLOY / "docker-compose.yml"
DOCKERFILE = DEPLOY / "Dockerfile"

SERVICE_KEYS = {
    "build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image", "ports", "read_only", "restart",
    "security_opt", "stop_grace_period", "tmpfs", "volumes",
}  # fmt: skip
"""Those keys of a Compose service that we use; a misspelt one would be refused by Compose, which is not here."""


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


# --- Prometheus ---------------------------------------------------------------------------------------------------


def promtool(*arguments: str) -> None:
    command = shutil.which("promtool")
    if command is None:
        pytest.skip("needs_program: no promtool on the PATH (Debian: apt-get install prometheus)")
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    promtool("check", "config", str(CONFIG))
    promtool("check", "rules", str(ALERTS))


def test_every_alert_fires_on_its_case_and_not_on_its_look_alike() -> None:
    promtool("test", "rules", *map(str, sorted((DEPLOY / "prometheus" / "tests").glob("*.yml"))))


def alerts() -> list[dict[str, Any]]:
    return [rule for group in loaded(ALERTS)["groups"] for rule in group["rules"]]


def test_every_alert_has_a_case() -> None:
    cases = [
        case
        for path in (DEPLOY / "prometheus" / "tests").glob("*.yml")
        for test in loaded(path)["tests"]
        for case in test["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in alerts()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


def test_every_alert_has_a_severity_and_a_runbook_that_exists() -> None:
    headings = re.findall(r"^### (.+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    for rule in alerts():
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        page, _, section = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/runbooks.md"
        assert section in headings, rule["alert"]
        assert rule["annotations"]["summary"]


def test_alerts_read_only_metrics_that_workers_have() -> None:
    page = WorkerMetrics("telemetry").page().decode()
    known = set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    read = {
        name
        for rule in alerts()
        for name in re.findall(
            r"\b(?:paceline|calculated|switch|nvidia|nccl)_\w+", re.sub(r'"[^"]*"', "", rule["expr"])
        )
    }
    assert read <= known
    assert {"calculated_cluster_mfu", "switch_pfc_pause_rx_rate", "nvidia_xid_error_counter"} <= read


# --- Image --------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def ignored(name: str) -> bool:
    """Whether .dockerignore keeps a path out of the build: its last matching line decides."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().removeprefix("!").removeprefix("**/")
        if pattern and not line.startswith("#") and fnmatch.fnmatch(name, pattern):
            verdict = not line.startswith("!")
    return verdict


def test_everything_that_the_image_copies_is_there_and_reaches_the_build() -> None:
    copied: set[str] = set()
    for name, rest in instructions():
        words = rest.split()
        if name == "COPY" and not words[0].startswith("--from="):
            copied.update(word.removeprefix("./") for word in words[:-1])
    for source in copied:
        assert (ROOT / source).exists(), source
        assert not ignored(source), source
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"paceline_trainer", "tests"}
    assert packages <= copied
    assert ignored(".git")
    assert ignored(".venv")


def test_the_image_is_built_from_hashes_and_runs_as_nobody_in_particular() -> None:
    lines = instructions()
    stages = [rest for name, rest in lines if name == "FROM"]
    assert stages == ["python:3.12-slim AS build", "python:3.12-slim"]
    installs = [rest for name, rest in lines if name == "RUN" and "pip" in rest]
    assert any("install --require-hashes" in rest and "-r requirements.lock" in rest for rest in installs)
    for rest in installs:
        for command in rest.split("&&"):
            if re.search(r"\bpip (install|wheel)\b", command):
                assert "--require-hashes" in command or "--no-deps" in command, command
    last_stage = lines[max(index for index, (name, _) in enumerate(lines) if name == "FROM") :]
    assert ("USER", "10001") in last_stage
    assert ("ENTRYPOINT", '["paceline"]') in last_stage
    assert any(name == "HEALTHCHECK" and ":9464/metrics" in rest for name, rest in last_stage)


# --- Compose ------------------------------------------------------------------------------------------------------


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = loaded(COMPOSE)["services"]
    return found


def parse(arguments: list[str]) -> None:
    """Hold a command line against the parser, without running it.

    Raises:
        AssertionError, or the parser's own error: no such command, option or value.
    """
    command: Any = typer.main.get_command(app)
    context: Any = None
    while hasattr(command, "commands"):
        name = arguments[0]
        assert name in command.commands, f"no command {name!r}"
        context, command, arguments = command.context_class(command), command.commands[name], arguments[1:]
    command.make_context("paceline", list(arguments), parent=context)


def test_a_wrong_command_line_would_be_told() -> None:
    with pytest.raises(AssertionError):
        parse(["wroker"])
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "--no-such-option", "1"])
    with pytest.raises(Exception, match="valid integer"):
        parse(["worker", "--metrics-port", "x"])


def test_every_service_of_ours_has_a_command_line_that_parses() -> None:
    ours = {name: service for name, service in services().items() if service["image"] == "paceline:local"}
    assert ours.keys() == {"topics", "worker-telemetry", "worker-jobs", "worker-decisions", "fleet"}
    for service in ours.values():
        parse(service["command"])
    roles = [
        service["command"][service["command"].index("--role") + 1]
        for service in ours.values()
        if "--role" in service["command"]
    ]
    assert sorted(roles) == ["decisions", "jobs", "telemetry"]


def test_the_compose_file_has_only_known_keys_and_names_only_what_it_has() -> None:
    document = loaded(COMPOSE)
    assert {key for key in document if not key.startswith("x-")} == {"name", "services", "volumes"}
    for name, service in document["services"].items():
        assert service.keys() <= SERVICE_KEYS, name
        for other, condition in service.get("depends_on", {}).items():
            assert other in document["services"], name
            needs = condition["condition"]
            assert needs in {"service_healthy", "service_completed_successfully"}
            if needs == "service_healthy":
                # Ours have the image's healthcheck unless it is switched off.
                checked = document["services"][other].get("healthcheck", {"test": "of the image"})
                assert "test" in checked, f"{name} waits for {other}, which never becomes healthy"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).is_file(), source
            else:
                assert source in document["volumes"], source
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is open to the network: {port}"
        build = service.get("build")
        if build is not None:
            assert (DEPLOY / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).resolve() == DOCKERFILE


def test_prometheus_scrapes_every_worker_of_the_compose_file_and_reads_the_shipped_rules() -> None:
    config = loaded(CONFIG)
    targets = {
        target for job in config["scrape_configs"] for static in job["static_configs"] for target in static["targets"]
    }
    exported = {
        f"{name}:{service['command'][service['command'].index('--metrics-port') + 1]}"
        for name, service in services().items()
        if "--metrics-port" in service.get("command", [])
    }
    assert targets == exported
    mounted = {volume.split(":")[1] for volume in services()["prometheus"]["volumes"]}
    assert config["rule_files"] == [ALERTS.name]
    assert {f"/etc/prometheus/{ALERTS.name}", "/etc/prometheus/prometheus.yml"} <= mounted
    assert {job["job_name"] for job in config["scrape_configs"]} == {"paceline-worker"}


def test_commands_in_comments_and_documents_parse_too() -> None:
    text = DOCKERFILE.read_text() + COMPOSE.read_text()
    shown = re.findall(r"docker run --rm paceline:local (.+)$", text, re.MULTILINE)
    assert shown
    for line in shown:
        parse(shlex.split(line))

"""The agent's unit and DaemonSet: held against systemd's own check, Kubernetes' own models, and the code they start."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from agents.agent import check_settings
from agents.metrics import STUCK_S
from agents.settings import AgentSettings, load
from paceline.cli import app

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = SYSTEMD / "paceline-agent.service"
KUBERNETES = ROOT / "deploy" / "kubernetes"
MANIFESTS = KUBERNETES / "agent-daemonset.yaml"
PATCH = KUBERNETES / "agent-privileged-patch.yaml"
DOCUMENT = ROOT / "docs" / "agent.md"


def parse(arguments: list[str]) -> None:
    """Hold a command line against the parser, without running it.

    Raises:
        AssertionError, or the parser's own error: no such command, option or value.
    """
    command: Any = typer.main.get_command(app)
    assert arguments[0] in command.commands, f"no command {arguments[0]!r}"
    command.commands[arguments[0]].make_context(arguments[0], arguments[1:])


# --- systemd ------------------------------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def verified(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    command = shutil.which("systemd-analyze")
    if command is None:
        pytest.skip("needs_program: no systemd-analyze on the PATH (Debian: apt-get install systemd)")
    path = tmp_path / UNIT.name
    path.write_text(text.replace("/opt/paceline/bin/paceline", sys.executable))
    return subprocess.run([command, "verify", str(path)], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = verified(UNIT.read_text(), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_that_check_would_see_a_misspelt_line(tmp_path: Path) -> None:
    done = verified(UNIT.read_text().replace("ProtectSystem=", "ProtectSytem="), tmp_path)
    assert "ProtectSytem" in done.stderr


def test_the_unit_starts_a_command_that_there_is() -> None:
    (line,) = unit()["ExecStart"]
    program, *arguments = shlex.split(line)
    assert program.endswith("/paceline")
    parse(arguments)


def test_the_unit_gives_what_the_settings_write_to_and_time_for_a_stop() -> None:
    found, settings = unit(), AgentSettings()
    assert settings.socket.startswith(f"/run/{found['RuntimeDirectory'][0]}/")
    assert settings.state_dir == f"/var/lib/{found['StateDirectory'][0]}"
    assert float(found["TimeoutStopSec"][0]) > settings.drain_s + 5
    assert float(found["WatchdogSec"][0]) >= 10 * settings.tick_s
    assert settings.connect_spread_s < 60


def test_the_unit_is_confined_and_keeps_what_the_agent_reads() -> None:
    found = unit()
    assert found["User"] != ["root"]
    assert found["ProtectSystem"] == ["strict"]
    assert found["NoNewPrivileges"] == ["yes"]
    assert found["Restart"] == ["on-failure"]
    assert {"MemoryMax", "CPUQuota", "SystemCallFilter"} <= set(found)
    # Each of these would take /dev/kmsg or /dev/nvidia* away.
    assert found["ProtectKernelLogs"] == found["PrivateDevices"] == ["no"]
    assert not {"DeviceAllow", "ProtectClock"} & set(found)


def test_every_capability_is_explained() -> None:
    found = unit()
    assert found["AmbientCapabilities"] == found["CapabilityBoundingSet"]
    for capability in found["AmbientCapabilities"][0].split():
        assert f"| `{capability}` |" in DOCUMENT.read_text()


def test_the_example_settings_hold(tmp_path: Path) -> None:
    example = SYSTEMD / "agent.toml"
    check_settings(load(example))
    commented = tmp_path / "agent.toml"
    commented.write_text(
        re.sub(r"^# (?=\[agent\.kafka|\w+\.\w+(\.\w+)* =)", "", example.read_text(), flags=re.MULTILINE)
    )
    assert "sasl.username" in load(commented).kafka


# --- Kubernetes ---------------------------------------------------------------------------------------------------


def manifests() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFESTS.read_text())}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    assert isinstance(found, dict)
    return found


def conforms(value: Any, kind: str, place: str) -> None:
    """Hold a value against a type of the Kubernetes client's models: names, types, and what is required."""
    from kubernetes import client

    if inner := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        assert isinstance(value, list), place
        for number, item in enumerate(value):
            conforms(item, inner[1], f"{place}[{number}]")
    elif inner := re.fullmatch(r"[Dd]ict[(\[]str, (.+)[)\]]", kind):
        assert isinstance(value, dict), place
        for name, item in value.items():
            conforms(item, inner[1], f"{place}.{name}")
    elif kind in {"str", "int", "bool", "float"}:
        assert type(value).__name__ == kind, f"{place} is {value!r}, not {kind}"
    elif kind == "object":
        assert isinstance(value, str | int), place  # an integer or a percentage
    else:
        model = getattr(client, kind)
        assert isinstance(value, dict), place
        names = {wire: name for name, wire in model.attribute_map.items()}
        assert set(value) <= set(names), f"{place} has {set(value) - set(names)}"
        for name, item in value.items():
            conforms(item, model.openapi_types[names[name]], f"{place}.{name}")
        model(**{names[name]: item for name, item in value.items()})  # raises for what is required and missing


MODELS = {
    "Namespace": "V1Namespace",
    "PriorityClass": "V1PriorityClass",
    "ServiceAccount": "V1ServiceAccount",
    "ConfigMap": "V1ConfigMap",
    "DaemonSet": "V1DaemonSet",
}


@pytest.mark.parametrize("kind", MODELS)
def test_kubernetes_knows_every_field(kind: str) -> None:
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client, whose models are the schema")
    conforms(manifests()[kind], MODELS[kind], kind)


def test_that_check_would_see_a_misspelt_field() -> None:
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client, whose models are the schema")
    with pytest.raises(AssertionError, match="tolerationz"):
        conforms({"containers": [{"name": "a"}], "tolerationz": []}, "V1PodSpec", "spec")
    with pytest.raises(ValueError, match="containers"):
        conforms({"hostPID": True}, "V1PodSpec", "spec")
    with pytest.raises(AssertionError, match="not int"):
        conforms({"httpGet": {"port": 1}, "periodSeconds": "20"}, "V1Probe", "probe")


def test_the_pods_are_found_and_named_alike() -> None:
    spec = manifests()["DaemonSet"]["spec"]
    wanted = spec["selector"]["matchLabels"]
    assert wanted.items() <= spec["template"]["metadata"]["labels"].items()
    assert pod()["serviceAccountName"] == manifests()["ServiceAccount"]["metadata"]["name"]
    assert pod()["priorityClassName"] == manifests()["PriorityClass"]["metadata"]["name"]
    namespace = manifests()["Namespace"]["metadata"]["name"]
    for kind in ("ServiceAccount", "ConfigMap", "DaemonSet"):
        assert manifests()[kind]["metadata"]["namespace"] == namespace


def test_the_container_has_no_right_that_is_not_named() -> None:
    rights = container()["securityContext"]
    assert rights["privileged"] is rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["SYSLOG"]}
    assert pod()["automountServiceAccountToken"] is False
    for capability in rights["capabilities"]["add"]:
        assert f"| `CAP_{capability}` |" in DOCUMENT.read_text()


def test_of_the_host_only_its_own_directories_can_be_written() -> None:
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert set(mounts) == set(volumes)
    writable = {
        volumes[name]["hostPath"]["path"]
        for name, mount in mounts.items()
        if "hostPath" in volumes[name] and not mount.get("readOnly")
    }
    assert writable == {"/run/paceline", "/var/lib/paceline"}


def test_the_container_starts_with_settings_that_hold_and_has_what_they_name(tmp_path: Path) -> None:
    parse(container()["args"])
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    config = tmp_path / "agent.toml"
    (name,) = manifests()["ConfigMap"]["data"]
    assert container()["args"][-1] == f"/etc/paceline/{name}"
    config.write_text(manifests()["ConfigMap"]["data"][name])
    tomllib.loads(config.read_text())
    settings = load(config, None, {entry["name"]: "x" for entry in container()["env"]})
    check_settings(settings)
    assert settings.node_id == "x"
    assert {settings.sysfs_root, settings.state_dir, settings.kernel_log, str(Path(settings.socket).parent)} <= mounts
    assert [port["containerPort"] for port in container()["ports"]] == [settings.metrics_port]
    assert pod()["terminationGracePeriodSeconds"] > settings.drain_s + 5


@pytest.mark.parametrize("probe", ["livenessProbe", "readinessProbe"])
def test_probes_ask_the_page_that_tells_of_the_loop(probe: str) -> None:
    asked = container()[probe]
    assert asked["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert asked["initialDelaySeconds"] + asked["periodSeconds"] > AgentSettings().connect_spread_s
    assert asked["timeoutSeconds"] < STUCK_S


def test_requests_are_below_limits_and_above_what_is_measured() -> None:
    resources = container()["resources"]
    assert int(resources["requests"]["cpu"][:-1]) < int(resources["limits"]["cpu"][:-1])
    assert int(resources["requests"]["memory"][:-2]) < int(resources["limits"]["memory"][:-2])


def test_a_pod_is_on_every_node_that_the_labels_choose_also_on_a_cordoned_one() -> None:
    assert pod()["tolerations"] == [{"operator": "Exists"}]
    assert manifests()["DaemonSet"]["spec"]["updateStrategy"]["type"] == "RollingUpdate"


def test_the_patch_changes_the_one_container_that_there_is() -> None:
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client, whose models are the schema")
    (patched,) = yaml.safe_load(PATCH.read_text())["spec"]["template"]["spec"]["containers"]
    assert patched["name"] == container()["name"]
    conforms(patched, "V1Container", "container")

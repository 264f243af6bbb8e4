"""`act kubernetes` as it is started: its options, its names of nodes, and the manifest that starts it in a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kube_mock import MANIFEST, granted_rights
from test_agent_deploy import conforms
from typer.testing import CliRunner

from agents.actuators.kube_api import RIGHTS
from agents.actuators.kubernetes import is_node_name, read_node_names
from paceline.cli import app

DOCUMENT = Path(__file__).parents[2] / "docs" / "actions.md"

MODELS = {
    "Namespace": "V1Namespace",
    "ServiceAccount": "V1ServiceAccount",
    "ClusterRole": "V1ClusterRole",
    "ClusterRoleBinding": "V1ClusterRoleBinding",
    "PersistentVolumeClaim": "V1PersistentVolumeClaim",
    "Deployment": "V1Deployment",
}


def manifests() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("kind", MODELS)
def test_kubernetes_knows_every_field(kind: str) -> None:
    assert set(manifests()) == set(MODELS)
    conforms(manifests()[kind], MODELS[kind], kind)


def test_the_role_grants_exactly_what_the_code_asks_for() -> None:
    assert granted_rights() == RIGHTS
    assert all(rule["apiGroups"] == [""] for rule in manifests()["ClusterRole"]["rules"])
    text = DOCUMENT.read_text()
    assert all(f"`{verb}` on `{resource}`" in text for verb, resource in RIGHTS)


def test_the_role_is_bound_to_the_account_that_the_pod_runs_as() -> None:
    account, binding = manifests()["ServiceAccount"]["metadata"], manifests()["ClusterRoleBinding"]
    assert binding["roleRef"]["name"] == manifests()["ClusterRole"]["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    assert pod()["serviceAccountName"] == account["name"]
    assert {manifests()[kind]["metadata"]["namespace"] for kind in ("Deployment", "PersistentVolumeClaim")} == {
        account["namespace"]
    }


def test_one_actuator_runs_at_a_time_and_its_memory_outlives_it() -> None:
    spec = manifests()["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert claim == manifests()["PersistentVolumeClaim"]["metadata"]["name"]
    assert manifests()["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_the_pod_may_do_nothing_on_its_node() -> None:
    [container] = pod()["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod()["securityContext"]["runAsNonRoot"] is True
    labels = manifests()["Namespace"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert not any("hostPath" in volume for volume in pod()["volumes"])


def test_the_container_starts_a_command_that_there_is_with_what_it_names() -> None:
    [container] = pod()["containers"]
    act, kind, *arguments = container["args"]
    command: Any = typer.main.get_command(app)
    context = command.commands[act].commands[kind].make_context(kind, list(arguments))
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts[str(context.params["keyring"].parent)]["readOnly"] is True
    assert str(context.params["state_dir"].parent) in mounts
    variables = {variable["name"] for variable in container["env"]}
    assert {"PACELINE_BOOTSTRAP_SERVERS", "PACELINE_SITE"} == variables
    ring = {volume["name"]: volume for volume in pod()["volumes"]}["keyring"]["configMap"]
    assert ring["defaultMode"] & 0o022 == 0


# --- The command line ---


def said(tmp_path: Path, *arguments: str) -> str:
    base = ["act", "kubernetes", "--keyring", str(tmp_path / "ring.json"), "--state-dir", str(tmp_path / "state")]
    result = CliRunner().invoke(app, [*base, *arguments])
    assert result.exit_code == 2, result.output
    return result.stderr


KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}


def test_the_command_line_names_what_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    # What a person works with is not taken.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (tmp_path / "config").write_text(json.dumps(KUBECONFIG))
    assert "name a file with --kubeconfig" in said(tmp_path)
    for text in ("", "[]", "{", "a: b", "clusters: 1", "{contexts: [], current-context: c}", "\x00"):
        (tmp_path / "broken").write_text(text)
        assert "broken: " in said(tmp_path, "--kubeconfig", str(tmp_path / "broken"))
    assert "none: " in said(tmp_path, "--kubeconfig", str(tmp_path / "none"))
    assert "no-such-context" in said(tmp_path, "--kubeconfig", str(tmp_path / "config"), "--context", "no-such-context")
    (tmp_path / "names.json").write_text('{"a": "N"}')
    assert "names.json: 'N', given for 'a', is not the name" in said(
        tmp_path, "--node-names", str(tmp_path / "names.json")
    )
    assert "ring.json" in said(tmp_path, "--kubeconfig", str(tmp_path / "config"))


def test_names_of_nodes_are_a_mapping_of_ids_to_one_node_each() -> None:
    assert read_node_names(b'{"gpu-1.example.org": "ip-10-0-0-1"}') == {"gpu-1.example.org": "ip-10-0-0-1"}
    for text in (b"", b"[]", b'{"a": 1}', b'{"a": ""}', b'{"a": "b", "c": "b"}', b"\xff"):
        with pytest.raises(ValueError, match=r".+"):
            read_node_names(text)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a..b", "a/b", "a b", "a\n", ".", "ä", "a" * 254])
def test_what_cannot_be_the_name_of_a_node_is_refused(name: str) -> None:
    assert not is_node_name(name)


@given(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z0-9]{1,9}){0,3}", fullmatch=True))
def test_dns_names_are_names_of_nodes(name: str) -> None:
    assert is_node_name(name)

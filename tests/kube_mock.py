"""A light Kubernetes API server over HTTP: nodes with versions and field managers, pods, evictions and budgets, rights.

It answers what the actuator asks in the words of the real one, and 403 to everything that the shipped role does not grant. A
person at the cluster is played by its methods.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
import uuid
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import yaml
from kubernetes import client

__all__ = ["MANIFEST", "KubeMock", "granted_rights"]

MANIFEST = Path(__file__).parents[1] / "deploy" / "kubernetes" / "act-kubernetes.yaml"

BUDGET_SAYS = "Cannot evict pod as it would violate the pod's disruption budget."


@cache
def granted_rights() -> frozenset[tuple[str, str]]:
    """Verbs and resources that the shipped role grants."""
    [role] = [found for found in yaml.safe_load_all(MANIFEST.read_text()) if found["kind"] == "ClusterRole"]
    return frozenset(
        (verb, resource) for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]
    )


class KubeMock(ThreadingHTTPServer):
    """The server; `with` runs it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.granted = set(granted_rights())
        self.asked: list[tuple[str, str]] = []
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.budgets: dict[str, int] = {}
        self.broken: list[str] = []
        """`refused`, `lost` (done, and the answer does not come) or a status, for the next changes and evictions."""
        self._version = 100
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def node_names(self) -> dict[str, str]:
        """Names in the cluster, where they are not those that tests give."""
        return {}

    def configuration(self) -> client.Configuration:
        """Of the actuator's client."""
        return client.Configuration(host=f"http://127.0.0.1:{self.server_address[1]}")

    # --- People and controllers at the cluster ---

    def add_node(self, name: str, taints: list[dict[str, str]] | None = None) -> None:
        self.nodes[name] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "uid": str(uuid.uuid4()),
                "resourceVersion": self._next(),
                "labels": {"kubernetes.io/hostname": name},
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": {"taints": taints} if taints else {},
        }

    def node(self, name: str) -> dict[str, Any]:
        return _shown(self.nodes[name])

    def change_node(self, name: str, change: dict[str, Any], manager: str = "kubectl-edit") -> None:
        node = self.nodes[name]
        before = _written(node)
        for part, values in change.items():
            node[part] = _merged(node.get(part, {}), values)
        after = _written(node)
        owners = dict(node.setdefault("owners", {}))
        for path in before.keys() | after.keys():
            if path not in after:
                owners.pop(path, None)
            elif before.get(path) != after[path]:
                owners[path] = manager
        node["owners"] = owners
        node["metadata"]["resourceVersion"] = self._next()

    def add_pod(
        self, name: str, node: str, controller: str | None = "Job", *, annotations: dict[str, str] | None = None
    ) -> None:
        metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": str(uuid.uuid4())}
        if controller is not None:
            metadata["ownerReferences"] = [{"kind": controller, "name": "owner", "controller": True}]
        if annotations:
            metadata["annotations"] = annotations
        self.pods[name] = {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}

    def finish_pod(self, name: str) -> None:
        self.pods[name]["status"]["phase"] = "Succeeded"

    def remaining(self, node: str) -> set[str]:
        """Pods of a node that nobody has told to end."""
        return {
            name
            for name, pod in self.pods.items()
            if pod["spec"]["nodeName"] == node and "deletionTimestamp" not in pod["metadata"]
        }

    def add_budget(self, pod: str, allowed: int = 0) -> None:
        """A budget for one pod."""
        self.budgets[pod] = allowed

    def allow(self, pod: str) -> None:
        self.budgets[pod] = 1

    # --- Requests ---

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and object."""
        verb = {"GET": "get", "PATCH": "patch", "POST": "create"}[method]
        if path == "/api/v1/pods":
            return self._allowed("list", "pods") or self._listed(query)
        if found := re.fullmatch(r"/api/v1/nodes/([^/]+)", path):
            return self._allowed(verb, "nodes") or self._node(method, found[1], query, body)
        if found := re.fullmatch(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction", path):
            return self._allowed(verb, "pods/eviction") or self._evicted(found[2], body)
        return _status(404, "the server could not find the requested resource")

    def _allowed(self, verb: str, resource: str) -> tuple[int, dict[str, Any]] | None:
        self.asked.append((verb, resource))
        if (verb, resource) in self.granted:
            return None
        plain = resource.partition("/")[0]
        return _status(403, f'{plain} is forbidden: User "u" cannot {verb} resource "{resource}" in API group ""')

    def _listed(self, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        field, _, node = query["fieldSelector"].partition("=")
        assert field == "spec.nodeName"
        return 200, {"items": [pod for pod in self.pods.values() if pod["spec"]["nodeName"] == node]}

    def _node(self, method: str, name: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if name not in self.nodes:
            return _status(404, f'nodes "{name}" not found')
        if method == "PATCH":
            expected = {name: body["metadata"].pop(name) for name in ("resourceVersion", "uid")}
            if any(self.nodes[name]["metadata"][part] != value for part, value in expected.items()):
                return _status(409, f'Operation cannot be fulfilled on nodes "{name}": the object has been modified')
            self.change_node(name, body, query["fieldManager"])
        return 200, _shown(self.nodes[name])

    def _evicted(self, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert (body["apiVersion"], body["kind"], body["metadata"]["name"]) == ("policy/v1", "Eviction", name)
        pod = self.pods.get(name)
        if pod is None:
            return _status(404, f'pods "{name}" not found')
        if pod["metadata"]["uid"] != body["deleteOptions"]["preconditions"]["uid"]:
            return _status(409, f"Precondition failed: UID in precondition, of pod {name}")
        if self.budgets.get(name, 1) < 1:
            cause = f"The disruption budget {name}-budget needs 1 healthy pods and has 1 currently"
            return _status(429, BUDGET_SAYS, [{"reason": "DisruptionBudget", "message": cause}])
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return 201, _status(200, "")[1]

    def _next(self) -> str:
        self._version += 1
        return str(self._version)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body in one packet; a second one would wait for the first to be acknowledged.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: KubeMock

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length)) if length else {}
        broken = self.server.broken.pop(0) if self.command != "GET" and self.server.broken else ""
        if broken == "refused":
            self.close_connection = True
            return
        if broken.isdecimal():
            status, found = _status(int(broken), "not at the moment")
        else:
            status, found = self.server.answer(
                self.command, urllib.parse.unquote(url.path), dict(urllib.parse.parse_qsl(url.query)), body
            )
        if broken == "lost":
            self.close_connection = True
            return
        if self.command == "PATCH":
            assert self.headers["content-type"] == "application/strategic-merge-patch+json"
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_PATCH = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


def _merged(old: Any, new: Any) -> Any:
    """As a strategic merge does it for what is changed here; None takes a field away."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    merged = {name: _merged(old.get(name, {}), value) for name, value in new.items() if value is not None}
    return {name: value for name, value in {**old, **merged}.items() if new.get(name, value) is not None}


def _written(node: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """Fields whose writer is kept, by their path."""
    found: dict[tuple[str, ...], Any] = {
        ("f:metadata", "f:annotations", f"f:{name}"): value
        for name, value in node["metadata"].get("annotations", {}).items()
    }
    if node["spec"].get("unschedulable"):
        found["f:spec", "f:unschedulable"] = True
    return found


def _shown(node: dict[str, Any]) -> dict[str, Any]:
    """A node with `managedFields`, as the server shows it."""
    shown = json.loads(json.dumps({name: value for name, value in node.items() if name != "owners"}))
    fields: dict[str, dict[str, Any]] = {}
    for path, manager in node.get("owners", {}).items():
        place = fields.setdefault(manager, {})
        for part in path:
            place = place.setdefault(part, {})
    shown["metadata"]["managedFields"] = [
        {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": found}
        for manager, found in fields.items()
    ]
    return shown


def _status(code: int, text: str, causes: list[dict[str, str]] | None = None) -> tuple[int, dict[str, Any]]:
    details = {"details": {"causes": causes}} if causes else {}
    return code, {"kind": "Status", "apiVersion": "v1", "message": text, "code": code, **details}

"""A real, throw-away Kubernetes API server, without controllers, schedulers or nodes: a test plays those.

PACELINE_KUBECONFIG names its administrator's kubeconfig (tests/kube/README.md). The actuator speaks to it as the service account
and with the role of the shipped manifest. Names get a suffix, so that tests do not meet.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, Self

import yaml
from kube_mock import MANIFEST
from kubernetes import client, config, utils
from kubernetes.client.exceptions import ApiException

__all__ = ["KubeReal"]

_ROLE_KINDS = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
_READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class KubeReal:
    """The cluster as its administrator; `with` leaves no node, pod or budget behind."""

    def __init__(self) -> None:
        self._suffix = uuid.uuid4().hex[:8]
        self._namespace = f"paceline-test-{self._suffix}"
        self._admin = config.new_client_from_config(os.environ["PACELINE_KUBECONFIG"])  # type: ignore[no-untyped-call]
        self._core = client.CoreV1Api(self._admin)
        self._policy = client.PolicyV1Api(self._admin)
        self.node_names: dict[str, str] = {}

    def __enter__(self) -> Self:
        documents = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] in _ROLE_KINDS]
        for document in documents:
            try:
                utils.create_from_dict(self._admin, document)
            except utils.FailToCreateError as error:
                if any(one.status != 409 for one in error.api_exceptions):
                    raise
        self._core.create_namespace({"metadata": {"name": self._namespace}})
        try:
            # The controller that makes it may not run.
            self._core.create_namespaced_service_account(self._namespace, {"metadata": {"name": "default"}})
        except ApiException as error:
            if error.status != 409:
                raise
        return self

    def __exit__(self, *_: object) -> None:
        at_once = client.V1DeleteOptions(grace_period_seconds=0)
        for pod in self._core.list_namespaced_pod(self._namespace).items:
            self._core.delete_namespaced_pod(pod.metadata.name, self._namespace, body=at_once)
        self._policy.delete_collection_namespaced_pod_disruption_budget(self._namespace)
        for name in self.node_names.values():
            self._core.delete_node(name)
        self._core.delete_namespace(self._namespace)

    def configuration(self) -> client.Configuration:
        """Of the actuator's client: its service account's token and nothing of the administrator's."""
        request: Any = {"spec": {"audiences": [], "expirationSeconds": 3600}}
        answer = self._core.create_namespaced_service_account_token("paceline-act", "paceline-act", request)
        admin = self._admin.configuration
        configuration = client.Configuration(host=admin.host)
        configuration.ssl_ca_cert = admin.ssl_ca_cert
        configuration.api_key = {"BearerToken": f"Bearer {answer.status.token}"}
        return configuration

    def add_node(self, name: str, taints: list[dict[str, str]] | None = None) -> None:
        self.node_names[name] = f"{name}-{self._suffix}"
        self._core.create_node({"metadata": {"name": self.node_names[name]}, "spec": {"taints": taints or []}})

    def node(self, name: str) -> dict[str, Any]:
        found = self._core.read_node(self.node_names[name])
        plain: dict[str, Any] = self._admin.sanitize_for_serialization(found)
        return plain

    def change_node(self, name: str, change: dict[str, Any], manager: str = "kubectl-edit") -> None:
        self._core.patch_node(self.node_names[name], change, field_manager=manager)

    def add_pod(
        self, name: str, node: str, controller: str | None = "Job", *, annotations: dict[str, str] | None = None
    ) -> None:
        owner = {"apiVersion": "v1", "kind": controller, "name": "owner", "uid": str(uuid.uuid4()), "controller": True}
        metadata = {
            "name": name,
            "labels": {"pod": name},
            "annotations": annotations or {},
            "ownerReferences": [owner] if controller is not None else [],
        }
        spec: dict[str, Any] = {"nodeName": self.node_names[node], "containers": [{"name": "c", "image": "none"}]}
        spec["automountServiceAccountToken"] = False
        self._core.create_namespaced_pod(self._namespace, {"metadata": metadata, "spec": spec})
        self._core.patch_namespaced_pod_status(name, self._namespace, {"status": _READY})

    def finish_pod(self, name: str) -> None:
        self._core.patch_namespaced_pod_status(name, self._namespace, {"status": {"phase": "Succeeded"}})

    def remaining(self, node: str) -> set[str]:
        """Pods of a node that nobody has told to end."""
        found = self._core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={self.node_names[node]}")
        return {pod.metadata.name for pod in found.items if pod.metadata.deletion_timestamp is None}

    def add_budget(self, pod: str, allowed: int = 0) -> None:
        """A budget for one pod, with the status that the disruption controller would give it."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"pod": pod}}}
        body: Any = {"metadata": {"name": f"{pod}-budget"}, "spec": spec}
        self._policy.create_namespaced_pod_disruption_budget(self._namespace, body)
        self._set_allowed(pod, allowed)

    def allow(self, pod: str) -> None:
        self._set_allowed(pod, 1)

    def _set_allowed(self, pod: str, allowed: int) -> None:
        status = {
            "disruptionsAllowed": allowed,
            "currentHealthy": 1,
            "desiredHealthy": 1,
            "expectedPods": 1,
            "observedGeneration": 1,
        }
        self._policy.patch_namespaced_pod_disruption_budget_status(f"{pod}-budget", self._namespace, {"status": status})

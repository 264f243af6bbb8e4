"""The few requests that are made to a Kubernetes API server, by the official client, and what its answers mean.

Answers are read as plain JSON, so that a server of another version than the client's models is understood as well. A change
of a node names the version of the node that it was made for, and is refused if the node is another since. Nothing is
decided here. `RIGHTS` is all that the server has to grant.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from agents.actuators.hands import ActFailedError, TargetAwayError
from agents.actuators.node_hold import FIELD_MANAGER
from agents.actuators.scontrol import plain_text

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "RIGHTS",
    "ChangedError",
    "KubeApi",
    "KubeSettingsError",
    "NoSuchObjectError",
    "NotNowError",
    "Pod",
]

_READ_NODE, _CHANGE_NODE = ("get", "nodes"), ("patch", "nodes")
_LIST_PODS, _EVICT = ("list", "pods"), ("create", "pods/eviction")
RIGHTS: Final = frozenset({_READ_NODE, _CHANGE_NODE, _LIST_PODS, _EVICT})
"""Verbs and resources of the core group, in all namespaces."""

_TIMEOUT_S = (5.0, 20.0)
"""For connecting, and for each part of the answer."""

_DISRUPTION = 500
"""With this the server answers an eviction for which it finds several budgets, which waiting may mend and nobody tells apart
from a fault of the server's own."""


class KubeSettingsError(ValueError):
    """No API server is named, or how to reach it does not hold; one line."""


class NoSuchObjectError(ActFailedError):
    """There is no such node or pod."""


class ChangedError(ActFailedError):
    """The object is not the one, or not in the version, that the request was made for; nothing was done."""


class NotNowError(ActFailedError):
    """A pod may not be evicted at present."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod on a node, as far as draining goes by it.

    Attributes:
        namespace: where it is.
        name: unique in there, at one time.
        uid: unique for all time.
        controller: kind of what would start it again elsewhere; None when nothing would.
        is_mirror: made by the node from a file of its own; the server cannot end it.
        is_finished: has ended by itself.
        is_ending: has been told to end.
    """

    namespace: str
    name: str
    uid: str
    controller: str | None
    is_mirror: bool
    is_finished: bool
    is_ending: bool

    @property
    def full_name(self) -> str:
        """Namespace and name, as people write it."""
        return f"{self.namespace}/{self.name}"


class KubeApi:
    """Talks to one API server.

    Args:
        configuration: of the client: where, as whom, whom to trust.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        # The actuator has its own waits, and must know of every try.
        configuration.retries = False
        self._client = client.ApiClient(configuration)
        self._client.user_agent = "paceline"
        self._core = client.CoreV1Api(self._client)

    @classmethod
    def opened(cls, kubeconfig: str | None, context: str | None = None) -> KubeApi:
        """By a kubeconfig file, or without one as the service account of the pod that this runs in.

        There is no falling back to the cluster that a person happens to work with.

        Raises:
            KubeSettingsError: the file does not hold, or this runs in no pod.
        """
        configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    kubeconfig, context, configuration, persist_config=False
                )
        except config.ConfigException as error:
            hint = "" if kubeconfig is not None else "; name a file with --kubeconfig outside a pod"
            raise KubeSettingsError(f"{kubeconfig or 'in a pod'}: {plain_text(str(error))}{hint}") from None
        except (yaml.YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            # What is no kubeconfig ends in any of these.
            raise KubeSettingsError(f"{kubeconfig}: is no kubeconfig: {plain_text(str(error))}") from None
        return cls(configuration)

    def node(self, name: str) -> dict[str, Any]:
        """A node as the server has it.

        Raises:
            TargetAwayError: the server does not answer.
            NoSuchObjectError: there is no such node.
            ActFailedError: it refuses.
        """
        return self._asked(_READ_NODE, self._core.read_node, name)

    def patch_node(self, node: dict[str, Any], change: dict[str, Any]) -> None:
        """Change a node, if it is still as it was read.

        Args:
            node: as `node` gave it.
            change: `metadata` and `spec` to be merged; None takes a field away.

        Raises:
            TargetAwayError: the server does not answer; it may have taken the change.
            ChangedError: the node has changed since; nothing was done.
            ActFailedError: it refuses.
        """
        metadata = node["metadata"]
        expected = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
        body = {**change, "metadata": {**change.get("metadata", {}), **expected}}
        self._asked(_CHANGE_NODE, self._core.patch_node, metadata["name"], body, field_manager=FIELD_MANAGER)

    def pods_on(self, node_name: str) -> list[Pod]:
        """All pods that are on a node, by name.

        Raises:
            TargetAwayError: the server does not answer.
            ActFailedError: it refuses.
        """
        on_node = f"spec.nodeName={node_name}"
        answer = self._asked(_LIST_PODS, self._core.list_pod_for_all_namespaces, field_selector=on_node)
        return sorted((_pod(item) for item in answer.get("items") or ()), key=lambda pod: pod.full_name)

    def evict(self, pod: Pod) -> None:
        """Ask that a pod be ended, if its disruption budgets allow it.

        Raises:
            TargetAwayError: the server does not answer.
            NoSuchObjectError: the pod is gone.
            ChangedError: another pod has its name by now.
            NotNowError: a budget forbids it at present; the text names it.
            ActFailedError: it refuses.
        """
        body = client.V1Eviction(
            api_version="policy/v1",
            kind="Eviction",
            metadata=client.V1ObjectMeta(name=pod.name, namespace=pod.namespace),
            delete_options=client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=pod.uid)),
        )
        self._asked(_EVICT, self._core.create_namespaced_pod_eviction, pod.name, pod.namespace, body)

    def _asked(
        self, right: tuple[str, str], request: Callable[..., Any], *arguments: object, **options: object
    ) -> dict[str, Any]:
        """The answer to a request, for which the server has to grant a right; each is bounded in time and read as JSON."""
        try:
            reply = request(*arguments, **options, _preload_content=False, _request_timeout=_TIMEOUT_S)
            answer = json.loads(reply.data)
        except ApiException as error:
            raise _meaning(right, error) from None
        except urllib3.exceptions.SSLError as error:
            raise ActFailedError(f"TLS: {plain_text(str(error))}") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise TargetAwayError(f"the API server does not answer: {plain_text(str(error))}") from None
        except ValueError as error:
            raise ActFailedError(
                f"the API server's answer to {' '.join(right)} is no JSON: {plain_text(str(error))}"
            ) from None
        if not isinstance(answer, dict):
            raise ActFailedError(f"the API server's answer to {' '.join(right)} is no object")
        return cast("dict[str, Any]", answer)


def _meaning(right: tuple[str, str], error: ApiException) -> ActFailedError | TargetAwayError:
    """What a status other than success says."""
    said = _said(error)
    status = error.status or 0
    if status == 0:
        return ActFailedError(f"TLS: {said}")
    if status == 401:
        return ActFailedError(f"the API server does not know this actuator (401): {said}")
    if status == 403:
        return ActFailedError(f"the API server does not grant the verb {' on '.join(right)}: {said}")
    if status == 404:
        return NoSuchObjectError(said)
    if status == 409:
        return ChangedError(said)
    if right == _EVICT and status in {429, _DISRUPTION}:
        return NotNowError(said)
    if status == 429 or status >= 500:
        return TargetAwayError(f"the API server answers {status}: {said}")
    return ActFailedError(f"the API server answers {' '.join(right)} with {status}: {said}")


def _said(error: ApiException) -> str:
    """The server's own words: message and causes of its status, or the status line."""
    body = error.body
    try:
        status = json.loads(body) if isinstance(body, str | bytes) else None
    except ValueError:
        status = None
    if not isinstance(status, dict):
        return plain_text(str(error.reason or error.status))
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    texts = [status.get("message"), *(cause.get("message") for cause in causes or () if isinstance(cause, dict))]
    return plain_text(" ".join(text for text in texts if isinstance(text, str)), 300)


def _pod(item: dict[str, Any]) -> Pod:
    metadata = item["metadata"]
    controllers = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    return Pod(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        controllers[0]["kind"] if controllers else None,
        "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}),
        (item.get("status") or {}).get("phase") in {"Succeeded", "Failed"},
        "deletionTimestamp" in metadata,
    )

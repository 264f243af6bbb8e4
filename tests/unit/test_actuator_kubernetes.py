"""Kubernetes' hands on an API server: what they take out, evict and give back, and what they leave to others.

Each behaviour is shown on a light server of the tests' own, which knows the rights that the shipped role grants, and once more on
a real one where PACELINE_KUBECONFIG names one (tests/kube).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at
from kube_mock import KubeMock, granted_rights
from kube_real import KubeReal
from power_cut import PowerCutError
from signed_commands import RING, command, signed

from agents.actuators.actuator import Actuator, ActuatorSettings
from agents.actuators.kube_api import RIGHTS, KubeApi
from agents.actuators.kubernetes import KubernetesHands, KubernetesSettings
from agents.actuators.limits import LocalLimits
from agents.actuators.memory import ActuatorMemory
from agents.actuators.node_hold import HELD_BY, HELD_LABEL, HOLD, REASON
from schemas.findings import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kubernetes import client

    from schemas.remediation import ActionResult

    Cluster = KubeMock | KubeReal

SECOND_NS = 1_000_000_000
THERMAL = "nvidia.com/gpu-throttled:NoSchedule"
FOREIGN_TAINT = {"key": "example.com/pool", "value": "a", "effect": "NoSchedule"}


class MeddledApi(KubeApi):
    """The real client, with things that happen around its changes and evictions."""

    def __init__(self, configuration: client.Configuration) -> None:
        super().__init__(configuration)
        self.before_patch: list[Callable[[], object]] = []
        self.power_ends_after: str | None = None
        self.told: list[str] = []

    def patch_node(self, node: dict[str, Any], change: dict[str, Any]) -> None:
        if self.before_patch:
            self.before_patch.pop(0)()
        super().patch_node(node, change)
        self._happened("patch")

    def evict(self, pod: Any) -> None:
        super().evict(pod)
        self._happened("evict")

    def _happened(self, what: str) -> None:
        self.told.append(what)
        if self.power_ends_after == what:
            raise PowerCutError


class Rig:
    """An actuator of a cluster, which can be ended and started again; its waits let the time go on and things happen."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster, self.path, self.now_ns = cluster, path, at(1)
        self.while_waiting: list[Callable[[], object]] = []
        self.sent: list[ActionResult] = []
        self.is_stopped = False
        self._offset = 0
        self.start(born_ns=at(-100))

    def start(self, born_ns: int | None = None) -> None:
        self.api = MeddledApi(self.cluster.configuration())
        self.memory = ActuatorMemory(self.path, "kubernetes", born_ns if born_ns is not None else self.now_ns)
        self.hands = KubernetesHands(
            self.api, KubernetesSettings(self.cluster.node_names), lambda: self.now_ns, self.wait
        )
        self.actuator = Actuator(
            ActuatorSettings("kubernetes", SITE, LocalLimits(costly_per_hour=100)),
            self.hands,
            self.memory,
            lambda _: None,
            lambda: RING,
            lambda: self.now_ns,
            self.wait,
        )

    def restart(self) -> None:
        self.memory.close()
        self.start()

    def wait(self, seconds: float) -> bool:
        self.now_ns += int(seconds * SECOND_NS)
        if self.while_waiting:
            self.while_waiting.pop(0)()
        return self.is_stopped

    def take(self, number: int = 0, **fields: Any) -> str:
        self._offset += 1
        place = Evidence(topic="paceline.actions.v1", partition=0, offset=self._offset)
        wire = signed(command(number=number, **fields))
        return self.actuator.on_message(wire.value, wire.headers, place)

    def last(self) -> ActionResult:
        for number, result in self.memory.outbox():
            self.sent.append(result)
            self.memory.sent(number)
        return self.sent[-1]

    def node(self, name: str = "node-1") -> dict[str, Any]:
        return self.cluster.node(name)

    def taints(self, name: str = "node-1") -> set[str]:
        return {f"{taint['key']}:{taint['effect']}" for taint in self.node(name)["spec"].get("taints", ())}


@pytest.fixture(params=["mock", pytest.param("real", marks=pytest.mark.needs_kube)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with KubeMock() if request.param == "mock" else KubeReal() as cluster:
        cluster.add_node("node-1", [FOREIGN_TAINT])
        yield cluster


@pytest.fixture
def rig(cluster: Cluster, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(cluster, tmp_path / "memory.sqlite")
    yield rig
    rig.memory.close()


@pytest.fixture
def mock(cluster: Cluster) -> KubeMock:
    """For what a real server does only when it is broken."""
    if not isinstance(cluster, KubeMock):
        pytest.skip("needs_kube: a real server is not to be broken")
    return cluster


# --- Taking out ---


def test_a_command_cordons_and_taints_a_node_and_a_second_delivery_changes_nothing(rig: Rig) -> None:
    assert rig.take(reason="Xid 79;\nGPU lost") == "applied"
    node = rig.node()
    assert node["spec"]["unschedulable"] is True
    assert {"example.com/pool:NoSchedule", "paceline.dev/held:NoSchedule"} <= rig.taints()
    assert node["metadata"]["labels"][HELD_LABEL] == "cordon_node"
    annotations = node["metadata"]["annotations"]
    assert (annotations[HELD_BY], annotations[REASON]) == ("cmd-node-1-0", "Xid 79; GPU lost")
    hold = json.loads(annotations[HOLD])
    assert hold["added"] == ["unschedulable", "paceline.dev/held:NoSchedule"]
    assert hold["before"]["unschedulable"] is False
    assert "example.com/pool=a:NoSchedule" in hold["before"]["taints"]
    assert rig.take(reason="Xid 79;\nGPU lost") == "reused_id"
    rig._offset -= 2
    assert rig.take(reason="Xid 79;\nGPU lost") == "redelivered"
    assert rig.api.told == ["patch"]
    assert rig.node() == node


def test_a_thermal_drain_after_the_checkpoint_taints_as_it_says_and_evicts_nothing(rig: Rig, cluster: Cluster) -> None:
    cluster.add_pod("trainer-0", "node-1")
    assert rig.take(kind="drain_node", when="after_checkpoint", taint=THERMAL) == "applied"
    assert THERMAL in rig.taints()
    assert "paceline.dev/held:NoSchedule" not in rig.taints()
    assert cluster.remaining("node-1") == {"trainer-0"}


def test_a_node_that_somebody_else_has_cordoned_is_left_as_it_is(rig: Rig, cluster: Cluster) -> None:
    cluster.change_node("node-1", {"spec": {"unschedulable": True}}, "kubectl-cordon")
    cluster.add_pod("trainer-0", "node-1")
    before = rig.node()
    assert rig.take(0) == "already_so"
    assert rig.take(1, kind="drain_node") == "unexpected_state"
    assert "theirs to move" in rig.last().reason
    assert rig.take(2, kind="uncordon_node") == "not_ours"
    assert (rig.node(), rig.api.told, cluster.remaining("node-1")) == (before, [], {"trainer-0"})


def test_a_change_that_another_overtook_is_made_to_what_the_node_is_now(rig: Rig, cluster: Cluster) -> None:
    rig.api.before_patch = [lambda: cluster.change_node("node-1", {"metadata": {"labels": {"a": "b"}}})] * 2
    assert rig.take() == "applied"
    assert rig.node()["metadata"]["labels"]["a"] == "b"
    assert rig.node()["metadata"]["annotations"][HELD_BY] == "cmd-node-1-0"
    assert rig.api.told == ["patch"]


def test_a_node_that_somebody_cordons_in_that_moment_is_theirs(rig: Rig, cluster: Cluster) -> None:
    rig.api.before_patch = [lambda: cluster.change_node("node-1", {"spec": {"unschedulable": True}}, "kubectl-cordon")]
    assert rig.take() == "act_failed"
    assert "somebody has changed the node" in rig.last().reason
    assert HELD_BY not in rig.node()["metadata"].get("annotations", {})
    assert rig.take(1, kind="uncordon_node") == "not_ours"


def test_a_node_that_others_change_without_end_is_given_up(rig: Rig, cluster: Cluster) -> None:
    numbers = iter(range(9))
    rig.api.before_patch = [
        lambda: cluster.change_node("node-1", {"metadata": {"labels": {"a": str(next(numbers))}}})
    ] * 5
    assert rig.take() == "act_failed"
    assert "5 times in a row" in rig.last().reason
    assert "unschedulable" not in rig.node()["spec"]


@pytest.mark.parametrize(
    "taint", ["a:NoExecute", "node.kubernetes.io/unschedulable:NoSchedule", "a", "a:b:NoSchedule", ":NoSchedule", ""]
)
def test_a_taint_that_would_end_pods_or_is_kubernetes_own_is_refused(mock: KubeMock, rig: Rig, taint: str) -> None:
    assert rig.take(taint=taint) == "not_permitted"
    assert rig.api.told == []


def test_there_is_no_such_node(rig: Rig) -> None:
    for number, node_id in enumerate(("node-9", "Node-1", "node-1/../node-1", "")):
        assert rig.take(node_id=node_id, command_id=f"cmd-{number}") == "act_failed", node_id


# --- Draining ---


def test_a_drain_evicts_what_would_be_started_elsewhere_and_nothing_else(rig: Rig, cluster: Cluster) -> None:
    cluster.add_node("node-2")
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_pod("trainer-1", "node-1", "ReplicaSet")
    cluster.add_pod("exporter", "node-1", "DaemonSet")
    cluster.add_pod("proxy", "node-1", None, annotations={"kubernetes.io/config.mirror": "hash"})
    cluster.add_pod("done", "node-1")
    cluster.finish_pod("done")
    cluster.add_pod("elsewhere", "node-2")
    assert rig.take(kind="drain_node") == "applied"
    assert "2 pods evicted" in rig.last().reason
    assert cluster.remaining("node-1") == {"exporter", "proxy", "done"}
    assert cluster.remaining("node-2") == {"elsewhere"}
    assert rig.node()["spec"]["unschedulable"] is True
    assert rig.take(1, kind="drain_node") == "already_so"


def test_a_budget_holds_an_eviction_up_until_it_allows_it(rig: Rig, cluster: Cluster) -> None:
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_budget("trainer-0")
    rig.while_waiting = [lambda: None, lambda: cluster.allow("trainer-0")]
    assert rig.take(kind="drain_node") == "applied"
    assert (cluster.remaining("node-1"), rig.now_ns) == (set(), at(11))


def test_a_budget_that_does_not_give_way_is_named_and_the_node_is_held_and_can_be_given_back(
    rig: Rig, cluster: Cluster
) -> None:
    before = rig.node()
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_pod("trainer-1", "node-1")
    cluster.add_budget("trainer-0")
    assert rig.take(kind="drain_node") == "blocked"
    result = rig.last()
    assert (result.outcome, rig.now_ns) == ("failed", at(61))
    assert "1 pods evicted" in result.reason
    assert "trainer-0: Cannot evict pod as it would violate the pod's disruption budget." in result.reason
    assert "The disruption budget trainer-0-budget needs 1 healthy pods" in result.reason
    assert cluster.remaining("node-1") == {"trainer-0"}
    assert rig.node()["spec"]["unschedulable"] is True
    assert rig.take(1, kind="uncordon_node") == "applied"
    assert rig.node()["spec"] == before["spec"]


def test_a_second_drain_goes_on_where_the_first_was_blocked_and_the_first_still_holds_the_node(
    rig: Rig, cluster: Cluster
) -> None:
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_budget("trainer-0")
    assert rig.take(0, kind="drain_node") == "blocked"
    cluster.allow("trainer-0")
    assert rig.take(1, kind="drain_node", taint=THERMAL) == "applied"
    assert (cluster.remaining("node-1"), THERMAL in rig.taints()) == (set(), True)
    assert rig.node()["metadata"]["annotations"][HELD_BY] == "cmd-node-1-0"
    assert rig.take(2, kind="uncordon_node") == "applied"
    assert not {THERMAL, "paceline.dev/held:NoSchedule"} & rig.taints()


def test_no_eviction_is_asked_for_after_the_commands_expiry(rig: Rig, cluster: Cluster) -> None:
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_budget("trainer-0")
    rig.while_waiting = [lambda: None, lambda: cluster.allow("trainer-0")]
    assert rig.take(kind="drain_node", expires_at_ns=at(9)) == "blocked"
    assert (rig.now_ns, cluster.remaining("node-1")) == (at(11), {"trainer-0"})


def test_a_drain_that_a_person_ends_by_giving_the_node_back_evicts_no_more(rig: Rig, cluster: Cluster) -> None:
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_budget("trainer-0")

    def give_back() -> None:
        cluster.change_node("node-1", {"spec": {"unschedulable": None}}, "kubectl-uncordon")
        cluster.allow("trainer-0")

    rig.while_waiting = [give_back]
    assert rig.take(kind="drain_node") == "act_failed"
    assert "taken the node over" in rig.last().reason
    assert cluster.remaining("node-1") == {"trainer-0"}


def test_a_pod_that_nothing_would_start_again_keeps_all_others(rig: Rig, cluster: Cluster) -> None:
    cluster.add_pod("notebook", "node-1", None)
    cluster.add_pod("trainer-0", "node-1")
    assert rig.take(kind="drain_node") == "blocked"
    assert "notebook" in rig.last().reason
    assert (cluster.remaining("node-1"), rig.api.told) == ({"notebook", "trainer-0"}, ["patch"])


def test_a_drain_ends_with_the_process(rig: Rig, cluster: Cluster) -> None:
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_budget("trainer-0")
    rig.is_stopped = True
    assert rig.take(kind="drain_node") == "blocked"
    assert "told to end" in rig.last().reason


# --- Giving back ---


@pytest.mark.parametrize("kind", ["cordon_node", "drain_node"])
def test_a_node_is_given_back_exactly_as_it_was(rig: Rig, kind: str) -> None:
    before = rig.node()
    assert rig.take(0, kind=kind, taint=THERMAL) == "applied"
    assert rig.take(1, kind="uncordon_node") == "applied"
    after = rig.node()
    assert after["spec"] == before["spec"]
    for part in ("labels", "annotations"):
        assert after["metadata"].get(part) == before["metadata"].get(part)
    assert rig.take(2, kind="uncordon_node") == "already_so"


def test_what_others_added_since_stays(rig: Rig, cluster: Cluster) -> None:
    assert rig.take(0) == "applied"
    theirs = {"key": "example.com/disk", "effect": "NoSchedule"}
    cluster.change_node("node-1", {"spec": {"taints": [*rig.node()["spec"]["taints"], theirs]}})
    assert rig.take(1, kind="uncordon_node") == "applied"
    assert {"example.com/disk:NoSchedule", "example.com/pool:NoSchedule"} <= rig.taints()
    assert "paceline.dev/held:NoSchedule" not in rig.taints()


def test_a_taint_that_was_there_before_is_not_taken_away(rig: Rig, cluster: Cluster) -> None:
    operators = {"key": "nvidia.com/gpu-throttled", "value": "operator", "effect": "NoSchedule"}
    cluster.change_node("node-1", {"spec": {"taints": [FOREIGN_TAINT, operators]}})
    assert rig.take(0, taint=THERMAL) == "applied"
    assert rig.take(1, kind="uncordon_node") == "applied"
    assert operators in rig.node()["spec"]["taints"]


@pytest.mark.parametrize(
    "takeover",
    [
        {"metadata": {"annotations": {HELD_BY: "me"}}},
        {"metadata": {"annotations": {HELD_BY: None}}},
        {
            "metadata": {
                "annotations": {HOLD: '{"added":["unschedulable","example.com/pool=a:NoSchedule"],"before":{}}'}
            }
        },
        {"metadata": {"annotations": {HOLD: None}}},
    ],
)
def test_a_node_whose_marks_somebody_changed_is_theirs(rig: Rig, cluster: Cluster, takeover: dict[str, Any]) -> None:
    assert rig.take(0) == "applied"
    cluster.change_node("node-1", takeover)
    before = rig.node()
    assert rig.take(1, kind="uncordon_node") == "not_ours"
    assert (rig.node(), rig.api.told) == (before, ["patch"])


def test_a_node_that_somebody_gave_back_and_cordoned_again_is_theirs(rig: Rig, cluster: Cluster) -> None:
    assert rig.take(0) == "applied"
    cluster.change_node("node-1", {"spec": {"unschedulable": None}}, "kubectl-uncordon")
    cluster.change_node("node-1", {"spec": {"unschedulable": True}}, "kubectl-cordon")
    assert rig.take(1, kind="uncordon_node") == "not_ours"
    assert "kubectl-cordon has taken the node over" in rig.last().reason
    assert rig.node()["spec"]["unschedulable"] is True


def test_a_node_that_somebody_made_schedulable_loses_the_rest_of_what_was_added(rig: Rig, cluster: Cluster) -> None:
    before = rig.node()
    assert rig.take(0) == "applied"
    cluster.change_node("node-1", {"spec": {"unschedulable": None}}, "kubectl-uncordon")
    assert rig.take(1, kind="uncordon_node") == "applied"
    assert rig.node()["spec"] == before["spec"]


def test_a_node_that_somebody_made_schedulable_is_taken_out_anew_and_given_back_whole(
    rig: Rig, cluster: Cluster
) -> None:
    before = rig.node()
    assert rig.take(0, taint=THERMAL) == "applied"
    cluster.change_node("node-1", {"spec": {"unschedulable": None}}, "kubectl-uncordon")
    assert rig.take(1) == "applied"
    assert rig.node()["metadata"]["annotations"][HELD_BY] == "cmd-node-1-1"
    assert rig.take(2, kind="uncordon_node") == "applied"
    assert rig.node()["spec"] == before["spec"]


def test_without_the_memory_of_it_a_node_is_not_given_back(rig: Rig) -> None:
    assert rig.take(0) == "applied"
    rig.memory.close()
    rig.path.unlink()
    rig.start(born_ns=at(-100))
    assert rig.take(1, kind="uncordon_node") == "not_ours"
    assert rig.take(2) == "already_so"
    assert rig.node()["spec"]["unschedulable"] is True


# --- Ending in the middle ---


@pytest.mark.parametrize("kind", ["cordon_node", "uncordon_node"])
def test_an_act_that_took_effect_before_a_crash_is_found_done(rig: Rig, kind: str) -> None:
    if kind == "uncordon_node":
        assert rig.take(0) == "applied"
    rig.api.power_ends_after = "patch"
    with pytest.raises(PowerCutError):
        rig.take(1, kind=kind)
    rig.restart()
    rig.actuator.resume()
    assert (rig.last().code, rig.last().outcome, rig.api.told) == ("found_done", "applied", [])
    after = rig.take(2, kind="uncordon_node")
    assert after == ("applied" if kind == "cordon_node" else "already_so")
    assert "unschedulable" not in rig.node()["spec"]


def test_a_drain_that_a_crash_cut_short_is_brought_to_its_end_and_given_back(rig: Rig, cluster: Cluster) -> None:
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_pod("trainer-1", "node-1")
    rig.api.power_ends_after = "evict"
    with pytest.raises(PowerCutError):
        rig.take(kind="drain_node")
    assert len(cluster.remaining("node-1")) == 1
    rig.restart()
    rig.actuator.resume()
    assert rig.last().outcome == "applied"
    assert (cluster.remaining("node-1"), rig.api.told) == (set(), ["evict"])
    assert rig.take(1, kind="uncordon_node") == "applied"


def test_a_command_that_expired_during_a_crash_goes_on_with_nothing(rig: Rig, cluster: Cluster) -> None:
    cluster.add_pod("trainer-0", "node-1")
    cluster.add_pod("trainer-1", "node-1")
    rig.api.power_ends_after = "evict"
    with pytest.raises(PowerCutError):
        rig.take(kind="drain_node")
    rig.now_ns = at(3600)
    rig.restart()
    rig.actuator.resume()
    assert (rig.last().outcome, rig.api.told) == ("expired", [])


# --- A server that does not answer, or does not grant ---


def test_a_server_that_is_away_is_waited_for(mock: KubeMock, rig: Rig) -> None:
    mock.broken = ["refused", "503"]
    assert rig.take() == "applied"
    assert (rig.api.told, rig.now_ns) == (["patch"], at(4))


def test_a_change_whose_answer_is_lost_is_not_made_again(mock: KubeMock, rig: Rig) -> None:
    mock.broken = ["lost"]
    assert rig.take() == "applied"
    assert mock.asked.count(("patch", "nodes")) == 1
    assert rig.take(1, kind="uncordon_node") == "applied"


def test_a_drain_goes_on_when_the_answer_to_its_first_change_is_lost(mock: KubeMock, rig: Rig) -> None:
    mock.add_pod("trainer-0", "node-1")
    mock.broken = ["lost"]
    assert rig.take(kind="drain_node") == "applied"
    assert (mock.asked.count(("patch", "nodes")), mock.remaining("node-1")) == (1, set())
    assert rig.take(1, kind="uncordon_node") == "applied"


def test_a_server_that_stays_away_fails_the_command(tmp_path: Path) -> None:
    with KubeMock() as mock:
        rig = Rig(mock, tmp_path / "memory.sqlite")
    assert rig.take() == "target_away"
    assert rig.last().outcome == "failed"
    rig.memory.close()


def test_a_server_that_goes_away_during_a_drain_is_waited_for(mock: KubeMock, rig: Rig) -> None:
    mock.add_pod("trainer-0", "node-1")
    rig.api.before_patch = [lambda: mock.broken.extend(["", "503", "refused"])]
    assert rig.take(kind="drain_node") == "applied"
    assert mock.remaining("node-1") == set()


RIGHTS_BY_ACT = {
    ("get", "nodes"): "get on nodes",
    ("patch", "nodes"): "patch on nodes",
    ("list", "pods"): "list on pods",
    ("create", "pods/eviction"): "create on pods/eviction",
}


@pytest.mark.parametrize("right", sorted(RIGHTS_BY_ACT))
def test_a_right_that_is_missing_is_named(mock: KubeMock, rig: Rig, right: tuple[str, str]) -> None:
    mock.add_pod("trainer-0", "node-1")
    mock.granted.remove(right)
    assert rig.take(kind="drain_node") == "act_failed"
    assert f"does not grant the verb {RIGHTS_BY_ACT[right]}" in rig.last().reason


def test_the_role_grants_what_is_asked_for_and_nothing_else(mock: KubeMock, rig: Rig) -> None:
    mock.add_pod("trainer-0", "node-1")
    assert rig.take(0, kind="drain_node") == "applied"
    assert rig.take(1, kind="uncordon_node") == "applied"
    assert set(mock.asked) == RIGHTS == granted_rights()

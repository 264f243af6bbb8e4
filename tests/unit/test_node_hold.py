"""What is written on a node that is taken out, and what is taken off again: laws over any node, and what may be tainted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_mock import _merged
from signed_commands import command

from agents.actuators.hands import State
from agents.actuators.node_hold import (
    GENERAL_TAINT,
    HELD_BY,
    HOLD,
    Taint,
    hold_change,
    node_state,
    release_change,
    taint_of,
)

KEYS = st.sampled_from(["example.com/a", "b", "paceline.dev/held", "nvidia.com/gpu-throttled"])
EFFECTS = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])


@st.composite
def nodes(draw: st.DrawFn) -> State:
    pairs = draw(st.lists(st.tuples(KEYS, EFFECTS), unique=True, max_size=4))
    taints = [
        {"key": key, "effect": effect, **({"value": "x"} if draw(st.booleans()) else {})} for key, effect in pairs
    ]
    return {
        "metadata": {"uid": "u", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"providerID": "p", **({"taints": taints} if taints else {})},
    }


def changed(node: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {part: _merged(values, change.get(part, {})) for part, values in node.items()}


@given(nodes(), st.sampled_from([None, "nvidia.com/gpu-throttled:NoSchedule", "b=x:PreferNoSchedule"]))
def test_giving_back_what_was_taken_out_leaves_a_node_as_it_was(node: State, text: str | None) -> None:
    order = command(taint=text)
    taint = taint_of(order)
    assert taint is not None
    held = changed(node, hold_change(node, order, taint))
    assert node_state(held).unschedulable
    assert node_state(held).has(taint)
    assert changed(held, release_change(held)) == node


@given(nodes())
def test_holding_a_held_node_with_another_taint_keeps_its_first_state(node: State) -> None:
    held = changed(node, hold_change(node, command(), GENERAL_TAINT))
    second = command(number=1, kind="drain_node", taint="third:NoSchedule")
    twice = changed(held, hold_change(held, second, Taint("third", "", "NoSchedule")))
    assert node_state(twice).held_by == command().command_id
    assert changed(twice, release_change(twice)) == node


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        (None, GENERAL_TAINT),
        ("nvidia.com/gpu-throttled:NoSchedule", Taint("nvidia.com/gpu-throttled", "", "NoSchedule")),
        ("a=b:PreferNoSchedule", Taint("a", "b", "PreferNoSchedule")),
        ("a=:NoSchedule", Taint("a", "", "NoSchedule")),
        ("a:NoExecute", None),
        ("a:noschedule", None),
        ("a", None),
        ("", None),
        ("a:NoSchedule\n", None),
        ("-a:NoSchedule", None),
        ("a/b/c:NoSchedule", None),
        (f"{'a' * 64}:NoSchedule", None),
        ("node.kubernetes.io/not-ready:NoSchedule", None),
        ("kubernetes.io/x:NoSchedule", None),
        ("x.k8s.io/y:NoSchedule", None),
        ("notkubernetes.io/x:NoSchedule", Taint("notkubernetes.io/x", "", "NoSchedule")),
    ],
)
def test_a_taint_is_set_if_it_keeps_pods_from_coming_and_is_not_kubernetes_own(
    text: str | None, taint: Taint | None
) -> None:
    assert taint_of(command(taint=text)) == taint


@given(st.text(max_size=60))
def test_any_text_is_a_taint_or_none(text: str) -> None:
    found = taint_of(command(taint=text))
    assert found is None or str(found).replace("=", "") == text.replace("=", "")


def managed(**fields: Any) -> dict[str, Any]:
    node: dict[str, Any] = {"metadata": {"uid": "u", "annotations": {HELD_BY: "cmd-1"}}, "spec": {}}
    node["metadata"]["managedFields"] = [{"manager": name, "fieldsV1": written} for name, written in fields.items()]
    return node


def test_whoever_wrote_what_a_held_node_is_known_by_is_named() -> None:
    ours = {"f:spec": {"f:unschedulable": {}}, "f:metadata": {"f:annotations": {f"f:{HELD_BY}": {}}}}
    kubelet = {"f:status": {}, "f:metadata": {"f:annotations": {"f:other": {}}, "f:labels": {}}}
    controller = {"f:spec": {"f:taints": {}}}
    assert node_state(managed(paceline=ours, kubelet=kubelet, controller=controller)).others == ()
    assert node_state(managed(paceline=ours, argocd={"f:spec": {"f:unschedulable": {}}})).others == ("argocd",)
    editor = {"f:metadata": {"f:annotations": {f"f:{HOLD}": {}}}}
    assert node_state(managed(paceline=ours, editor=editor)).others == ("editor",)


@pytest.mark.parametrize("hold", [None, "", "{", "[]", '"x"', "{}", '{"added":"unschedulable"}', '{"added":[1]}'])
def test_what_was_added_is_read_only_in_the_form_in_which_it_is_written(hold: str | None) -> None:
    node: dict[str, Any] = {"metadata": {"uid": "u", "annotations": {HELD_BY: "c"}}, "spec": {"unschedulable": True}}
    if hold is not None:
        node["metadata"]["annotations"][HOLD] = hold
    assert node_state(node).added is None
    assert hold_change(node, command(), GENERAL_TAINT)["spec"].keys() == {"taints"}

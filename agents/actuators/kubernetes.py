"""Kubernetes: cordons and taints nodes, drains them by evictions, and gives back what was taken out from here.

What is written on a node says by which command it was taken out and what was added; `node_hold` has the marks. Only a node that
still has them as they were written, by the command that is remembered as its holder, is given back: whoever changes them has
taken it over. Each change is made to the very version of the node that was judged; a change that somebody else's overtook is
judged anew.

Draining asks the eviction API for each pod, so that disruption budgets hold. What a budget forbids is asked again for some
time, and then the act has failed and says who stood in its way; the node stays out. A command that waits for a checkpoint
evicts nothing: nothing tells this actuator when a checkpoint is written, so what runs goes on until it ends.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from agents.actuators.hands import ActFailedError, Judgement, PartlyDoneError, State, TargetAwayError
from agents.actuators.kube_api import ChangedError, NoSuchObjectError, NotNowError
from agents.actuators.node_hold import NodeState, hold_change, node_state, release_change, taint_of
from agents.actuators.scontrol import plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agents.actuators.kube_api import KubeApi, Pod
    from schemas.remediation import Command

__all__ = ["KubernetesHands", "KubernetesSettings", "is_node_name", "read_node_names"]

_PART = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")
_MOST_NAME = 253
"""A node's name is a DNS subdomain (RFC 1123)."""

_CHANGE_TRIES = 5
"""Each is overtaken only if another writes the node between two requests; a kubelet writes every ten seconds at most."""

_AGAIN_S = 5.0
"""Between two rounds of evictions: `kubectl drain` waits as long."""

_NANO = 1_000_000_000
_REACH_NS = 2 * _NANO
"""What is asked later than this before a command's end could arrive after it."""

_NAMED_AT_MOST = 4


def is_node_name(name: str) -> bool:
    """Whether a name can be that of a node."""
    return len(name) <= _MOST_NAME and _NODE_NAME.fullmatch(name) is not None


def read_node_names(text: bytes) -> dict[str, str]:
    """Names of nodes by our node ids, from a JSON object.

    Raises:
        ValueError: it is none, a name cannot be that of a node, or two ids mean one node.
    """
    names = json.loads(text)
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError("is no JSON object of names by node id")
    for node_id, name in names.items():
        if not is_node_name(name):
            raise ValueError(f"{name!r}, given for {node_id!r}, is not the name of a node in Kubernetes")
    twice = sorted(name for name, times in Counter(names.values()).items() if times > 1)
    if twice:
        raise ValueError(f"{twice[0]!r} is given for several node ids")
    return names


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """How nodes are called, and how long draining waits.

    Attributes:
        node_names: names of nodes in Kubernetes by our node ids; an id that is not in it stands for itself.
        has_short_names: ids stand for what is before their first dot.
        drain_wait_s: how long evictions that budgets forbid are asked again. Meanwhile no other command is carried out, so it
            is short: a minute is our judgement.
    """

    node_names: Mapping[str, str] = field(default_factory=dict)
    has_short_names: bool = False
    drain_wait_s: float = 60.0


class KubernetesHands:
    """Acts through an API server.

    Args:
        api: talks to it.
        settings: names and patience.
        clock_ns: wall time, nanoseconds since the epoch.
        wait_s: waits some seconds; true when this process is to end.
    """

    kinds = frozenset({"cordon_node", "drain_node", "uncordon_node"})

    def __init__(
        self,
        api: KubeApi,
        settings: KubernetesSettings,
        clock_ns: Callable[[], int],
        wait_s: Callable[[float], bool],
    ) -> None:
        self._api, self._settings = api, settings
        self._clock_ns, self._wait_s = clock_ns, wait_s

    def look(self, command: Command) -> State:
        """The node's state, and for a drain the pods that would have to go.

        Raises:
            TargetAwayError: the API server does not answer.
            ActFailedError: there is no such node, or the server refuses.
        """
        name = self._name(command)
        state: State = asdict(node_state(self._api.node(name)))
        state["pods"] = [pod.full_name for pod in self._to_go(name)] if _evicts(command) else []
        return state

    def judge(self, command: Command, state: State, owner: str | None) -> Judgement:
        """Whether a command may be carried out in a state."""
        node = _node_of(state)
        if command.kind == "uncordon_node":
            return _judge_release(command, node, owner)
        taint = taint_of(command)
        if taint is None:
            text = f"{plain_text(command.taint or '')!r} is no taint that may be set from here"
            return Judgement("refuse", "not_permitted", text)
        if not node.unschedulable:
            return Judgement("do", takes=command.target.key())
        # Of a drain that this process began and did not end.
        takes = command.target.key() if node.held_by == command.command_id else None
        if node.held_by is None or node.others or node.held_by not in {owner, command.command_id}:
            if state["pods"]:
                text = f"{_holder(node)} has taken the node out, and {len(state['pods'])} pods on it are theirs to move"
                return Judgement("refuse", "unexpected_state", text)
            return Judgement("already_so", text=f"{_holder(node)} has taken the node out already")
        if node.has(taint) and not state["pods"]:
            return Judgement("already_so", text=f"the node is held by {node.held_by} already", takes=takes)
        return Judgement("do", takes=takes)

    def act(self, command: Command, state: State) -> str:
        """Carry a command out.

        Raises:
            TargetAwayError: the API server does not answer; it may be tried again.
            PartlyDoneError: the node is held, and not all pods could be evicted.
            ActFailedError: the server refused, or the node is no longer as it was seen.
        """
        name = self._name(command)
        said = self._change(name, command, _node_of(state))
        return f"{said}; {self._drain(name, command)}" if _evicts(command) else said

    def has_taken_effect(self, command: Command, before: State, after: State) -> bool | None:
        """Whether an act that was begun took effect; None when the states cannot tell."""
        was, now = _node_of(before), _node_of(after)
        if command.kind == "uncordon_node":
            if now.held_by is None and not now.unschedulable:
                return True
            return False if now.is_as(was) else None
        taint = taint_of(command)
        holders = {command.command_id, was.held_by if was.unschedulable else command.command_id}
        is_held = now.unschedulable and not now.others and now.held_by in holders
        if is_held and taint is not None and now.has(taint):
            return not after["pods"]
        if now.held_by == command.command_id and not _evicts(command):
            # Somebody has given it back since.
            return True
        return False if now.is_as(was) else None

    def _change(self, name: str, command: Command, expected: NodeState) -> str:
        """Hold or release a node that is as expected; what was done."""
        for _ in range(_CHANGE_TRIES):
            node = self._api.node(name)
            seen = node_state(node)
            if _is_done(command, seen):
                # By an earlier try, of which the answer did not come.
                return "done before"
            if not seen.is_as(expected):
                raise ActFailedError("somebody has changed the node since it was looked at")
            if command.kind == "uncordon_node":
                change = release_change(node)
            else:
                taint = taint_of(command)
                assert taint is not None, "judged before"
                change = hold_change(node, command, taint)
                if not change["spec"]:
                    return f"held by {seen.held_by} already"
            try:
                self._api.patch_node(node, change)
            except ChangedError:
                continue
            return "given back" if command.kind == "uncordon_node" else f"cordoned, tainted {taint_of(command)}"
        raise ActFailedError(f"the node was changed by others {_CHANGE_TRIES} times in a row")

    def _drain(self, name: str, command: Command) -> str:
        """Evict what is on a held node; what was done.

        Raises:
            PartlyDoneError: not everything could be.
            ActFailedError: somebody has given the node back meanwhile.
        """
        until_ns = min(command.expires_at_ns - _REACH_NS, self._clock_ns() + int(self._settings.drain_wait_s * _NANO))
        evicted: set[str] = set()
        while True:
            try:
                self._check_held(name, len(evicted))
                blocked = self._evict_all(name, evicted, until_ns)
            except TargetAwayError as error:
                # Not told to the actuator as such: the node is held by now, and owned.
                blocked = [str(error)]
            if not blocked:
                return f"{len(evicted)} pods evicted"
            why = f"{len(evicted)} pods evicted, {_some(blocked)}; the node stays out"
            if self._wait_s(_AGAIN_S):
                raise PartlyDoneError("blocked", f"this actuator was told to end: {why}")
            if self._clock_ns() >= until_ns:
                raise PartlyDoneError("blocked", why)

    def _check_held(self, name: str, evicted: int) -> None:
        """Raise unless the node that is drained is still held from here."""
        node = node_state(self._api.node(name))
        if not node.unschedulable or node.held_by is None or node.others:
            raise ActFailedError(f"somebody has taken the node over after {evicted} evictions")

    def _evict_all(self, name: str, evicted: set[str], until_ns: int) -> list[str]:
        """Ask for each pod that is to go, until a time; why which of them stays for now."""
        try:
            pods = self._to_go(name)
        except ActFailedError as error:
            raise PartlyDoneError("act_failed", f"{error}; the node stays out") from None
        lonely = [pod.full_name for pod in pods if pod.controller is None]
        if lonely:
            text = f"nothing would start {_some(lonely)} again, so nothing is evicted; the node stays out"
            raise PartlyDoneError("blocked", text)
        blocked = []
        for pod in pods:
            if self._clock_ns() >= until_ns:
                blocked.append(f"{pod.full_name}: the time for it is over")
                continue
            try:
                self._api.evict(pod)
            except NoSuchObjectError:
                continue
            except (NotNowError, ChangedError) as error:
                blocked.append(f"{pod.full_name}: {error}")
                continue
            except ActFailedError as error:
                text = f"{len(evicted)} pods evicted, {pod.full_name}: {error}; the node stays out"
                raise PartlyDoneError("act_failed", text) from None
            evicted.add(pod.uid)
        return blocked

    def _to_go(self, name: str) -> list[Pod]:
        """Pods that a drain has to evict: not those of DaemonSets, which come back at once, nor what ends or has ended."""
        return [
            pod
            for pod in self._api.pods_on(name)
            if not (pod.is_mirror or pod.is_finished or pod.is_ending or pod.controller == "DaemonSet")
        ]

    def _name(self, command: Command) -> str:
        node_id = command.target.node_id or ""
        name = self._settings.node_names.get(node_id)
        if name is None:
            name = node_id.split(".", 1)[0] if self._settings.has_short_names else node_id
        if not is_node_name(name):
            raise ActFailedError(f"{plain_text(name)!r} is not the name of a node in Kubernetes")
        return name


def _evicts(command: Command) -> bool:
    return command.kind == "drain_node" and command.when == "now"


def _node_of(state: State) -> NodeState:
    """The node's part of a state, which may have been written down and read again."""
    return NodeState(
        state["uid"],
        state["unschedulable"],
        tuple(state["taints"]),
        state["held_by"],
        state["hold"],
        tuple(state["others"]),
    )


def _is_done(command: Command, node: NodeState) -> bool:
    if command.kind == "uncordon_node":
        return not node.unschedulable and node.held_by is None
    return node.unschedulable and node.held_by == command.command_id and not node.others


def _judge_release(command: Command, node: NodeState, owner: str | None) -> Judgement:
    if node.held_by is None and not node.unschedulable:
        return Judgement("already_so", text="the node is in service already", gives_back=command.target.key())
    if owner is None or node.held_by is None:
        return Judgement("refuse", "not_ours", f"the node was not taken out from here, but by {_holder(node)}")
    if node.held_by != owner or node.others:
        return Judgement("refuse", "not_ours", f"{_holder(node)} has taken the node over")
    if node.added is None:
        return Judgement("refuse", "not_ours", "somebody has changed what is written on the node of how it was before")
    return Judgement("do", gives_back=command.target.key())


def _holder(node: NodeState) -> str:
    """Who holds a node out, as far as one can see."""
    if node.others:
        return plain_text(" and ".join(node.others))
    return plain_text(f"command {node.held_by}") if node.held_by is not None else "somebody else"


def _some(texts: list[str]) -> str:
    more = len(texts) - _NAMED_AT_MOST
    return "; ".join(texts[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")

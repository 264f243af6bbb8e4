"""Which mode a site's policy wants for a kind of command at a place: `observe`, `approve` or `auto`.

The mode of the kind, else that of the site. Scopes change it where all that they name fits; of several that fit the strictest
counts, so that a scope added later cannot open what another one closed. Pure; nothing is held back here.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.fleet import ModeScope, Node, Policy

__all__ = ["Mode", "wanted_mode"]

Mode = Literal["observe", "approve", "auto"]
_STRICTNESS: dict[str, int] = {"observe": 0, "approve": 1, "auto": 2}


def wanted_mode(policy: Policy | None, kind: str, node_id: str | None, jobs: Sequence[str], node: Node | None) -> Mode:
    """The mode of a kind of command at a place.

    Args:
        policy: the site's; without one nothing but `observe` is wanted.
        kind: of the command.
        node_id: the node that it is about, if there is one.
        jobs: jobs that run there, or the job that it is about.
        node: what is registered of the node.
    """
    if policy is None:
        return "observe"
    fitting: list[Mode] = [scope.mode for scope in policy.scopes if _fits(scope, kind, node_id, jobs, node)]
    if fitting:
        return min(fitting, key=_STRICTNESS.__getitem__)
    return policy.mode_by_kind.get(kind, policy.mode)


def _fits(scope: ModeScope, kind: str, node_id: str | None, jobs: Sequence[str], node: Node | None) -> bool:
    """Whether all that a scope names fits; what is unknown fits nothing that is named."""
    if scope.kinds and kind not in scope.kinds:
        return False
    if scope.nodes and (node_id is None or not any(fnmatch.fnmatchcase(node_id, name) for name in scope.nodes)):
        return False
    if scope.racks and (node is None or node.rack not in scope.racks):
        return False
    if scope.zones and (node is None or node.zone not in scope.zones):
        return False
    return not scope.jobs or bool(set(scope.jobs) & set(jobs))

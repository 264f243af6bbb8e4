"""Which findings are explained by which component, so that a component is well again when its last finding is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Explained"]


class Explained:
    """Standing findings by id, each with the component that explains it."""

    def __init__(self) -> None:
        self._component_of: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether any finding is explained."""
        return bool(self._component_of)

    def __contains__(self, finding_id: str) -> bool:
        """Whether a finding is explained."""
        return finding_id in self._component_of

    def join(self, finding_id: str, component: str) -> None:
        """A component explains a finding."""
        self._component_of[finding_id] = component

    def leave(self, finding_id: str) -> str | None:
        """A finding was cleared: the component that is well again by that, if any."""
        component = self._component_of.pop(finding_id, None)
        return component if component is not None and component not in self._component_of.values() else None

    @property
    def components(self) -> frozenset[str]:
        """Components that explain a standing finding."""
        return frozenset(self._component_of.values())

    def rename(self, component: str, to: str) -> None:
        """A component goes on under another name."""
        self._component_of = {name: to if of == component else of for name, of in self._component_of.items()}

    def snapshot(self) -> dict[str, str]:
        """Plain data that `restore` takes."""
        return dict(sorted(self._component_of.items()))

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """Replace the state by a snapshot's."""
        self._component_of = dict(snapshot)

"""PCIe link of a NIC: a port whose card is connected to the node by fewer lanes than it could be. An observation only.

A link that has lost half its lanes caps what the port can carry below the rate of its cable, and no counter of the port
says so. The width does not vary with load; the generation is carried along and not judged, because whether a card is at
work cannot be read off its link. A card that is gone reads as width 63 and changes nothing here.

Cannot see a card that is slow behind a whole link (another NUMA node, IOMMU, ACS).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.edges import EdgeState
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.detectors.pcie_reading import read_pcie
from streams.detectors.port_frames import peer_of, port_rows, port_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import FabricFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster
    from streams.detectors.pcie_reading import PcieReading

__all__ = ["RULE", "NicPcieLink", "NicPcieLinkThresholds"]

RULE = "nic_pcie_link"


@dataclass(frozen=True, slots=True)
class NicPcieLinkThresholds:
    """Thresholds of the rule.

    Attributes:
        width_hits: samples in a row in which the width must be below its maximum; two pass over one misread.
    """

    width_hits: int = 2


class _CardLink(SubjectState):
    __slots__ = ("edge", "first_ns", "found_at_start", "narrow", "was_whole")

    def __init__(self) -> None:
        self.was_whole = False
        self.found_at_start = False
        self.narrow = 0
        self.first_ns = 0
        self.edge = EdgeState()

    def is_quiet(self, now_ns: int) -> bool:
        return not self.narrow and self.edge.is_quiet(now_ns)


class NicPcieLink(FrameRule["FabricFrame"]):
    """Watches the PCIe links of many nodes' NICs."""

    columns = ("pcie_link_width", "pcie_max_link_width", "pcie_link_gen", "pcie_max_link_gen")

    def __init__(self, site_id: str, defaults: NicPcieLinkThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or NicPcieLinkThresholds(), RULE)
        self._states = KeyedRows(_CardLink)

    def on_frame(self, frame: FabricFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time."""
        if frame.pcie_link_width is None or frame.pcie_max_link_width is None:
            return
        rows = port_rows(self._states, frame)
        said = (
            frame.pcie_link_width,
            frame.pcie_max_link_width,
            frame.pcie_link_gen,
            frame.pcie_max_link_gen,
            roster.policy,
        )
        if rows.stand_still(frame.agent_session, frame.event_time_ns, said):
            return
        limits = self._limits.of(roster.policy)
        for index in range(len(frame.device)):
            link = read_pcie(frame, index)
            if link is not None and link.width is not None and link.max_width is not None:
                yield from self._card(frame, index, rows[index], link, limits, evidence)
        rows.rest(if_also=limits.width_hits > 0)

    def _card(
        self,
        frame: FabricFrame,
        index: int,
        state: _CardLink,
        link: PcieReading,
        limits: NicPcieLinkThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        now_ns = frame.event_time_ns
        if not link.is_narrow:
            state.narrow, state.was_whole = 0, True
        elif not state.narrow:
            state.narrow, state.first_ns = 1, now_ns
        else:
            state.narrow = min(state.narrow + 1, max(limits.width_hits, 1))
        edge = state.edge.update(now_ns, state.narrow >= limits.width_hits, state.first_ns or None)
        if edge is None:
            return
        if edge == "open":
            state.found_at_start = not state.was_whole
        onset_ns = state.edge.tell(edge)
        speeds = link.speeds(link.max_generation or link.generation)
        lost = speeds["gb_per_s_lost"]
        yield self._rule.finding(
            RULE,
            port_subject(frame, index),
            state=edge,
            severity="info",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"the card's PCIe link is {link.words}, could be {link.words_at_best}"
            + (f": {lost:.1f} GB/s lost" if lost is not None else "")
            + (", found at start" if state.found_at_start else "")
            if edge == "open"
            else f"the card's PCIe link is back at {link.words}",
            values={
                "link_width": link.width,
                "max_link_width": link.max_width,
                "link_gen": link.generation,
                "max_link_gen": link.max_generation,
                **speeds,
                "rate_gbps": frame.rate_gbps[index] if frame.rate_gbps is not None else None,
                "found_at_start": state.found_at_start,
                "pci_bus_id": frame.pci_bus_id[index] if frame.pci_bus_id is not None else None,
                "view": frame.view,
                "peer": peer_of(frame, index),
            },
            evidence=evidence,
        )

    def resting(self, frame: FabricFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        if frame.pcie_link_width is None or frame.pcie_max_link_width is None:
            return ()
        return all_at_rest(self._states.at_rest((frame.publisher_id,)))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)

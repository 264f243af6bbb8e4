"""What a frame says of the PCIe link of a device, a GPU or a NIC, and what such a link carries.

A device that is gone reads as width 63 and generation 0: that is no link, and never a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from schemas.frames import FabricFrame, GpuFrame

__all__ = ["LOST_WIDTH", "PcieReading", "gigabytes_per_s", "read_pcie"]

_GB_PER_S_AND_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One direction, after line coding, by generation (PCI-SIG's transfer rates: 8b/10b, 128b/130b, from Gen6 on flits)."""

LOST_WIDTH = 63
"""Lanes of a device that is gone: all ones."""


class PcieReading(NamedTuple):
    """One reading of a link that is there; None is unknown."""

    width: int | None
    generation: int | None
    max_width: int | None
    max_generation: int | None

    @property
    def is_narrow(self) -> bool:
        """Whether it has fewer lanes than it could."""
        return self.width is not None and self.max_width is not None and self.width < self.max_width

    @property
    def is_low(self) -> bool:
        """Whether it has a lower generation than it could."""
        return self.generation is not None and self.max_generation is not None and self.generation < self.max_generation

    @property
    def words(self) -> str:
        """The link as people write it, as `Gen5 x8`."""
        return f"Gen{self.generation} x{self.width}".replace("None", "?")

    @property
    def words_at_best(self) -> str:
        """Likewise what it could be."""
        return f"Gen{self.max_generation or '?'} x{self.max_width or '?'}"

    def speeds(self, judged: int | None) -> dict[str, float | None]:
        """What the link carries, could carry and loses in one direction, in GB/s, by name; None for what is not known.

        Args:
            judged: the generation that counts as the present one; an idle link's own says nothing of what it can carry.
        """
        carries = gigabytes_per_s(judged, self.width)
        could_carry = gigabytes_per_s(self.max_generation or judged, self.max_width)
        lost = could_carry - carries if carries is not None and could_carry is not None else None
        return {"gb_per_s": carries, "max_gb_per_s": could_carry, "gb_per_s_lost": lost}


def gigabytes_per_s(generation: int | None, lanes: int | None) -> float | None:
    """What a link carries in one direction, in GB/s; None for what is not known, a device that is gone among it."""
    per_lane = _GB_PER_S_AND_LANE.get(generation or 0)
    return per_lane * lanes if per_lane is not None and lanes and lanes != LOST_WIDTH else None


def read_pcie(frame: GpuFrame | FabricFrame, index: int) -> PcieReading | None:
    """The link of a frame's device, as far as known; None where nothing is, or for a device that is gone."""
    width, generation = _number(frame.pcie_link_width, index), _number(frame.pcie_link_gen, index)
    if width in {0, LOST_WIDTH} or generation == 0 or (width is None and generation is None):
        return None
    max_width, max_generation = _number(frame.pcie_max_link_width, index), _number(frame.pcie_max_link_gen, index)
    return PcieReading(
        width, generation, max_width if max_width not in {0, LOST_WIDTH} else None, max_generation or None
    )


def _number(column: tuple[int | None, ...] | None, index: int) -> int | None:
    number = column[index] if column is not None else None
    return int(number) if number is not None else None

"""The statistics of a network interface, as `ethtool -S` has them: by ioctl, or from the program.

Guarantees: the ioctl costs two system calls and no process; it needs no privilege, and reads the interfaces of the
network namespace that this process is in. The buffer has room for `MOST_STATISTICS`: the kernel writes as many numbers
as the driver has at that moment, whatever the caller expected. Names are the driver's; nothing is chosen here.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import socket
import struct
from collections.abc import Callable

from agents.collectors.program import run_program

__all__ = ["MOST_STATISTICS", "EthtoolIoctl", "EthtoolRunner", "run_ethtool"]

EthtoolRunner = Callable[[str], str]
"""Standard output of `ethtool -S` for an interface; raises `ProgramError`."""

MOST_STATISTICS = 1 << 16
"""Room for numbers of one interface; mlx5 with 128 channels has some 8,000. Pages that are not used are never made."""

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_STATISTICS_SET = 1  # ETH_SS_STATS
_NAME_BYTES = 32
_NUMBER_BYTES = 8
_HEAD_BYTES = 16  # the longest head of the three structures
_NO_STATISTICS = frozenset({errno.EOPNOTSUPP, errno.EINVAL})
_LONGEST_INTERFACE = 15


def run_ethtool(interface: str, timeout_s: float = 2.0) -> str:
    """Standard output of `ethtool -S`.

    Raises:
        ProgramError: the program cannot be run, failed or took too long.
    """
    return run_program(["ethtool", "-S", interface], timeout_s).decode("utf-8", "replace")


class EthtoolIoctl:
    """Asks the kernel. For one thread; the memory and the socket are made at the first call."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._address = 0
        self._socket: socket.socket | None = None

    def name_block(self, interface: str) -> bytes:
        """The names of an interface's statistics as the kernel gives them: 32 bytes each, in the order of the numbers.

        Returns:
            Nothing where the driver has no statistics.

        Raises:
            OSError: there is no such interface, or the kernel does not answer this call.
        """
        memory = self._mapped()
        # struct ethtool_sset_info: cmd, reserved, sset_mask; behind it the number of names of each set in the mask.
        struct.pack_into("=IIQI", memory, 0, _GSSET_INFO, 0, 1 << _STATISTICS_SET, 0)
        if not self._call(interface):
            return b""
        _, _, mask, count = struct.unpack_from("=IIQI", memory)
        if not mask or not count:
            return b""
        if count > MOST_STATISTICS:
            raise OSError(errno.E2BIG, f"{interface} has {count} statistics, more than {MOST_STATISTICS}")
        # struct ethtool_gstrings: cmd, string_set, len; behind it the names.
        struct.pack_into("=III", memory, 0, _GSTRINGS, _STATISTICS_SET, count)
        if not self._call(interface):
            return b""
        (count,) = struct.unpack_from("=I", memory, 8)
        return bytes(memory[12 : 12 + min(count, MOST_STATISTICS) * _NAME_BYTES])

    def numbers(self, interface: str, count: int) -> tuple[int, ...] | None:
        """The numbers behind the names.

        Args:
            interface: which.
            count: how many there were names.

        Returns:
            None when the driver has another number of them by now.

        Raises:
            OSError: as above.
        """
        memory = self._mapped()
        # struct ethtool_stats: cmd, n_stats; behind it the numbers.
        struct.pack_into("=II", memory, 0, _GSTATS, count)
        if not self._call(interface):
            return None
        (given,) = struct.unpack_from("=I", memory, 4)
        return struct.unpack_from(f"={count}Q", memory, 8) if given == count else None

    def _mapped(self) -> mmap.mmap:
        if self._memory is None:
            self._memory = mmap.mmap(-1, _HEAD_BYTES + MOST_STATISTICS * max(_NAME_BYTES, _NUMBER_BYTES))
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        return self._memory

    def _call(self, interface: str) -> bool:
        """Hand the memory to the kernel; False if the driver has no statistics."""
        name = interface.encode()
        if len(name) > _LONGEST_INTERFACE:
            raise OSError(errno.ENODEV, f"no interface has a name of {len(name)} bytes")
        if self._socket is None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # struct ifreq: the interface's name, and a union of 24 bytes of which the first is our pointer.
        request = bytearray(struct.pack("=16s24x", name))
        struct.pack_into("@P", request, 16, self._address)
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, request)
        except OSError as error:
            if error.errno in _NO_STATISTICS:
                return False
            raise
        return True


def names_in(block: bytes) -> tuple[str, ...]:
    """The names in a block of 32 bytes each; one without a name is empty and keeps its place."""
    return tuple(
        block[start : start + _NAME_BYTES].partition(b"\0")[0].decode("utf-8", "replace").strip()
        for start in range(0, len(block), _NAME_BYTES)
    )

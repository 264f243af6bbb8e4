"""Kernel lines of every shape that the decoder knows, from a seeded generator: all transports, all events, and cut lines.

Wordings follow public driver and kernel source. A line is told with the kind of record that it must give, or None where
it must give none; cut and garbled lines have no expectation beyond that nothing is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

__all__ = ["Shaped", "garbled", "payload", "shaped", "shapes"]


@dataclass(frozen=True)
class Shaped:
    """A line, the kind that it must give (None for none), and whether it must be trusted."""

    text: str
    kind: str | None
    trusted: bool = True


def shapes(random: Random, count: int) -> Iterator[Shaped]:
    """Lines of all shapes, at random."""
    for _ in range(count):
        yield shaped(random)


def shaped(random: Random) -> Shaped:
    """A line: a payload with a transport's prefix."""
    text, kind = payload(random)
    transport = random.choice(_TRANSPORTS)
    prefix, trusted = transport(random)
    return Shaped(f"{prefix}{text}", kind, trusted)


def garbled(random: Random) -> str:
    """A line that was cut, spliced with another, or has bytes exchanged."""
    text = shaped(random).text or "\0"
    choice = random.randrange(4)
    if choice == 0:
        return text[: random.randrange(len(text) + 1)]
    if choice == 1:
        return text[random.randrange(len(text) + 1) :] + shaped(random).text
    letters = list(text)
    for _ in range(1 + random.randrange(5)):
        at = random.randrange(len(letters))
        letters[at] = chr(random.choice((0, 7, 9, 27, 34, 40, 44, 58, 59, 91, 123, 178, 0x2028, 0xFFFD, 0x1F600)))
    if choice == 2:
        return "".join(letters)
    return "".join(letters) * 3


def payload(random: Random) -> tuple[str, str | None]:
    """What a driver says, and the kind of record that it gives."""
    return random.choice(_PAYLOADS)(random)


def _address(random: Random) -> str:
    domain = random.choice(("0000", "0000", "0002", "0009", "10002"))
    return f"{domain}:{random.randrange(256):02x}:{random.randrange(32):02x}"


def _owner(random: Random) -> str:
    return random.choice(
        (
            "",
            "pid='<unknown>', name=<unknown>, ",
            f"pid={random.randrange(1, 4_000_000)}, ",
            f"pid={random.randrange(1, 4_000_000)}, name={random.choice(_NAMES)}, ",
        )
    )


_NAMES = ("python3", "nvc:[driver]", "ray::WorkerDict", "vf#0:0", "Web Content", "python3.10", "swapper/0")
_XID_TEXTS = (
    (13, "Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter"),
    (31, "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000."),
    (43, "Ch 00000010"),
    (45, "Ch 00000010, engmask 00000101, intr 00000000, caused by previous Xid 31"),
    (48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 16."),
    (62, "203c(3090) 85020c09 ffffbd53"),
    (63, "Row Remapper: New row (0x0000000000abc123) marked for remapping, reset gpu to activate."),
    (64, "Row Remapper Error: (0x0000000000abc123) - All reserved rows for bank are remapped"),
    (74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"),
    (79, "GPU has fallen off the bus."),
    (79, ""),
    (94, "Contained: SM (0x1). RST: No, D-RST: No"),
    (
        119,
        "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2 0x58c).",
    ),
    (145, "RLW_SRC_TRACK Nonfatal XC0 i0 Link 08 (0x00000004 0x0  0x00000000)"),
    (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
    (99999, "words that nobody knows"),
)


def _xid(random: Random) -> tuple[str, str | None]:
    code, text = random.choice(_XID_TEXTS)
    mig = random.choice(("", "", " GPU-I:07", " GPU-I:07 GPU-CI:00"))
    return f"NVRM: Xid (PCI:{_address(random)}{mig}): {code}, {_owner(random)}{text}", "xid"


def _sxid(random: Random) -> tuple[str, str | None]:
    text = random.choice(
        (
            f"Fatal, Link {random.randrange(64):02d} LTSSM Fault Up",
            f"Non-fatal, Link {random.randrange(64):02d} egress non-posted PRIV error (First)",
            "Severity 1 Engine instance 60 Sub-engine instance 00",
            "Data {0x00000001, 0x00000000}",
            "SOE HALT data[0] = 0x               0",
        )
    )
    colon = random.choice((":", ""))
    switch, code = random.randrange(6), random.choice((20034, 12028, 22013, 28002))
    return f"nvidia-nvswitch{switch}{colon} SXid (PCI:{_address(random)}.0): {code}, {text}", "sxid"


def _fabric_manager(random: Random) -> tuple[str, str | None]:
    error = f"detected NVSwitch {random.choice(('fatal', 'non-fatal'))} error 20034"
    switch = f"NVSwitch pci bus id 0000{_address(random)[-10:]}.0"
    return f"{error} on fid 0 on {switch} physical id 3 port {random.randrange(64)}", "sxid"


def _nic(random: Random) -> tuple[str, str | None]:
    address = f"{_address(random)}.{random.randrange(2)}"
    interface = random.choice(("enp1s0f0np0", "ens3f1", "eth12", "ib0"))
    state = random.choice(("Down", "down", "Up", "up"))
    return (
        random.choice(
            (
                f"mlx5_core {address}: poll_health:825:(pid 0): Fatal error {random.randrange(9)} detected",
                f"mlx5_core {address}: poll_health:971:(pid 0): device's health compromised - reached miss count",
                f"mlx5_core {address} {interface}: Link {state.lower()}",
                f"mlx5_core {address}: Port module event[error]: module 0, Cable error, Bus stuck",
                f"mlx5_core {address}: Port module event: module 1, Cable unplugged",
                f"mlx5_core {address}: temp_warn:171:(pid 0): High temperature on sensors with bit set 0 1",
                f"mlx5_core {address}: wait_func:1195:(pid 7): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
                f"bnxt_en {address} {interface}: NIC Link is {state}",
                f"ice {address} {interface}: NIC Link is {state}",
                f"igb {address} {interface}: igb: {interface} NIC Link is {state}",
                f"NETDEV WATCHDOG: {interface} (ice): transmit queue 3 timed out",
                f"bond0: (slave {interface}): link status definitely down, disabling it",
            )
        ),
        "nic",
    )


def _aer(random: Random) -> tuple[str, str | None]:
    address, other = f"{_address(random)}.0", f"{_address(random)}.0"
    severity = random.choice(
        ("Corrected", "Correctable", "Uncorrected (Non-Fatal)", "Uncorrectable (Fatal)", "Uncorrectable (Non-Fatal)")
    )
    return (
        random.choice(
            (
                f"pcieport {address}: AER: {severity} error message received from {other}",
                f"pcieport {address}: AER: Multiple {severity} error received: {other}",
                f"pcieport {address}: AER: Corrected error received: id=00e8",
                f"nvidia {address}: PCIe Bus Error: severity={severity}, type=Physical Layer, (Receiver ID)",
                f"pcieport {address}: PCIe Bus Error: severity={severity}, type=Data Link Layer, id=0008(Transmitter ID)",
                f"nvidia {address}:    [ 0] RxErr                  (First)",
                f"pcieport {address}:    [12] Replay Timer Timeout  ",
                f"pcieport {address}: AER: device recovery {random.choice(('failed', 'successful'))}",
                f"pcieport {address}: DPC: containment event, status:0x1f01 source:0x0000",
                f"pcieport {address}: pciehp: Slot(4): Link Down",
            )
        ),
        "aer",
    )


def _other(random: Random) -> tuple[str, str | None]:
    return (
        random.choice(
            (
                "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
                "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
                f"mlx5_core {_address(random)}.0: firmware version: 28.39.1002",
                "ata1: SATA link down (SStatus 0 SControl 300)",
                "app[77]: NVRM: Xid (PCI:0000:1a:00): 79, quoted by a program",
                f"NVRM: GPU at PCI:{_address(random)}: GPU-00000000-1111-2222-3333-444444444444",
                f"nvidia {_address(random)}.0:   device [10de:2330] error status/mask=00000001/0000e000",
                "",
            )
        ),
        None,
    )


_PAYLOADS: tuple[Callable[[Random], tuple[str, str | None]], ...] = (
    *(_xid, _xid, _xid, _sxid, _fabric_manager, _nic, _nic, _aer, _aer, _other),
)


def _kmsg(random: Random) -> tuple[str, bool]:
    priority = random.choice((3, 4, 6, 4, 12, 14, 30))
    more = random.choice(("-", "c", "-,caller=T1234", "c,1,-"))
    return f"{priority},{random.randrange(10**9)},{random.randrange(10**13)},{more};", priority < 8


def _dmesg(random: Random) -> tuple[str, bool]:
    caller = random.choice(("", "[   T1946] ", "[    C12] "))
    return f"[{random.randrange(10**6):5d}.{random.randrange(10**6):06d}] {caller}", True


def _iso_columns(random: Random) -> tuple[str, bool]:
    facility = random.choice(("kern", "kern", "user", "daemon"))
    fraction = random.randrange(10**6)
    return f"{facility:6}:err   : 2025-01-25T10:34:{random.randrange(60):02d},{fraction:06d}+00:00 ", facility == "kern"


def _talos(random: Random) -> tuple[str, bool]:
    return f"192.0.2.11: kern: warning: [2026-04-22T21:30:{random.randrange(60):02d}.494604223Z]: ", True


_TRANSPORTS: tuple[Callable[[Random], tuple[str, bool]], ...] = (
    _kmsg,
    _kmsg,
    _kmsg,
    _dmesg,
    lambda random: (f"[Mon May  4 14:09:{random.randrange(60):02d} 2026] ", True),
    _iso_columns,
    lambda random: (f"<3>[{random.randrange(10**6)}.{random.randrange(10**6):06d}] ", True),
    lambda random: (f"May 19 07:08:{random.randrange(60):02d} node-1 kernel: [680111.646286] ", True),
    lambda random: (f"2015-04-14T19:59:{random.randrange(60):02d}.000083+00:00 node-1 kernel: ", True),
    lambda random: (f"Sep 09 12:24:{random.randrange(60):02d} node-1 kernel: ", True),
    _talos,
    lambda random: (f"[Feb 27 2025 15:10:{random.randrange(60):02d}] [ERROR] [tid 12727] ", True),
    lambda _: ("", True),
)

"""Words that say nothing about a site, because everybody chooses them or every driver prints them."""

from __future__ import annotations

import re
from functools import cache

from schemas import catalog
from streams.decisions.advice import ADVICE

__all__ = ["SYSTEM_PATHS", "driver_words", "is_common", "is_usual"]

_OF_SITES = """
default default_pg default_group undefined world global model data tensor pipeline context sequence expert intra inter node
actor critic rollout learner reference reward trainer generator worker policy value router
bf16 fp16 fp32 tf32 fp8 fp64 int8 mxfp8 mxfp4 nvfp4 fp4 half float double byte char short int long bool int16 int32 int64 uint8 float64 bfloat16 float16 float32 mixed detailed megatron palm
active down up init initialize armed polling disabled sleep unknown testing dormant lowerlayerdown notpresent
info app degraded fatal warning critical none gpu_reset node_reboot drain_p2p drain_and_reset recover_imex_domain
mlx4_core mlx4_en mlx5_core bnxt_en ice igb igc ixgbe i40e e1000 e1000e tg3 qede bonding pcieport pciehp
kernel-log journald fabric-manager-log nvml dcgm-exporter dcgmi-dmon flight-recorder-dumps nic trainer-log pcie host sonic
trainer trainer-socket dcgm kmsg fabric
nvidia.com/gpu-throttled:NoSchedule
"""
"""Groups and roles of ranks, precisions, states of links, severities, drivers, sources of an agent, taints."""

_OF_OPERATIONS = """
all reduce scatter gather to send recv isend irecv broadcast bcast barrier coalesced base into tensor tensors list v p2p batch batched
async sync op allreduce allgather alltoall alltoallv reducescatter sendrecv nccl rccl gloo mpi c10d start done
"""
"""Of what names of collectives are made; rules look for `send` and `recv` in them."""

_OF_KERNELS = """
a abort aborted access action address adress after aer agent and application argument at auto bad bank been below block
bonding both bridge bus but by cable cancelled card cause caused channel check cleared client clock code command
completed completion compute connected connection contained containment context control corrected correctable could
count counter critical cuda current data deassert definitely degraded detected device disabled disabling domain done down
dpc drain driver due during ecc engine error errors event exception exceeded expected external failed failure fallen
fan fatal fault firmware first flow for found frame from full function gpc gpu graphics gsp handling hardware has have
health heartbeat high host hotplug hung idle in inband info information init initialization initialized insufficient
interface internal interrupt into invalid ip is issue its kernel layer legacy limit link links lost low machine malformed
mask masked memory message method missing mmu mode module multiple name ncl netdev nic no node non none normal not
notice now null nvidia nvlink nvrm nvswitch occurred of off offline ok on on-die online operation or order out overflow page pages
parity partition pci pcie pciehp pcieport pending permanently phy physical pid plugged pmu poisoned pool port power
present previous process protocol queue queues ras reached read ready reason received receiver recover recovered recovery
rejected remap remapped remapping remove removed replay repair request required reset reserved response restart
retired retirement retry return rev risk rollover row rows rpc running sbe sensors sequence service set severity slave slot
source speed state status stopped succeeded success successful surprise switch syndrome sxid synd system table
temperature test than the there this threshold throttle time timed timeout timer tlp to too total training transaction
transmit trap tx type uncontained uncorrectable uncorrected unable under unexpected unit unknown unplugged unrecoverable
unsupported up upstream usable value vendor version virtual volatile waiting warning was watchdog while width will with
without write wrong xid zero reboot lane lanes lpwr rx rxerr badtlp baddllp cmplto unsupreq ch chid chan class esr
bnxt ice igb igc ixgbe i40e e1000 e1000e tg3 qede mlx4 mlx5 core en uncorr corr nonfatal id inst instance subinstance sw hw fw ue ce dbe sram dram hbm ltc l2
mellanox nvl rdma roce infiniband ethernet bond primary active inactive backup carrier speed duplex
"""
"""What kernels and drivers print about devices and links."""

_OF_RULES = """
slower faster than its their peers factor rank ranks thermal violation same on by progress dumps explained incident training step steps
job jobs node nodes waits waiting busy pause frames received transmitted transmits receives stopped below above best hour slowdown over
reference own flat groups transfers take took longer some few recorded name anybody again target trailing minute hangs
"""
"""Of what rules make most of their texts."""

_PATHS = "/ /boot /data /dev/shm /home /local /mnt /opt /root /run /scratch /tmp /var /var/lib /var/log /var/tmp"
SYSTEM_PATHS = frozenset(_PATHS.split())
"""Paths that every host may have."""

_USUAL = frozenset(_OF_SITES.split())
_OPERATION_WORDS = frozenset(_OF_OPERATIONS.split())
_DEGREES = re.compile(
    r"(?:mesh_)?(?:v?pp|dp|tp|cp|ep|sp|etp|edp|p2p|zero\d?|fsdp|ddp|hsdp|moe|embd|position|shard|replicate)"
    r"(?:[_\-/](?:dp|tp|cp|ep|sp|pp|etp|edp|fsdp|shard|replicate|cp_ag|with|without|group|intra|inter|\d+))*",
    re.IGNORECASE,
)
_FIGURES = re.compile(r"float8_e\dm\d(?:fn)?(?:uz)?|[\d.,\-/]{1,32}|\d{1,2}N(?:\+\d{1,2}[A-Z]{1,6}){0,3}")
"""Figures, and conventions of counting such as `6N+12LHQT`."""


def is_usual(word: str) -> bool:
    """Whether a word may stand in a redacted archive as it is."""
    if word in _USUAL or word.lower() in _USUAL:
        return True
    if _DEGREES.fullmatch(word) is not None or _FIGURES.fullmatch(word) is not None:
        return True
    return all(part in _OPERATION_WORDS for part in re.split(r"[_:.\-]+", word.lower().strip("_")))


@cache
def driver_words() -> frozenset[str]:
    """Words of kernels and drivers in small letters, with those of the error catalogues."""
    named = [(entry.name, entry.mnemonic) for entry in catalog.xids().values()]
    named += [(entry.name, entry.mnemonic) for entry in catalog.sxids().values()]
    words = (word for name, mnemonic in named for word in re.findall(r"[a-z]+", f"{name} {mnemonic or ''}".lower()))
    return frozenset({*_OF_KERNELS.split(), *words})


def is_common(word: str) -> bool:
    """Whether texts say a word whatever a site is called.

    Were it renamed there because something has it for a name, the sentence around it would tell the name.
    """
    return word.lower() in _common_words()


@cache
def _common_words() -> frozenset[str]:
    advice = (word for text in ADVICE.values() for word in re.findall(r"[a-z]+", text.lower()))
    return frozenset({*driver_words(), *_OF_RULES.split(), *advice})

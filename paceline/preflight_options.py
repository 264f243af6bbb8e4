"""What the command line of `paceline preflight` says, apart from which checks are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agents.preflight.bisection import BisectionLimits
from agents.preflight.gemm import GemmLimits

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NodeOptions", "PairsOptions"]


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How the node is measured.

    Attributes:
        gpus: how many there should be; None if nobody said.
        torch_python: the interpreter that has PyTorch.
        gemm_seconds: how long GPUs multiply.
        gemm: when one multiplies too slowly.
        nccl_program: nccl-tests' all_reduce_perf.
        nccl_floor_gb_s: what an all-reduce of this node's GPUs must reach (GB/s); None for no such figure.
    """

    gpus: int | None = None
    torch_python: str = "python3"
    gemm_seconds: float = 5.0
    gemm: GemmLimits = field(default_factory=GemmLimits)
    nccl_program: str = "all_reduce_perf"
    nccl_floor_gb_s: float | None = None


@dataclass(frozen=True, slots=True)
class PairsOptions:
    """What the command line says of the pairs; what is None comes from Slurm's variables.

    Attributes:
        rank: this process's number.
        nodes: how many processes there are, one a node.
        rendezvous: `HOST:PORT` where rank 0 listens.
        token_file: holds the secret that all share.
        address: where the others reach this node.
        backend: `auto`, `nccl` or `sockets`.
        mebibytes: about how large a buffer is.
        repeats: how many all-reduces count.
        join_s: how long to wait for all.
        measure_s: how long a round may take.
        throttle_mb_s: holds this node's sending, for a drill (MB/s).
        nccl_launcher: what starts a program on two nodes.
        limits: when somebody is named.
    """

    rank: int | None = None
    nodes: int | None = None
    rendezvous: str | None = None
    token_file: Path | None = None
    address: str | None = None
    backend: str = "auto"
    mebibytes: float = 64.0
    repeats: int = 5
    join_s: float = 120.0
    measure_s: float = 120.0
    throttle_mb_s: float | None = None
    nccl_launcher: str | None = None
    limits: BisectionLimits = field(default_factory=BisectionLimits)

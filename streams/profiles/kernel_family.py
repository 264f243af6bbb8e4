"""The family of a GPU kernel by its name, and whether that family works on tensor cores or waits for memory.

Guarantees: one word per name, from a list in order; a name that no line knows is `other`, never a guess. Names are
those of cuBLAS, CUTLASS, cuDNN, FlashAttention, Triton and PyTorch, of Tensile, Composable Kernel and AITER on AMD.
Deliberately not: what a kernel did. A name says which instructions it was built for, not how well it kept them busy.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MEMORY_FAMILIES", "TENSOR_FAMILIES", "family_of"]

_NAMED: Final = (
    # Libraries that move data between GPUs without NCCL: not counted as communication, but no computation either.
    (
        "other_communication",
        r"nvshmem|deep_?ep|cross_device_reduce|multimem_|(?:one|two)_shot_all_reduce|symm_mem",
    ),
    ("attention", r"flash_|flash::|flashattn|fmha|_attn_(?:fwd|bwd)|attention|sdpa|paged_attn"),
    ("grouped_matmul", r"group(?:ed)?_?gemm|moe_?gemm|fused_moe|ptr_array.*gemm"),
    # cuDNN's convolutions share cuBLAS's words, so they come first.
    (
        "convolution_tensor",
        r"(?:fprop|dgrad|wgrad|conv).*(?:tensorop|1688|16816|884|xmma|hmma|imma)|(?:xmma|tensorop).*(?:fprop|dgrad|wgrad)",
    ),
    ("convolution", r"conv(?:olve|olution|_|\d)|winograd|fprop|dgrad|wgrad|miopen|_igemm|implicit_gemm"),
    ("matmul_simt", r"simt_[a-z]*gemm|(?:maxwell|pascal|volta|turing|ampere)_[sdc]gemm|\bmagma_[sd]gemm"),
    (
        "matmul_tensor",
        r"(?:16816|16832|1688|8816|884)\w*gemm|xmma_gemm|tensorop|nvjet|gemm\w*_tensor|wgmma|warpspecialized|deep_gemm",
    ),
    ("matmul_tensor", r"fp8_gemm|scaled_mm|hgemm|bf16gemm|cutlass.*sm(?:90|100|120)|gemm_xdl|xdl.*gemm|xdlops|_mfma"),
    # Tensile names the matrix instruction; one without it multiplies on the vector units.
    ("matmul_tensor", r"^Cijk_.*_MI(?:4|16|32)x"),
    ("matmul", r"^Cijk_|gemm(?!v)|triton_(?:mm|bmm|tem_fused\w*mm)|matmul|cutlass"),
    ("matrix_vector", r"gemv|dot_kernel"),
    ("optimizer", r"multi_tensor_apply|(?<!h)adam|\bsgd|lamb_|foreach"),
    ("normalisation", r"(?:layer|rms|batch|group)_?norm"),
    ("softmax", r"softmax|cross_?entropy|nll_loss"),
    ("embedding", r"embedding|index(?:_|select|put|elementwise)|gather|scatter|vocab"),
    ("sort", r"radix|sort|scan|topk|bitonic"),
    ("reduction", r"reduce|splitk|sum_functor|triton_(?:red|per)"),
    ("copy", r"copy|transpose|catarray|cat_|permute|memcpy|memset|fill"),
    (
        "elementwise",
        r"elementwise|vectorized|unrolled|pointwise|dropout|gelu|silu|swiglu|rope|rotary|activation|triton_poi",
    ),
)

_FAMILIES: Final = tuple((family, re.compile(pattern, re.IGNORECASE)) for family, pattern in _NAMED)

TENSOR_FAMILIES: Final = frozenset({"attention", "convolution_tensor", "grouped_matmul", "matmul_tensor"})
"""Families that work on tensor cores (matrix cores on AMD)."""

MEMORY_FAMILIES: Final = frozenset(
    {"copy", "elementwise", "embedding", "matrix_vector", "normalisation", "optimizer", "reduction", "softmax", "sort"}
)
"""Families with so few operations a byte that memory bounds them on every part of the table: an element-wise kernel on
16-bit values does about one FLOP for four bytes, a matrix-vector product one FLOP a byte, and the ridge of a training
GPU lies above a hundred FLOP a byte."""


def family_of(name: str) -> str:
    """The family of a kernel with this name; `other` where none fits."""
    for family, pattern in _FAMILIES:
        if pattern.search(name):
            return family
    return "other"

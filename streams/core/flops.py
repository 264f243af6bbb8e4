"""FLOP per token of a transformer, under a named convention.

Published counts differ by what they leave out: attention, its causal half, the embedding table, what is computed twice.
A `FlopConvention` names one of them, and a figure means nothing without that name. One multiply-add is two FLOP; the
backward pass is counted as two products per forward product, one of which falls away for a frozen weight.

Guarantees: a figure comes from what the `ModelShape` states; what a convention needs and the shape does not give is an
`IncompleteShapeError`, never a guess. A token is a model token: padding is none, nor is a token that an expert dropped.
Deliberately not: norms, activations, softmax, optimizer, sliding attention windows and multi-token-prediction heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from streams.core.model_shape import (
    IncompleteShapeError,
    ModelShape,
    active_parameters,
    attention_weights,
    expert_layers,
    expert_width,
    idle_embedding_parameters,
    mlp_weights,
    parameter_count,
    query_width,
    required,
    value_width,
    vocab_times_hidden,
)

__all__ = [
    "FlopConvention",
    "IncompleteShapeError",
    "ModelShape",
    "Recompute",
    "active_parameters",
    "convention_named",
    "forward_flops_per_token",
    "hardware_flops_per_token",
    "inference_flops_per_token",
    "parameter_count",
    "training_flops_per_token",
]

Recompute = Literal["none", "selective", "full"]
"""What the backward pass computes again: nothing, the attention core, or the whole forward pass of the layers."""

RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")


class FlopConvention(StrEnum):
    """Whose count a figure follows."""

    SIX_N = "6N"
    """Weights alone, the embedding table included, attention left out (Kaplan et al. 2020)."""
    PALM = "6N+12LHQT"
    """All weights and the full square of attention (PaLM appendix B; nanoGPT and llm-foundry count so too)."""
    TORCHTITAN = "6(N-embedding)+12LHQT"
    """As PaLM without the input embedding table, unless it is tied to the output (torchtitan, OLMo-core)."""
    KORTHIKANTI = "korthikanti"
    """72 L h^2 (1 + s/6h + V/12hL): a GPT with an MLP of 4h and as many key heads as query heads."""
    MEGATRON = "megatron"
    """Each matrix product of the architecture and the full square of attention (nanotron counts so too)."""
    MEGATRON_CAUSAL = "megatron-causal"
    """As megatron with the causal half of attention: what Megatron-LM prints today."""


_OTHER_NAMES = {
    "palm": FlopConvention.PALM,
    "nanogpt": FlopConvention.PALM,
    "llm-foundry": FlopConvention.PALM,
    "6n+12ldt": FlopConvention.PALM,
    "torchtitan": FlopConvention.TORCHTITAN,
    "olmo-core": FlopConvention.TORCHTITAN,
    "6(n-embedding)+12ldt": FlopConvention.TORCHTITAN,
    "6(n-embedding)+6*l*n_heads*(2*head_dim)*t": FlopConvention.TORCHTITAN,
    "nanotron": FlopConvention.MEGATRON,
}


def convention_named(name: str) -> FlopConvention:
    """The convention with this name or one of the names in use for it, in any case and with any spaces.

    Raises:
        ValueError: No convention has that name.
    """
    word = "".join(name.lower().split())
    for convention in FlopConvention:
        if convention.value.lower() == word:
            return convention
    if word in _OTHER_NAMES:
        return _OTHER_NAMES[word]
    known = ", ".join(FlopConvention)
    msg = f"no FLOP convention is named {name!r}; give one of: {known}"
    raise ValueError(msg)


def forward_flops_per_token(
    shape: ModelShape,
    seq_len: int | None,
    convention: FlopConvention | str,
    sum_squared_lengths: float | None = None,
    tokens: float | None = None,
) -> float:
    """FLOP of one forward pass per model token; arguments and errors as for `training_flops_per_token`."""
    work = _work(shape, _attended_length(seq_len, sum_squared_lengths, tokens), convention)
    return 2 * work.weights + 2 * (shape.lora_parameters or 0.0) + work.core


def training_flops_per_token(
    shape: ModelShape,
    seq_len: int | None,
    convention: FlopConvention | str,
    sum_squared_lengths: float | None = None,
    tokens: float | None = None,
) -> float:
    """FLOP of forward and backward pass per model token, nothing counted twice: the numerator of MFU.

    A frozen weight costs 4 instead of 6 and an adapter weight 6 (4N + 6 N_lora); a frozen weight below the first
    trained one costs 2.

    Args:
        shape: The model.
        seq_len: Tokens in a sequence, T; may be None for 6N.
        convention: Whose count.
        sum_squared_lengths: Where packed documents do not attend to each other: the sum of their squared lengths.
        tokens: Model tokens in the documents of that sum; `seq_len` (one packed sequence) where it is None.

    Raises:
        IncompleteShapeError: The convention needs what the shape does not give.
        ValueError: The shape is not one that the convention can count, or a length is not above zero.
    """
    work = _work(shape, _attended_length(seq_len, sum_squared_lengths, tokens), convention)
    trainable = shape.trainable_parameters
    if trainable is None:
        trainable = 0.0 if shape.lora_parameters is not None else work.weights - _frozen_below(shape)
    if trainable + _frozen_below(shape) > work.weights:
        msg = (
            f"trainable_parameters ({trainable:.6g}) and frozen_below_parameters ({_frozen_below(shape):.6g}) are "
            f"more than the {work.weights:.6g} weights that {convention} counts"
        )
        raise ValueError(msg)
    weights = 4 * work.weights - 2 * _frozen_below(shape) + 2 * trainable + 6 * (shape.lora_parameters or 0.0)
    return weights + work.core * (1 + 2 * _share_with_backward(shape))


def hardware_flops_per_token(
    shape: ModelShape,
    seq_len: int | None,
    convention: FlopConvention | str,
    recompute: Recompute,
    sum_squared_lengths: float | None = None,
    tokens: float | None = None,
) -> float:
    """FLOP per model token that the hardware does, recomputed activations included: the numerator of HFU.

    `full` adds one forward pass. The output matrix is not part of it where the convention has a term for that matrix
    (korthikanti and both megatron); the others count by N and give 4/3 (8N for 6N). Layers below the first trained
    one are not redone.
    `selective` adds the forward pass of the attention core, also under 6N if the shape gives its dimensions. Under
    korthikanti it adds what the paper's hardware formula adds (s/6h becomes s/3h), three times that.

    Raises:
        IncompleteShapeError: As for `training_flops_per_token`, or `selective` with an attention core of unknown size.
    """
    if recompute not in RECOMPUTES:
        msg = f"recompute is {recompute!r}; give one of: {', '.join(RECOMPUTES)}"
        raise ValueError(msg)
    model = training_flops_per_token(shape, seq_len, convention, sum_squared_lengths, tokens)
    if recompute == "none":
        return model
    work = _work(shape, _attended_length(seq_len, sum_squared_lengths, tokens), convention)
    if recompute == "full":
        redone_weights = work.weights - work.logit - _frozen_below(shape) + (shape.lora_parameters or 0.0)
        return model + 2 * max(redone_weights, 0.0) + work.core * _share_with_backward(shape)
    core = required(work.core_redone, "layers, hidden (or heads and head_dim) and seq_len", "selective recompute")
    return model + core * _share_with_backward(shape)


def inference_flops_per_token(shape: ModelShape, context_len: float | None = None) -> float:
    """FLOP per token processed or generated: twice the active parameters, and attention where it is known.

    Args:
        shape: The model.
        context_len: Tokens that a token attends to, on average: the filled cache while generating, half the prompt
            while reading it. Attention is left out where this or the shape's dimensions are not given.

    Raises:
        IncompleteShapeError: The active parameters are not known.
        ValueError: `context_len` is below zero.
    """
    weights = 2 * active_parameters(shape) + 2 * (shape.lora_parameters or 0.0)
    if context_len is None:
        return weights
    if not math.isfinite(context_len) or context_len < 0:
        msg = f"context_len is {context_len}; it must be a finite number, zero or more"
        raise ValueError(msg)
    return weights + (_core_if_known(shape, context_len) or 0.0)


@dataclass(frozen=True)
class _Work:
    """One token's forward pass as a convention counts it."""

    weights: float
    """Weights in matrix products, two FLOP each."""
    logit: float
    """Those of them in the output matrix, where the convention has a term for it."""
    core: float
    """FLOP of scores and their product with the values."""
    core_redone: float | None
    """FLOP that selective recompute adds; None where not known."""


def _work(shape: ModelShape, attended: float | None, convention: FlopConvention | str) -> _Work:
    convention = convention_named(convention)
    match convention:
        case FlopConvention.SIX_N:
            return _Work(active_parameters(shape), 0.0, 0.0, _core_if_known(shape, attended))
        case FlopConvention.PALM:
            core = _core(shape, attended, convention)
            return _Work(active_parameters(shape), 0.0, core, core)
        case FlopConvention.TORCHTITAN:
            core = _core(shape, attended, convention)
            return _Work(active_parameters(shape) - idle_embedding_parameters(shape), 0.0, core, core)
        case FlopConvention.KORTHIKANTI:
            return _korthikanti_work(shape, attended)
        case FlopConvention.MEGATRON | FlopConvention.MEGATRON_CAUSAL:
            core = _core(shape, attended, convention)
            if convention is FlopConvention.MEGATRON_CAUSAL:
                core /= 2
            logit = float(vocab_times_hidden(shape, convention))
            return _Work(_product_weights(shape) + logit, logit, core, core)


def _korthikanti_work(shape: ModelShape, attended: float | None) -> _Work:
    convention = FlopConvention.KORTHIKANTI
    layers = required(shape.layers, "layers", convention)
    hidden = required(shape.hidden, "hidden", convention)
    plain_heads = shape.kv_heads in (None, shape.heads) and query_width(shape) == hidden
    plain_mlp = not shape.gated_mlp and shape.ffn_hidden in (None, 4 * hidden) and shape.experts is None
    if not plain_heads or not plain_mlp or shape.kv_lora_rank is not None:
        raise ValueError(
            "korthikanti counts a GPT with an ungated MLP of 4 * hidden, one key head per query head and no experts; "
            "this model is another, use megatron"
        )
    core = 4.0 * layers * hidden * required(attended, "seq_len", convention)
    logit = float(vocab_times_hidden(shape, convention))
    # The published hardware formula turns s/6h, forward and backward of the core, into s/3h.
    return _Work(12.0 * layers * hidden**2 + logit, logit, core, 3 * core)


def _core(shape: ModelShape, attended: float | None, convention: str) -> float:
    """Full square of attention, forward, per token: 2 L H (d_qk + d_v) T, which is 4 L H Q T."""
    layers = required(shape.layers, "layers", convention)
    length = required(attended, "seq_len", convention)
    return 2.0 * layers * (query_width(shape) + value_width(shape)) * length


def _core_if_known(shape: ModelShape, attended: float | None) -> float | None:
    try:
        return _core(shape, attended, "attention")
    except IncompleteShapeError:
        return None


def _product_weights(shape: ModelShape) -> float:
    """Weights in the layers' matrix products, per token; the router is not one of them in Megatron-LM's count."""
    layers = required(shape.layers, "layers", "megatron")
    layers_with_experts = expert_layers(shape)
    total = float(layers * attention_weights(shape))
    if layers > layers_with_experts:
        dense_width = required(shape.ffn_hidden, "ffn_hidden", "megatron")
        total += (layers - layers_with_experts) * mlp_weights(shape, dense_width)
    if layers_with_experts:
        per_token = required(shape.experts_per_token, "experts_per_token", "megatron")
        width = per_token * expert_width(shape) + (shape.shared_expert_ffn_hidden or 0)
        total += layers_with_experts * mlp_weights(shape, width)
    return total


def _frozen_below(shape: ModelShape) -> float:
    return shape.frozen_below_parameters or 0.0


def _share_with_backward(shape: ModelShape) -> float:
    if not shape.frozen_below_layers:
        return 1.0
    return 1.0 - shape.frozen_below_layers / required(shape.layers, "layers", "frozen_below_layers")


def _attended_length(seq_len: int | None, sum_squared_lengths: float | None, tokens: float | None) -> float | None:
    """Mean length of the document that a token is in; T for sequences of one document."""
    for name, value in (("seq_len", seq_len), ("sum_squared_lengths", sum_squared_lengths), ("tokens", tokens)):
        if value is not None and (not math.isfinite(value) or value <= 0):
            msg = f"{name} is {value}; it must be a finite number above zero"
            raise ValueError(msg)
    if sum_squared_lengths is None:
        return None if seq_len is None else float(seq_len)
    packed_tokens = required(tokens if tokens is not None else seq_len, "tokens (or seq_len)", "sum_squared_lengths")
    attended = sum_squared_lengths / packed_tokens
    if attended < 1 or (seq_len is not None and attended > seq_len):
        msg = (
            f"sum_squared_lengths {sum_squared_lengths:.6g} over {packed_tokens:.6g} tokens means documents of "
            f"{attended:.6g} tokens; that must lie between 1 and seq_len ({seq_len})"
        )
        raise ValueError(msg)
    return attended

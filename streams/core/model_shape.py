"""What is known of a model's architecture, and the parameters that follow from it.

Guarantees: a `ModelShape` holds no contradiction among its figures; a width or a count comes from what it states, and
what is missing is an `IncompleteShapeError` that names the field.
Deliberately not: no table of known models, no reading of a model's name, no FLOP (see `streams.core.flops`), no
norms on query and key, no multi-token-prediction layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TypeVar

__all__ = [
    "IncompleteShapeError",
    "ModelShape",
    "active_parameters",
    "attention_weights",
    "expert_layers",
    "expert_width",
    "idle_embedding_parameters",
    "mlp_weights",
    "parameter_count",
    "query_width",
    "required",
    "value_width",
    "vocab_times_hidden",
]

_Known = TypeVar("_Known")

_MAY_BE_ZERO = frozenset(
    {
        "dense_layers",
        "embedding_parameters",
        "frozen_below_layers",
        "frozen_below_parameters",
        "trainable_parameters",
    }
)


class IncompleteShapeError(ValueError):
    """The convention needs a figure that the shape does not give."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What is known of a model. None means not known, apart from where a field says what its absence means.

    Widths and counts are of the whole model, before it is divided among ranks; `vocab` is padded as it is computed.

    Raises:
        ValueError: A figure is not a finite number above zero, or two of them contradict each other.
    """

    parameters: float | None = None
    """N, all of them, without adapters; counted from the architecture where it is None."""
    active_parameters: float | None = None
    """Parameters that one token passes through; counted from the architecture where it is None and experts are set."""
    embedding_parameters: float | None = None
    """The input table; vocab * hidden where it is None."""
    tied_embeddings: bool = False
    """The input table is the output matrix too, so it stays in the count."""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    """Query heads."""
    head_dim: int | None = None
    """Width of a query and key head (nope + rope for latent attention); hidden / heads where it is None."""
    value_head_dim: int | None = None
    """Width of a value head where it is not `head_dim`."""
    kv_heads: int | None = None
    """Key and value heads; as many as query heads where it is None."""
    ffn_hidden: int | None = None
    gated_mlp: bool | None = None
    """Three products (gate, up, down) or two."""
    vocab: int | None = None
    positions: int | None = None
    """Rows of a learned position table; no table where it is None."""
    biases: bool = False
    """The products and norms have biases (GPT-2, GPT-3)."""
    kv_lora_rank: int | None = None
    """Latent attention: rank of the shared key and value projection. Needs `rope_head_dim` and `head_dim`."""
    q_lora_rank: int | None = None
    rope_head_dim: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    expert_ffn_hidden: int | None = None
    """Width of one expert; `ffn_hidden` where it is None."""
    shared_expert_ffn_hidden: int | None = None
    """Total width of the experts that every token passes; no such expert where it is None."""
    dense_layers: int | None = None
    """Layers with a plain MLP of `ffn_hidden` in a model with experts; none where it is None."""
    lora_parameters: float | None = None
    """Adapter weights beside N; where it is set, N is frozen unless `trainable_parameters` says otherwise."""
    trainable_parameters: float | None = None
    """Weights among those counted that get a gradient; all where it is None and there are no adapters."""
    frozen_below_parameters: float | None = None
    """Frozen weights below the first trained one: their backward pass falls away."""
    frozen_below_layers: int | None = None
    """Whole layers below the first trained one: the backward pass of their attention core falls away."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or isinstance(value, bool):
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and field.name not in _MAY_BE_ZERO):
                msg = f"{field.name} is {value}; it must be a finite number above zero"
                raise ValueError(msg)
        for part, whole in (
            ("active_parameters", "parameters"),
            ("embedding_parameters", "parameters"),
            ("experts_per_token", "experts"),
            ("kv_heads", "heads"),
            ("dense_layers", "layers"),
            ("frozen_below_layers", "layers"),
        ):
            below, above = getattr(self, part), getattr(self, whole)
            if below is not None and above is not None and below > above:
                msg = f"{part} is {below}, more than {whole} with {above}"
                raise ValueError(msg)
        if self.heads is not None and self.kv_heads is not None and self.heads % self.kv_heads:
            msg = f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})"
            raise ValueError(msg)
        if self.experts is None and self.experts_per_token is not None:
            raise ValueError("experts_per_token is set but experts is not; give both")


def parameter_count(shape: ModelShape) -> float:
    """All parameters, from the architecture.

    Llama: L(2d^2 + 2d*kv*hd + 3d*ff + 2d) + 2Vd + d. With `biases` and `positions` it is the count of a GPT,
    12Lh^2 + 13Lh + (V+s)h, and the 2h of its final norm, which the published formula leaves out.

    Raises:
        IncompleteShapeError: The shape lacks a figure.
    """
    return _architecture_parameters(shape, experts_counted=shape.experts)


def active_parameters(shape: ModelShape) -> float:
    """Parameters that one token passes through: router, shared experts and k of E experts of each layer.

    Taken from `active_parameters`, else N less the experts that a token skips, else the architecture. Without experts
    it is N.

    Raises:
        IncompleteShapeError: There are experts, and neither the active count nor what it follows from is given.
    """
    if shape.active_parameters is not None:
        return shape.active_parameters
    if shape.experts is None:
        return shape.parameters if shape.parameters is not None else parameter_count(shape)
    per_token = required(shape.experts_per_token, "experts_per_token", "active parameters")
    if shape.parameters is None:
        return _architecture_parameters(shape, experts_counted=per_token)
    skipped = (shape.experts - per_token) * expert_layers(shape) * mlp_weights(shape, expert_width(shape))
    if skipped >= shape.parameters:
        msg = f"the experts a token skips have {skipped:.6g} parameters, and the model has {shape.parameters:.6g}"
        raise ValueError(msg)
    return shape.parameters - skipped


def _architecture_parameters(shape: ModelShape, experts_counted: int | None) -> float:
    purpose = "parameter count"
    layers = required(shape.layers, "layers", purpose)
    hidden = required(shape.hidden, "hidden", purpose)
    vocab = required(shape.vocab, "vocab", purpose)
    layers_with_experts = expert_layers(shape)
    norm = 2 * hidden if shape.biases else hidden
    total = float(layers * (attention_weights(shape) + 2 * norm))
    if shape.biases:
        total += layers * (query_width(shape) + sum(_key_and_value_width(shape)) + hidden)
    if layers > layers_with_experts:
        width = required(shape.ffn_hidden, "ffn_hidden", purpose)
        total += (layers - layers_with_experts) * (mlp_weights(shape, width) + _mlp_biases(shape, width))
    if shape.experts is not None and experts_counted is not None:
        width, shared = expert_width(shape), shape.shared_expert_ffn_hidden
        mlp = experts_counted * (mlp_weights(shape, width) + _mlp_biases(shape, width))
        if shared is not None:
            mlp += mlp_weights(shape, shared) + _mlp_biases(shape, shared)
        total += layers_with_experts * (mlp + shape.experts * hidden)
    tables = 1 if shape.tied_embeddings else 2
    return total + tables * vocab * hidden + (shape.positions or 0) * hidden + norm


def attention_weights(shape: ModelShape) -> int:
    """Weights of the query, key, value and output projections of one layer."""
    hidden = required(shape.hidden, "hidden", "attention")
    queries, values = query_width(shape), value_width(shape)
    if shape.kv_lora_rank is None:
        return hidden * (queries + sum(_key_and_value_width(shape)) + values)
    heads = required(shape.heads, "heads", "latent attention")
    rope = required(shape.rope_head_dim, "rope_head_dim", "latent attention")
    query = hidden * queries
    if shape.q_lora_rank is not None:
        query = shape.q_lora_rank * (hidden + queries)
    down = hidden * (shape.kv_lora_rank + rope)
    up = shape.kv_lora_rank * (queries - heads * rope + values)
    return query + down + up + values * hidden


def mlp_weights(shape: ModelShape, width: int) -> int:
    """Weights of one MLP of this width: three products where it is gated, else two."""
    gated = required(shape.gated_mlp, "gated_mlp", "the MLP")
    return (3 if gated else 2) * required(shape.hidden, "hidden", "the MLP") * width


def _mlp_biases(shape: ModelShape, width: int) -> int:
    if not shape.biases:
        return 0
    return (2 if shape.gated_mlp else 1) * width + required(shape.hidden, "hidden", "the MLP")


def _key_and_value_width(shape: ModelShape) -> tuple[int, int]:
    if shape.kv_heads is None:
        return query_width(shape), value_width(shape)
    key_dim = _head_dim(shape)
    value_dim = key_dim if shape.value_head_dim is None else shape.value_head_dim
    return shape.kv_heads * key_dim, shape.kv_heads * value_dim


def _head_dim(shape: ModelShape) -> int:
    if shape.head_dim is not None:
        return shape.head_dim
    hidden = required(shape.hidden, "head_dim (or hidden)", "attention")
    heads = required(shape.heads, "heads", "attention")
    if hidden % heads:
        msg = f"hidden ({hidden}) is not a multiple of heads ({heads}); give head_dim"
        raise ValueError(msg)
    return hidden // heads


def query_width(shape: ModelShape) -> int:
    """Width of all query heads, H * Q; `hidden` where no heads are given."""
    if shape.heads is not None:
        return shape.heads * _head_dim(shape)
    return required(shape.hidden, "hidden (or heads and head_dim)", "attention")


def value_width(shape: ModelShape) -> int:
    """Width of what attention hands to the output projection."""
    if shape.value_head_dim is None:
        return query_width(shape)
    return required(shape.heads, "heads", "value_head_dim") * shape.value_head_dim


def expert_width(shape: ModelShape) -> int:
    """Width of one expert."""
    width = shape.ffn_hidden if shape.expert_ffn_hidden is None else shape.expert_ffn_hidden
    return required(width, "expert_ffn_hidden (or active_parameters)", "a model with experts")


def expert_layers(shape: ModelShape) -> int:
    """Layers whose MLP is a set of experts."""
    if shape.experts is None:
        return 0
    layers = required(shape.layers, "layers (or active_parameters)", "a model with experts")
    return layers - (shape.dense_layers or 0)


def idle_embedding_parameters(shape: ModelShape) -> float:
    """Parameters of the input table, which is looked up and not multiplied; none where it is the output matrix too."""
    if shape.tied_embeddings:
        return 0.0
    if shape.embedding_parameters is not None:
        return shape.embedding_parameters
    return float(vocab_times_hidden(shape, "6(N-embedding) (or embedding_parameters)"))


def vocab_times_hidden(shape: ModelShape, purpose: str) -> int:
    """Weights of the output matrix, or of the input table."""
    return required(shape.vocab, "vocab", purpose) * required(shape.hidden, "hidden", purpose)


def required(value: _Known | None, name: str, purpose: str) -> _Known:
    """The value, or an `IncompleteShapeError` that says what needs it and under which name it is given."""
    if value is None:
        msg = f"{purpose} needs {name}, which the model's shape does not give"
        raise IncompleteShapeError(msg)
    return value

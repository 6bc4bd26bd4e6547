"""How many parameters a model has: by part, by layer, in all, and how many of them a token meets.

    parameters(model)              # {"embedding": ..., "attention": ..., "feed_forward": ..., ..., "head": ...}
    total(model), active(model)    # 46.7e9 and 12.9e9 for Mixtral 8x7B
    layer_parameters(model, 0)     # of the first block

Counted from shapes, exactly: Vaswani et al. 2017 (arXiv 1706.03762) with what came later: heads of keys and values of
their own number (Ainslie et al. 2023, arXiv 2305.13245), three matrices in the feed-forward block (Shazeer 2020,
arXiv 2002.05202), experts (Shazeer et al. 2017, arXiv 1701.06538).
"""

from course_lib.planning.spec import ModelSpec

__all__ = [
    "active",
    "expert_parameters",
    "ffn_width",
    "head_width",
    "key_value_heads",
    "layer_parameters",
    "mixture_layers",
    "parameters",
    "replicated_in_layer",
    "total",
]


def key_value_heads(model: ModelSpec) -> int:
    """Heads of keys and values, as a number."""
    return model.heads if model.kv_heads is None else model.kv_heads


def head_width(model: ModelSpec) -> int:
    """Width of one head, as a number."""
    return model.width // model.heads if model.head_dim is None else model.head_dim


def ffn_width(model: ModelSpec, *, expert: bool = False) -> int:
    """Width inside the dense feed-forward block, or inside one expert, as a number."""
    dense = 4 * model.width if model.ffn is None else model.ffn
    return dense if not expert or model.expert_ffn is None else model.expert_ffn


def mixture_layers(model: ModelSpec) -> int:
    """Layers with experts."""
    return max(0, model.layers - model.dense_layers) if model.experts else 0


def expert_parameters(model: ModelSpec) -> int:
    """Matrix elements of one expert."""
    return (3 if model.gated else 2) * model.width * ffn_width(model, expert=True)


def _attention(model: ModelSpec) -> int:
    """Matrix elements of one layer's attention: queries, keys, values, output."""
    if model.attention_parameters is not None:
        return model.attention_parameters
    return 2 * model.width * (model.heads + key_value_heads(model)) * head_width(model)


def _dense(model: ModelSpec) -> int:
    return (3 if model.gated else 2) * model.width * ffn_width(model)


def _biases(model: ModelSpec, mixture: bool) -> int:
    """Of one layer's matrices and of its two norms."""
    if not model.biases:
        return 0
    d, into = model.width, 2 if model.gated else 1
    attention = (model.heads + 2 * key_value_heads(model)) * head_width(model) + d
    ff = into * ffn_width(model, expert=mixture) + d
    copies = model.experts + model.shared_experts if mixture else 1
    return attention + copies * ff + 2 * d


def _layer(model: ModelSpec, mixture: bool) -> dict[str, int]:
    return {
        "attention": _attention(model),
        "feed_forward": 0 if mixture else _dense(model),
        "experts": (model.experts + model.shared_experts) * expert_parameters(model) if mixture else 0,
        "router": model.width * model.experts if mixture else 0,
        "norms": 2 * model.width,
        "biases": _biases(model, mixture),
    }


def layer_parameters(model: ModelSpec, layer_index: int) -> int:
    """All parameters of one block; the first `dense_layers` have no experts."""
    return sum(_layer(model, bool(model.experts) and layer_index >= model.dense_layers).values())


def replicated_in_layer(model: ModelSpec, *, mixture: bool = False) -> int:
    """Parameters of one block that every tensor-parallel rank holds whole: gains of the norms, the router.

    Biases are counted as split; those of the norms and behind the two row-split matrices are not, 4 d of 13 d or more.
    """
    layer = _layer(model, mixture)
    return layer["norms"] + layer["router"]


def parameters(model: ModelSpec) -> dict[str, int]:
    """Parameters by part; the sum is the model. A tied head counts 0. "experts" has the shared ones too; "norms" the
    gains, "biases" the biases of norms and of matrices."""
    mixtures = mixture_layers(model)
    dense, mixed = _layer(model, False), _layer(model, True)
    sums = {part: (model.layers - mixtures) * dense[part] + mixtures * mixed[part] for part in dense}
    sums["norms"] += model.width  # the last one, before the head
    sums["biases"] += model.width if model.biases else 0
    table = model.vocab * model.width
    return {
        "embedding": table,
        "positions": model.positions * model.width,
        **sums,
        "head": 0 if model.tied else table,
    }


def total(model: ModelSpec) -> int:
    """All parameters."""
    return sum(parameters(model).values())


def active(model: ModelSpec) -> int:
    """Parameters that one token meets: without the routed experts that it does not visit. Embedding and head count, as
    in the published numbers (Mixtral's 12.9B, Jiang et al. 2024, arXiv 2401.04088)."""
    unvisited = max(0, model.experts - model.active_experts) * mixture_layers(model)
    each = expert_parameters(model)
    if model.biases:
        each += (2 if model.gated else 1) * ffn_width(model, expert=True) + model.width
    return total(model) - unvisited * each

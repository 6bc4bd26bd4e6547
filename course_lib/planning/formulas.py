"""The course's formulas: each one tested function, with source and convention. Prose renders its numbers from here.

Bytes are bytes, FLOPs count a multiply and an add as two, N is a number of parameters, D a number of tokens.
"""

from dataclasses import dataclass

from course_lib.config import ModelConfig
from course_lib.errors import ConfigError

__all__ = [
    "RECIPES",
    "Recipe",
    "activation_bytes",
    "adamw_state_bytes",
    "best_segment",
    "bytes_per_parameter",
    "effective_batch",
    "matmul_flops",
    "mfu",
    "model_params",
    "predicted_ledger",
    "recomputed_flops",
    "segmented_bytes",
    "train_flops",
    "updates_per_epoch",
    "world_size",
]


@dataclass(frozen=True)
class Recipe:
    """Bytes a parameter that stay in memory for the whole run, before activations and temporary buffers."""

    weights: int
    """The weights that the forward pass reads."""
    gradients: int
    """All copies of the gradients."""
    master: int
    """FP32 copy of 16-bit weights; the part people forget."""
    moments: int
    """What the optimizer remembers: two FP32 numbers for AdamW."""
    what: str
    """In words."""

    @property
    def total(self) -> int:
        """Bytes a parameter."""
        return self.weights + self.gradients + self.master + self.moments


RECIPES: dict[str, Recipe] = {
    "inference-16bit": Recipe(2, 0, 0, 0, "inference with FP16 or BF16 weights"),
    "inference-fp32": Recipe(4, 0, 0, 0, "inference with FP32 weights"),
    "sgd-fp32": Recipe(4, 4, 0, 0, "SGD without momentum, all FP32"),
    "adamw-16bit": Recipe(2, 2, 4, 8, "AdamW, 16-bit weights and gradients, FP32 master weights and moments"),
    "adamw-16bit-fp32-gradients": Recipe(2, 4, 4, 8, "the same, FP32 gradients instead of 16-bit ones"),
    "adamw-16bit-both-gradients": Recipe(2, 6, 4, 8, "the same, with 16-bit and FP32 gradients both kept"),
    "adamw-fp32": Recipe(4, 4, 0, 8, "AdamW, all FP32, with or without autocast (which casts inside the forward pass)"),
}
"""2 + 2 + 12 is Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054), section 3.1; the others are the same count."""


def bytes_per_parameter(recipe: str) -> int:
    """Bytes a parameter of a recipe: 16 for "adamw-16bit" (2 + 2 + 12). `ConfigError` for an unknown name."""
    if recipe not in RECIPES:
        raise ConfigError(f"recipe={recipe!r} is unknown (there are: {', '.join(RECIPES)})")
    return RECIPES[recipe].total


def adamw_state_bytes(n_params: int, moment_bytes: int = 4) -> int:
    """Bytes of AdamW's two moments, without master weights (Kingma & Ba 2015, arXiv 1412.6980)."""
    return 2 * moment_bytes * n_params


def train_flops(n_params: float, n_tokens: float) -> float:
    """About 6 N D FLOPs to train a dense model: 2 a parameter and token forward, 4 backward (Kaplan et al. 2020,
    arXiv 2001.08361). Leaves out attention scores; counts the embedding, which is looked up, not multiplied."""
    return 6.0 * n_params * n_tokens


def matmul_flops(config: ModelConfig, batch: int, context: int, *, backward: bool = True) -> int:
    """FLOPs of the matrix products of one pass over (batch, context) tokens, exactly; `backward` adds twice as many.

    Attention counts the full T x T square, as a kernel without causal skipping computes it.
    """
    tokens = batch * context
    width, heads, kv, head_dim = config.d_model, config.n_heads, config.kv_heads, config.head_dim
    projections = width * (heads + 2 * kv) * head_dim + width * width + 3 * width * config.ff
    per_token = 2 * (config.n_layers * projections + width * config.vocab_size)
    scores_and_values = 2 * 2 * batch * config.n_layers * heads * context * context * head_dim
    return (tokens * per_token + scores_and_values) * (3 if backward else 1)


def mfu(n_params: float, tokens_per_second: float, peak_flops: float) -> float:
    """Model FLOPs utilisation: 6 N FLOPs a token, as a share of the machine's peak (Chowdhery et al. 2022,
    arXiv 2204.02311, without their attention term)."""
    return train_flops(n_params, tokens_per_second) / peak_flops


def effective_batch(micro_batch: int, accumulation: int = 1, data_parallel: int = 1, context: int = 1) -> int:
    """Sequences behind one update: micro-batch x accumulation steps x data-parallel ranks; with a context, tokens.

    Tensor, pipeline and context ranks do not multiply it.
    """
    return micro_batch * accumulation * data_parallel * context


def world_size(data_parallel: int = 1, tensor: int = 1, pipeline: int = 1, context_parallel: int = 1) -> int:
    """Devices of a run that splits in all these ways: their product. Only `data_parallel` multiplies the batch."""
    return data_parallel * tensor * pipeline * context_parallel


def updates_per_epoch(n_tokens: float, tokens_per_update: float) -> float:
    """Updates in one pass over the data, with the fraction of the last one. `ConfigError` for an empty batch."""
    if tokens_per_update <= 0:
        raise ConfigError(f"tokens_per_update={tokens_per_update} must be above 0; try a batch of at least one token")
    return n_tokens / tokens_per_update


def model_params(config: ModelConfig) -> dict[str, int]:
    """Parameters of the GPT by part; the sum is the model. A tied output layer counts 0."""
    width, layers = config.d_model, config.n_layers
    queries = width * config.n_heads * config.head_dim
    keys_values = 2 * width * config.kv_heads * config.head_dim
    return {
        "embedding": config.vocab_size * width,
        "attention": layers * (queries + keys_values + width * width),
        "feed_forward": layers * 3 * width * config.ff,
        "norms": (2 * layers + 1) * width,
        "head": 0 if config.tie_embeddings else config.vocab_size * width,
    }


def activation_bytes(
    config: ModelConfig, batch: int, context: int, precision: str = "fp32", recompute: str = "none", every: int = 1
) -> int:
    """Bytes that the GPT's forward pass and cross entropy keep for backward, over (batch, context) tokens.

    Counted from what torch's CPU kernels save: a kernel that recomputes more keeps less. "bf16" is autocast, which also
    keeps its 16-bit copies of the matrices. `recompute` and `every` are `course_lib.recompute`'s; a recomputed block
    keeps its input, and what it is told to. Left out: the copy that is being computed again, which comes back one block
    at a time (`segmented_bytes` adds it), and 5 KB of random state a block.
    """
    short = config.n_layers // every if recompute != "none" else 0  # blocks that recompute
    d, ff, heads, kv = config.d_model, config.ff, config.n_heads, config.kv_heads
    head_dim, layers, vocab = config.head_dim, config.n_layers, config.vocab_size
    norm = 4 * (2 * d + 1)  # the stream, its normalised form, one reciprocal a token
    rotated = 4 * (heads + kv) * head_dim  # queries and keys after the rotation
    attended = 4 * (d + heads)  # attention's output, and one number a head for its softmax
    masks = 1 if config.dropout else 0  # each as large as what it drops
    if precision == "fp32":
        qkv = 4 * (heads + 2 * kv) * head_dim  # values are a view of it, so that all of it stays
        block = 2 * norm + 4 * d + qkv + rotated + attended + 4 * d + 4 * 4 * ff + masks * 2 * 4 * d
        kept = 4 * d + _kept_by_choice(config, recompute, 4)
        return batch * context * ((layers - short) * block + short * kept + masks * 4 * d + norm + 4 * d + 4 * vocab)
    values = 4 * kv * head_dim
    block = 2 * norm + 2 * d + rotated + values + attended + 2 * d + 2 * d + 2 * 4 * ff + masks * 2 * 2 * d
    kept = 4 * d + _kept_by_choice(config, recompute, 2)
    matrices = (layers - short) * (d * (heads + 2 * kv) * head_dim + d * d + 3 * d * ff) + vocab * d
    rest = masks * 4 * d + norm + 2 * d + 4 * vocab
    return batch * context * ((layers - short) * block + short * kept + rest) + 2 * matrices


def _kept_by_choice(config: ModelConfig, recompute: str, width: int) -> int:
    """Bytes a token that a recomputed block keeps besides its input; `width`: bytes of a matrix product's number."""
    d, heads = config.d_model, config.n_heads
    if recompute == "keep_attention":
        return 4 * (d + heads)  # as FP32, on a CPU also under autocast
    if recompute == "keep_matmuls":
        return width * ((heads + 2 * config.kv_heads) * config.head_dim + d + 2 * config.ff + d)
    return 0


def recomputed_flops(config: ModelConfig, batch: int, context: int, recompute: str = "all", every: int = 1) -> int:
    """FLOPs of the matrix products that one backward pass computes a second time, exactly.

    PyTorch stops a recomputation when it has all that backward needs: of a block without dropout the last product, back
    to the residual stream, is not repeated.
    """
    if recompute == "none":
        return 0
    tokens, d = batch * context, config.d_model
    down = d * config.ff
    products = d * (config.n_heads + 2 * config.kv_heads) * config.head_dim + d * d + 3 * down
    if not config.dropout:
        products -= down
    attention = 2 * 2 * batch * config.n_heads * context * context * config.head_dim
    linear = 0 if recompute == "keep_matmuls" else 2 * tokens * products
    return (config.n_layers // every) * (linear + (0 if recompute == "keep_attention" else attention))


def segmented_bytes(layers: int, size: int, inside: float, edge: float) -> float:
    """Bytes at the worst moment when `layers` equal layers are cut into segments of `size` that recompute.

    inside: bytes that one layer keeps for backward; edge: bytes of its input. Every segment keeps its input, the one
    that backward is in all of its layers: ceil(layers / size) edges, `size` insides (Chen et al. 2016, section 4).
    The compute is one more forward, whatever the size.
    """
    return -(-layers // size) * edge + min(size, layers) * inside


def best_segment(layers: int, inside: float, edge: float) -> int:
    """Segment size with the fewest `segmented_bytes`; near sqrt(layers x edge / inside)."""
    return min(range(1, layers + 1), key=lambda size: segmented_bytes(layers, size, inside, edge))


def predicted_ledger(
    config: ModelConfig,
    batch: int,
    context: int,
    optimizer: str | None = "adamw",
    precision: str = "fp32",
    recompute: str = "none",
    every: int = 1,
) -> dict[str, int]:
    """Bytes by category, as `course_lib.memory.ledger` measures them: optimizer "adamw", "sgd" or None (inference).

    Weights are FP32 in both precisions. Left out: AdamW's step counters, 4 bytes a tensor.
    """
    if optimizer not in ("adamw", "sgd", None):
        raise ConfigError(f"optimizer={optimizer!r} is unknown (there are: adamw, sgd, None)")
    n = sum(model_params(config).values())
    training = optimizer is not None
    return {
        "weights": 4 * n,
        "gradients": 4 * n if training else 0,
        "optimizer": adamw_state_bytes(n) if optimizer == "adamw" else 0,
        "activations": activation_bytes(config, batch, context, precision, recompute, every) if training else 0,
        "logits": batch * context * config.vocab_size * (4 if precision == "fp32" else 2),
        "buffers": 2 * 4 * config.context * config.head_dim,
        "data": 2 * 8 * batch * context,
    }

"""The shape of a GPT: its fields, the presets, and a run's changes to one."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from course_lib.settings import between, nearest, positive, require

__all__ = ["PRESETS", "ModelConfig", "ModelOverrides", "preset"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a GPT."""

    vocab_size: int = 1024
    """How many different tokens there are."""
    d_model: int = 128
    """Width of the residual stream."""
    n_layers: int = 4
    """Number of blocks."""
    n_heads: int = 4
    """Attention heads; must divide d_model."""
    n_kv_heads: int | None = None
    """Heads of keys and values (grouped-query attention); None: as many as n_heads."""
    d_ff: int | None = None
    """Width inside the feed-forward part; None: 8/3 of d_model, rounded up to a multiple of 32."""
    context: int = 128
    """Longest sequence in tokens."""
    rope_base: float = 10000.0
    """Base of the rotary position frequencies."""
    tie_embeddings: bool = True
    """Use one matrix for the token embedding and the output layer."""
    dropout: float = 0.0
    """Share of activations set to zero while training: of the embeddings and of what each half of a block adds."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; with 0.02 the first loss is close to log(vocab_size)."""
    norm_eps: float = 1e-5
    """Added to the mean square inside RMSNorm."""

    def __post_init__(self) -> None:
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", -(-8 * self.d_model // 3 // 32) * 32)
        positive(self, "vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff", "context")
        heads, width = self.n_heads, self.d_model
        fits = max(heads, round(width / heads) * heads)
        require(
            width % heads == 0,
            f"d_model={width} is not divisible by n_heads={heads}; try d_model={fits}, or other n_heads",
        )
        require(
            width // heads % 2 == 0,
            f"d_model / n_heads = {width // heads} must be even (pairs are rotated); try d_model={width + heads}",
        )
        require(
            heads % self.kv_heads == 0, f"n_kv_heads={self.kv_heads} does not divide n_heads={heads}; try n_kv_heads=1"
        )
        between(self, "dropout", 0.0, 1.0, "0.1")
        require(self.rope_base > 1, f"rope_base={self.rope_base} must be above 1; try rope_base=10000")
        require(self.init_std > 0, f"init_std={self.init_std} must be above 0; try init_std=0.02")
        require(self.norm_eps > 0, f"norm_eps={self.norm_eps} must be above 0; try norm_eps=1e-5")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, as a number."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def ff(self) -> int:
        """Width inside the feed-forward part, as a number."""
        assert self.d_ff is not None
        return self.d_ff

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads


PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(
        vocab_size=2048, d_model=128, n_layers=4, n_heads=4, d_ff=256, context=128, dropout=0.1, init_std=0.06
    ),
    "mini": ModelConfig(d_model=128, n_layers=4, n_heads=4, context=64),
    "small": ModelConfig(d_model=224, n_layers=5, n_heads=7, context=128),
    "medium": ModelConfig(d_model=352, n_layers=7, n_heads=11, context=256),
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """The preset's model with some fields changed. `ConfigError` names the nearest when there is none so called."""
    require(name in PRESETS, f"preset={name!r} is unknown{nearest(name, PRESETS)} (there are: {', '.join(PRESETS)})")
    known = {f.name for f in fields(ModelConfig)}
    for key in changes:
        require(key in known, f"a model has no field {key!r}{nearest(key, known)}")
    base = PRESETS[name]
    derived: dict[str, Any] = {}
    if "d_model" in changes:
        derived["d_ff"] = None
    if "n_heads" in changes:
        derived["n_kv_heads"] = None
    return replace(base, **{**derived, **changes})


@dataclass(frozen=True, kw_only=True)
class ModelOverrides:
    """Changes to the preset's model. None: what the preset says."""

    d_model: int | None = None
    """Width of the residual stream."""
    n_layers: int | None = None
    """Number of blocks."""
    n_heads: int | None = None
    """Attention heads; must divide d_model."""
    n_kv_heads: int | None = None
    """Heads of keys and values (grouped-query attention)."""
    d_ff: int | None = None
    """Width inside the feed-forward part."""
    context: int | None = None
    """Sequence length, in tokens."""
    dropout: float | None = None
    """Share of activations set to zero while training."""
    tie_embeddings: bool | None = None
    """Use one matrix for the token embedding and the output layer."""

    def changes(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}

"""Every setting of a run, as frozen dataclasses that check themselves. `course train` turns their fields into flags.

A bad value raises `ConfigError` before the first step: which field, why, and a value that works.
"""

import difflib
import hashlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from course_lib.errors import ConfigError

__all__ = [
    "PRESETS",
    "DataConfig",
    "ModelConfig",
    "ModelOverrides",
    "OptimConfig",
    "TrainConfig",
    "from_dict",
    "preset",
    "stream_seed",
    "to_dict",
]


def stream_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose ("init", "dropout", ...), so that no two uses of `seed` share a random stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:8], "big") >> 1


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def _positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and value >= 1, f"{name}={value!r} must be a whole number of at least 1")


def _between(config: Any, name: str, low: float, high: float, try_value: str) -> None:
    value = getattr(config, name)
    require(low <= value < high, f"{name}={value} must be at least {low:g} and below {high:g}; try {name}={try_value}")


def _one_of(config: Any, name: str, known: tuple[str, ...]) -> None:
    value = getattr(config, name)
    require(value in known, f"{name}={value!r} is unknown{_nearest(value, known)} (there are: {', '.join(known)})")


def _nearest(word: str, words: Collection[str]) -> str:
    match = difflib.get_close_matches(word, list(words), n=1, cutoff=0.4)
    return f"; did you mean {match[0]!r}?" if match else ""


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
        _positive(self, "vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff", "context")
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
        _between(self, "dropout", 0.0, 1.0, "0.1")
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
    require(name in PRESETS, f"preset={name!r} is unknown{_nearest(name, PRESETS)} (there are: {', '.join(PRESETS)})")
    known = {f.name for f in fields(ModelConfig)}
    for key in changes:
        require(key in known, f"a model has no field {key!r}{_nearest(key, known)}")
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


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train on."""

    text: Path | None = None
    """A UTF-8 text file of your own; None: Python's language reference, which every Python carries."""
    tokenizer: Literal["bpe", "bytes"] = "bpe"
    """bpe learns its tokens from the training text; bytes needs no learning."""
    vocab_size: int = 1024
    """Tokens of the BPE vocabulary (bytes has its own 257)."""
    val_fraction: float = 0.1
    """Share of the documents held out for validation."""
    split_seed: int = 0
    """Decides which documents are held out."""

    def __post_init__(self) -> None:
        _one_of(self, "tokenizer", ("bpe", "bytes"))
        _positive(self, "vocab_size")
        if self.tokenizer == "bpe":
            require(
                self.vocab_size >= 300,
                f"vocab_size={self.vocab_size} is too small for BPE, which starts from 256 bytes; try vocab_size=1024",
            )
        _between(self, "val_fraction", 0.0, 1.0, "0.1")
        require(self.val_fraction > 0, "val_fraction=0 leaves nothing to validate on; try val_fraction=0.1")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW, its learning-rate schedule and clipping."""

    lr: float = 4e-3
    """Highest learning rate, reached after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of AdamW's two running means."""
    eps: float = 1e-8
    """Added to AdamW's denominator."""
    weight_decay: float = 0.1
    """Decay of matrices; vectors (norm gains) are never decayed."""
    warmup_steps: int | None = None
    """Steps in which the learning rate rises; None: a twentieth of the run, at most 100."""
    min_lr_ratio: float = 0.1
    """Learning rate at the last step, as a share of lr."""
    clip_norm: float | None = 1.0
    """Largest gradient norm; None: no clipping."""

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr={self.lr} must be above 0; try lr=4e-3")
        require(
            len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas),
            f"betas={self.betas} must be two numbers, each at least 0 and below 1; try betas 0.9 0.95",
        )
        require(self.eps > 0, f"eps={self.eps} must be above 0; try eps=1e-8")
        require(self.weight_decay >= 0, f"weight_decay={self.weight_decay} must not be negative; try weight_decay=0.1")
        warm = self.warmup_steps
        require(warm is None or warm >= 0, f"warmup_steps={warm} must not be negative; try warmup_steps=50")
        require(0 <= self.min_lr_ratio <= 1, f"min_lr_ratio={self.min_lr_ratio} must be between 0 and 1; try 0.1")
        require(
            self.clip_norm is None or self.clip_norm > 0,
            f"clip_norm={self.clip_norm} must be above 0; try clip_norm=1.0, or None for no clipping",
        )

    def warmup(self, steps: int) -> int:
        """Warm-up steps of a run of `steps`."""
        return min(100, steps // 20) if self.warmup_steps is None else self.warmup_steps


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run."""

    preset: str = "tiny"
    """Model: tiny, mini (what the chapters train), small or medium."""
    steps: int = 900
    """Optimizer steps of the whole run; the schedule is cut to this length."""
    batch: int = 6
    """Sequences per optimizer step, over all micro-batches."""
    micro_batch: int | None = None
    """Sequences per forward pass; must divide batch. None: the whole batch at once."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and dropout."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 runs matrix products in BF16, weights stay FP32; auto: bf16 where a short probe says it is faster."""
    compile: bool = False
    """Compile the model with torch.compile: faster steps after about half a minute; needs a C++ compiler."""
    activation_checkpointing: Literal["none", "all", "keep_attention", "keep_matmuls"] = "none"
    """What a block computes again in backward instead of keeping it: nothing, all, all but its attention or its matrix
    products. Same gradients, less memory, more time."""
    recompute_every: int = 1
    """With activation checkpointing: every k-th block recomputes; 1: all blocks."""
    val_every: int = 250
    """Steps between validations; 0: at the end only."""
    checkpoint_every: int = 0
    """Steps between checkpoints, when there is an out; 0: at the end only."""
    out: Path | None = None
    """Folder for metrics.jsonl and checkpoints; None: nothing is written."""
    resume: Path | None = None
    """A checkpoint, or the out folder of an earlier run: go on from there."""
    model: ModelOverrides = field(default_factory=ModelOverrides)
    """Changes to the preset's model."""
    data: DataConfig = field(default_factory=lambda: DataConfig(vocab_size=2048))
    """What to train on."""
    optim: OptimConfig = field(
        # Tuned for the default run, which reads its small corpus six times: strong decay, and little left at the end.
        default_factory=lambda: OptimConfig(lr=3e-3, betas=(0.9, 0.98), weight_decay=0.5, min_lr_ratio=0.02)
    )
    """AdamW, its schedule and clipping."""

    def __post_init__(self) -> None:
        _positive(self, "steps", "batch")
        micro, batch, warm = self.micro_batch, self.batch, self.optim.warmup(self.steps)
        if micro is not None:
            _positive(self, "micro_batch")
            fits = max(d for d in range(1, min(micro, batch) + 1) if batch % d == 0)
            require(batch % micro == 0, f"micro_batch={micro} does not divide batch={batch}; try micro_batch={fits}")
        require(
            warm < self.steps,
            f"warmup_steps={warm} is not shorter than the run, steps={self.steps}; try warmup_steps={self.steps // 10}",
        )
        for name in ("val_every", "checkpoint_every"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative; 0: at the end only")
        _one_of(self, "precision", ("auto", "fp32", "bf16"))
        _one_of(self, "activation_checkpointing", ("none", "all", "keep_attention", "keep_matmuls"))
        _positive(self, "recompute_every")
        require(
            self.activation_checkpointing == "none" or not self.compile,
            f"activation_checkpointing={self.activation_checkpointing!r} does not go with compile; set compile=False",
        )
        self.model_config(self.data.vocab_size)

    @property
    def micro_batches(self) -> int:
        """Forward passes per optimizer step."""
        return 1 if self.micro_batch is None else self.batch // self.micro_batch

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The preset's model with this run's changes and that vocabulary."""
        return preset(self.preset, **{**self.model.changes(), "vocab_size": vocab_size})


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as JSON data (paths as text)."""
    out: dict[str, Any] = {}
    for name, value in asdict(config).items():
        inner = getattr(config, name)
        out[name] = to_dict(inner) if isinstance(value, dict) else str(value) if isinstance(value, Path) else value
    return out


def from_dict(data: dict[str, Any]) -> TrainConfig:
    """The run's configuration from JSON data; `ConfigError` for a field that does not exist."""
    parts: dict[str, Any] = {"model": ModelOverrides, "data": DataConfig, "optim": OptimConfig}
    paths = {"out", "resume", "text"}

    def build(kind: Any, values: dict[str, Any]) -> Any:
        known = {f.name for f in fields(kind)}
        clean: dict[str, Any] = {}
        for name, value in values.items():
            require(name in known, f"{kind.__name__} has no field {name!r}{_nearest(name, known)}")
            if isinstance(value, dict):
                value = build(parts[name], value)
            elif name in paths and value is not None:
                value = Path(value)
            clean[name] = tuple(value) if isinstance(value, list) else value
        return kind(**clean)

    result: TrainConfig = build(TrainConfig, data)
    return result

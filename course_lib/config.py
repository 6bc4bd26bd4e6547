"""Every setting of a run, as frozen dataclasses that check themselves. `course train` turns their fields into flags.

A bad value raises `ConfigError` before the first step: which field, why, and a value that works.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from course_lib.errors import ConfigError
from course_lib.settings import between, nearest, one_of, positive, require, stream_seed
from course_lib.shapes import PRESETS, ModelConfig, ModelOverrides, preset

__all__ = [
    "PRESETS",
    "DataConfig",
    "ModelConfig",
    "ModelOverrides",
    "OptimConfig",
    "TrainConfig",
    "from_dict",
    "preset",
    "require",
    "stream_seed",
    "to_dict",
]


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
        one_of(self, "tokenizer", ("bpe", "bytes"))
        positive(self, "vocab_size")
        if self.tokenizer == "bpe":
            require(
                self.vocab_size >= 300,
                f"vocab_size={self.vocab_size} is too small for BPE, which starts from 256 bytes; try vocab_size=1024",
            )
        between(self, "val_fraction", 0.0, 1.0, "0.1")
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
    """Sequences per optimizer step, over all micro-batches and ranks."""
    micro_batch: int | None = None
    """Sequences per forward pass of a rank; must divide batch. None: the whole batch (a rank's part) at once."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and dropout."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """bf16, fp16: matrix products in 16 bits, fp16 with a loss scaler, slow on a CPU; auto: a short probe decides."""
    weights: Literal["fp32", "bf16"] = "fp32"
    """bf16: weights and gradients in BF16, the optimizer works on FP32 masters beside them."""
    compile: bool = False
    """Compile the model with torch.compile: faster steps after about half a minute; needs a C++ compiler."""
    activation_checkpointing: Literal["none", "all", "keep_attention", "keep_matmuls"] = "none"
    """What a block computes again in backward instead of keeping it: nothing, all, all but its attention or its matrix
    products. Same gradients, less memory, more time."""
    recompute_every: int = 1
    """With activation checkpointing: every k-th block recomputes; 1: all blocks."""
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    """ddp: a replica on each rank; fsdp: each rank holds a part. Started by torchrun, see docs/multi-node.md."""
    val_every: int = 250
    """Steps between validations; 0: at the end only."""
    checkpoint_every: int = 0
    """Steps between checkpoints, when there is an out; 0: at the end only."""
    keep_checkpoints: int = 0
    """How many checkpoints to keep in out, the newest ones; 0: all."""
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
        positive(self, "steps", "batch")
        micro, batch, warm = self.micro_batch, self.batch, self.optim.warmup(self.steps)
        if micro is not None:
            positive(self, "micro_batch")
            fits = max(d for d in range(1, min(micro, batch) + 1) if batch % d == 0)
            require(batch % micro == 0, f"micro_batch={micro} does not divide batch={batch}; try micro_batch={fits}")
        require(
            warm < self.steps,
            f"warmup_steps={warm} is not shorter than the run, steps={self.steps}; try warmup_steps={self.steps // 10}",
        )
        for name in ("val_every", "checkpoint_every"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative; 0: at the end only")
        require(
            self.keep_checkpoints >= 0,
            f"keep_checkpoints={self.keep_checkpoints} must not be negative; try keep_checkpoints=3, or 0 for all",
        )
        one_of(self, "precision", ("auto", "fp32", "bf16", "fp16"))
        one_of(self, "weights", ("fp32", "bf16"))
        require(
            self.weights == "fp32" or self.precision in ("auto", "bf16"),
            f"weights='bf16' computes in BF16, not precision={self.precision!r}; use precision='bf16'",
        )
        one_of(self, "parallel", ("none", "ddp", "fsdp"))
        require(
            self.parallel == "none" or not self.compile,
            f"parallel={self.parallel!r} does not go with compile; set compile=False",
        )
        one_of(self, "activation_checkpointing", ("none", "all", "keep_attention", "keep_matmuls"))
        positive(self, "recompute_every")
        require(
            self.activation_checkpointing == "none" or not self.compile,
            f"activation_checkpointing={self.activation_checkpointing!r} does not go with compile; set compile=False",
        )
        self.model_config(self.data.vocab_size)

    @property
    def micro_batches(self) -> int:
        """Forward passes per optimizer step of one process."""
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
            if name not in known:
                raise ConfigError(f"{kind.__name__} has no field {name!r}{nearest(name, known)}")
            if isinstance(value, dict):
                value = build(parts[name], value)
            elif name in paths and value is not None:
                value = Path(value)
            clean[name] = tuple(value) if isinstance(value, list) else value
        return kind(**clean)

    result: TrainConfig = build(TrainConfig, data)
    return result

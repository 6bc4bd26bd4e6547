"""What a plan is made from: model, data, hardware, layout and assumptions, as frozen dataclasses that check themselves.

    run = RunSpec(name="mine", model=..., data=..., hardware=..., layout=..., assume=...)
    run.layout.devices, run.accumulation, run.batch_tokens, run.steps

A TOML file has the same sections and keys (`course_lib.planning.files`). Units stand in the names: GiB are 2**30 bytes,
GB/s are 10**9 bytes a second, TFLOP/s are 10**12. Rules that need two sections are in `course_lib.planning.rules`.
"""

from dataclasses import dataclass, field
from typing import Literal

from course_lib.planning.values import check_values

__all__ = ["Assumptions", "DataSpec", "HardwareSpec", "LayoutSpec", "ModelSpec", "RunSpec"]


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer, by its shapes."""

    layers: int
    width: int
    heads: int
    vocab: int
    kv_heads: int | None = None
    """Heads of keys and values; None: as many as `heads`."""
    head_dim: int | None = None
    """None: width / heads."""
    ffn: int | None = None
    """Width inside the feed-forward block (each matrix's, not gate and up together); None: 4 x width."""
    gated: bool = True
    """Three matrices in the feed-forward block (SwiGLU), or two (GELU)."""
    tied: bool = False
    """The output layer is the embedding."""
    biases: bool = False
    """Linear layers and norms have biases (GPT-2, BLOOM)."""
    positions: int = 0
    """Learned positions, in rows of `width`; 0: rotary or none."""
    experts: int = 0
    """Routed experts a mixture layer; 0: a dense model."""
    active_experts: int = 0
    """Routed experts that each token visits."""
    shared_experts: int = 0
    """Experts that every token visits."""
    expert_ffn: int | None = None
    """Width inside an expert; None: as `ffn`."""
    dense_layers: int = 0
    """The first so many layers have a dense feed-forward block, also where there are experts."""
    attention_parameters: int | None = None
    """Of one layer, where its attention is no plain one (DeepSeek's latent attention); None: from the shapes."""

    def __post_init__(self) -> None:
        check_values("model", self)


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """What it is trained on."""

    tokens: float
    """Of the whole run."""
    sequence: int
    """Tokens a sequence."""
    global_batch: int
    """Sequences behind one update."""

    def __post_init__(self) -> None:
        check_values("data", self)


@dataclass(frozen=True, kw_only=True)
class HardwareSpec:
    """What it is trained with. `devices.toml` has common devices: `device = "H100 SXM"` fills in what is left out."""

    devices: int
    device: str | None = None
    devices_per_node: int | None = None
    memory_gib: float | None = None
    memory_tb_per_s: float | None = None
    """What a device reads from and writes to its own memory: the time of an optimizer's update."""
    peak_tflops: float | None = None
    """Dense, in the dtype of the matrix products: what MFU divides by."""
    reached: float | None = None
    """Share of the peak that large matrix products reach alone."""
    inside_gb_per_s: float | None = None
    """What one device sends to others of its node, one way."""
    across_gb_per_s: float | None = None
    """What one device sends to other nodes, one way."""
    failures_per_device_year: float | None = None
    """Interruptions of the whole run that one device causes, on average."""
    storage_gb_per_s: float | None = None
    """What all devices together write."""
    price_per_device_hour: float | None = None
    """In any currency; None: no cost is given."""

    def __post_init__(self) -> None:
        check_values("hardware", self)


@dataclass(frozen=True, kw_only=True)
class LayoutSpec:
    """How the run is cut. Devices are data x tensor x pipeline x context; expert divides data."""

    data: int = 1
    """Data-parallel ranks: each has its own sequences."""
    sharding: Literal["ddp", "zero1", "zero2", "fsdp", "fsdp_no_reshard", "hsdp"] = "fsdp"
    """What data-parallel ranks share out, as in `communication.STRATEGIES`."""
    replicas: int = 1
    """Groups of hsdp that each hold a whole model."""
    tensor: int = 1
    sequence_parallel: bool = True
    """With tensor > 1: what lies between matrix products is cut along the sequence."""
    pipeline: int = 1
    schedule: str = "1f1b"
    """As in `parallel.schedule`: naive, gpipe, 1f1b, interleaved, zb_h1, zbv, dualpipev."""
    chunks: int = 1
    """Model chunks a pipeline rank (zbv and dualpipev: 2)."""
    context: int = 1
    context_form: Literal["ring", "all-gather"] = "ring"
    expert: int = 1
    micro_batch: int = 1
    """Sequences that a data-parallel rank computes at once."""
    recompute: Literal["none", "selective", "all"] = "none"
    """selective: attention's inner values again (nothing to save where attention is fused); all: every block."""
    recipe: str = "adamw-16bit-fp32-gradients"
    """Bytes a parameter, as in `formulas.RECIPES`."""
    fused_attention: bool = True
    """The sequence x sequence scores never reach memory (FlashAttention)."""

    def __post_init__(self) -> None:
        check_values("layout", self)

    @property
    def devices(self) -> int:
        """What the layout fills."""
        return self.data * self.tensor * self.pipeline * self.context


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What is measured or assumed, not computed."""

    mfu: float | None = None
    """Share of the peak that the whole step reaches; None: predicted from shapes, layout and bandwidths."""
    efficiency: float | None = None
    """Share of `reached` that a step's matrix products reach, in the prediction; None: as fitted for the device."""
    restart_minutes: float = 10.0
    """From a failure until the run computes again: noticed, replaced, loaded, warm."""
    checkpoint_every_minutes: float | None = None
    """None: as Young and Daly have it."""
    hidden: float = 1.0
    """Share of the traffic of data parallelism that can hide behind computing."""
    hidden_tensor: float = 0.0
    """The same of tensor parallelism and between pipeline stages; 1: as PyTorch's async TP or Megatron-Core try to."""
    recompute_stops_early: bool = True
    """Recomputing a block leaves out its last matrix product, as PyTorch does; false: none, as Megatron-LM."""

    def __post_init__(self) -> None:
        check_values("assume", self)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A whole run."""

    name: str = "run"
    model: ModelSpec
    data: DataSpec
    hardware: HardwareSpec
    layout: LayoutSpec = field(default_factory=LayoutSpec)
    assume: Assumptions = field(default_factory=Assumptions)

    @property
    def batch_tokens(self) -> int:
        """Tokens behind one update."""
        return self.data.global_batch * self.data.sequence

    @property
    def accumulation(self) -> int:
        """Micro-batches that each data-parallel rank computes for one update: what a pipeline's schedule calls m."""
        return self.data.global_batch // (self.layout.data * self.layout.micro_batch)

    @property
    def steps(self) -> int:
        """Updates of the run, the last one whole."""
        return -(-int(self.data.tokens) // self.batch_tokens)

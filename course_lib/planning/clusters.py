"""Machines and models with published sizes, and one FSDP step of a model on many devices.

    CLUSTERS["H100 nodes"].bandwidth                  # bytes a second that one rank sends in a ring over all nodes
    step = fsdp_step(MODELS["Llama 2 70B"], 4096, 4 * 2**20, devices=1024, cluster=CLUSTERS["H100 nodes"])
    step.computing, step.sending, step.seconds, step.mfu, step.crossover, step.floor

What is left out of the step: the optimizer, embedding and loss as layers of their own, kernels that get slower when a
device has few tokens, networks that get slower with more devices, failures. Real runs stay below this MFU.
"""

from dataclasses import dataclass

from course_lib.config import ModelConfig, preset
from course_lib.errors import ConfigError
from course_lib.planning.communication import batch_floor, crossover, step_time
from course_lib.planning.devices import DEVICES
from course_lib.planning.formulas import matmul_flops, model_params

__all__ = ["CLUSTERS", "MODELS", "Cluster", "FsdpStep", "fsdp_step"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices of one kind in a network without a bottleneck of its own (a fat tree)."""

    peak: float
    """FLOP/s of the data sheet, dense, in the dtype of the matrix products: what MFU divides by."""
    reached: float
    """Share of it that matrix products reach alone."""
    bandwidth: float
    """Bytes a second that one rank sends in a ring over all devices. A ring leaves a node once and uses all its network
    cards, so that it is their sum, one way, where NVLink inside the node is faster still."""
    bytes_gathered: int
    """Bytes of an element in an all-gather of weights."""
    bytes_reduced: int
    """Bytes of an element in a reduce-scatter of gradients."""
    source: str
    """Which figure is whose."""


_LAPTOP, _A100, _H100 = (DEVICES[name] for name in ("laptop CPU", "A100 SXM 80GB", "H100 SXM"))

CLUSTERS: dict[str, Cluster] = {
    "laptops": Cluster(
        peak=_LAPTOP.peak_tflops * 1e12,
        reached=_LAPTOP.reached,
        bandwidth=_LAPTOP.across_gb_per_s * 1e9,
        bytes_gathered=4,
        bytes_reduced=4,
        source=(
            "0.3 TFLOP/s: an FP32 matrix product on a laptop's CPU, an example (chapter 0 measures yours); 0.125 GB/s: "
            "gigabit Ethernet's line rate, IEEE 802.3ab"
        ),
    ),
    "A100 nodes": Cluster(
        peak=_A100.peak_tflops * 1e12,
        reached=_A100.reached,
        bandwidth=_A100.across_gb_per_s * _A100.devices_per_node * 1e9,
        bytes_gathered=2,
        bytes_reduced=4,
        source=(
            "312 TFLOP/s BF16 and eight 200 Gb/s cards a node of eight GPUs: data sheets of A100 SXM and DGX A100 "
            "(NVIDIA); 87%: 271 TFLOP/s, the best matrix product measured in ml-engineering (Bekman)"
        ),
    ),
    "H100 nodes": Cluster(
        peak=_H100.peak_tflops * 1e12,
        reached=_H100.reached,
        bandwidth=_H100.across_gb_per_s * _H100.devices_per_node * 1e9,
        bytes_gathered=2,
        bytes_reduced=4,
        source=(
            "989 TFLOP/s BF16 dense and eight 400 Gb/s cards a node of eight GPUs: data sheets of H100 SXM and DGX "
            "H100 (NVIDIA), as in How to Scale Your Model, part 12 (Austin et al. 2025); 80%: 794 TFLOP/s, the best "
            "matrix product measured in ml-engineering (Bekman)"
        ),
    ),
}
"""A laptop cluster, and the two GPU clusters that most published runs used. Peaks and network rates are data sheets';
the shares reached are measured by others, on single GPUs."""

MODELS: dict[str, ModelConfig] = {
    "this course's medium": preset("medium"),
    "Llama 3 8B": ModelConfig(
        vocab_size=128_256, d_model=4096, n_layers=32, n_heads=32, n_kv_heads=8, d_ff=14_336, tie_embeddings=False
    ),
    "Llama 2 70B": ModelConfig(
        vocab_size=32_000, d_model=8192, n_layers=80, n_heads=64, n_kv_heads=8, d_ff=28_672, tie_embeddings=False
    ),
    "Llama 3 405B": ModelConfig(
        vocab_size=128_256, d_model=16_384, n_layers=126, n_heads=128, n_kv_heads=8, d_ff=53_248, tie_embeddings=False
    ),
}
"""Touvron et al. 2023 (arXiv 2307.09288); Grattafiori et al. 2024 (arXiv 2407.21783), table 3. Same kind of block."""


@dataclass(frozen=True)
class FsdpStep:
    """One optimizer step with one micro-batch, as the model of `communication.step_time` has it. Times in seconds."""

    computing: float
    """What a device computes."""
    sending: float
    """What a rank sends: two gathers and a reduce-scatter of all weights."""
    seconds: float
    """The step, with what is hidden and what is exposed."""
    mfu: float
    """FLOPs of the model's matrix products over what all devices could do in that time at their peak."""
    crossover: float
    """Devices at which sending takes as long as computing."""
    floor: int
    """Devices that have a whole sequence: with more, some have nothing to do."""


def fsdp_step(
    model: ModelConfig,
    sequence: int,
    batch_tokens: float,
    devices: int,
    cluster: Cluster,
    *,
    prefetch: bool = True,
    latency: float = 0.0,
) -> FsdpStep:
    """A step of `batch_tokens` in sequences of `sequence` tokens, on so many devices.

    latency: seconds that a step of a ring takes even when it sends nothing; a layer's gather has devices - 1 of them.
    A device has batch_tokens / devices tokens, but never less than a sequence, and so has the whole batch.
    FLOPs are `matmul_flops`, attention's full square included, as in PaLM's MFU (arXiv 2204.02311, appendix B).
    """
    if devices < 1 or sequence < 1:
        raise ConfigError(f"devices={devices} and sequence={sequence} must be at least 1")
    layers, parameters = model.n_layers, sum(model_params(model).values())
    sequences = max(1.0, batch_tokens / sequence)
    flops = sequences * matmul_flops(model, 1, sequence)
    around = (devices - 1) / devices / cluster.bandwidth * parameters / layers  # seconds a layer and byte of an element
    waiting = (devices - 1) * latency
    gather, scatter = (around * size + waiting for size in (cluster.bytes_gathered, cluster.bytes_reduced))
    rate = cluster.peak * cluster.reached
    computing = flops / min(float(devices), sequences) / rate
    seconds = step_time(layers, computing / layers / 3, 2 * computing / layers / 3, gather, scatter, prefetch=prefetch)
    sent = parameters * (2 * cluster.bytes_gathered + cluster.bytes_reduced)
    return FsdpStep(
        computing=computing,
        sending=layers * (2 * gather + scatter),
        seconds=seconds,
        mfu=flops / (devices * cluster.peak * seconds),
        crossover=crossover(flops, sent, rate, cluster.bandwidth),
        floor=max(1, batch_floor(batch_tokens, sequence)),
    )

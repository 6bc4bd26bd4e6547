"""A plan on the back of an envelope: what five multiplications say, beside what the planner computes.

envelope(run).days, envelope(run).state_gib     # six numbers, by hand
against(run)["days"]                            # the envelope's over the plan's
unseen(7)                                       # a run that nobody has seen, the same for the same seed
"""

from dataclasses import dataclass

import numpy as np

from course_lib.planning.cadence import HOURS_A_YEAR, checkpoint_bytes, write_seconds, young
from course_lib.planning.devices import fill
from course_lib.planning.formulas import bytes_per_parameter, train_flops
from course_lib.planning.plan import given, plan
from course_lib.planning.sizes import active, total
from course_lib.planning.spec import DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec

__all__ = ["MFU", "Envelope", "against", "envelope", "unseen"]

MFU = 0.4
"""What the envelope takes for the share of the peak: published runs on A100 and H100 reach 35 to 50%."""


@dataclass(frozen=True)
class Envelope:
    """Six numbers, none of which needs a computer."""

    steps: float
    """Tokens over tokens of a batch."""
    state_gib: float
    """Bytes a parameter times parameters, over all devices: as if everything were shared out."""
    days: float
    """6ND over devices, peak and `MFU`."""
    checkpoint_gib: float
    """Bytes a parameter without the gradients, times parameters."""
    save_minutes: float
    """Young: sqrt(2 x seconds of a save x mean time between failures)."""
    stops: float
    """Devices x years x failures a device and year."""


def envelope(run: RunSpec) -> Envelope:
    """By hand. `ConfigError` for hardware with a number missing; `devices.fill` fills it."""
    hardware, n = run.hardware, total(run.model)
    rate = hardware.devices * given(hardware.peak_tflops, "peak_tflops") * 1e12 * MFU
    seconds = train_flops(active(run.model), run.data.tokens) / rate
    a_year = hardware.devices * given(hardware.failures_per_device_year, "failures_per_device_year")
    size = checkpoint_bytes(n, run.layout.recipe)
    write = write_seconds(size, given(hardware.storage_gb_per_s, "storage_gb_per_s"))
    return Envelope(
        steps=run.data.tokens / run.batch_tokens,
        state_gib=n * bytes_per_parameter(run.layout.recipe) / hardware.devices / 2**30,
        days=seconds / 86_400,
        checkpoint_gib=size / 2**30,
        save_minutes=young(write, HOURS_A_YEAR * 3600 / a_year) / 60,
        stops=a_year * seconds / 3600 / HOURS_A_YEAR,
    )


def against(run: RunSpec) -> dict[str, float]:
    """Each number of the envelope over the plan's; the state is compared with the fullest device's peak.

    `ConfigError` where no plan exists.
    """
    made = plan(run)
    own = envelope(made.run)
    return {
        "steps": own.steps / made.amount.steps,
        "checkpoint size": own.checkpoint_gib * 2**30 / made.cadence.checkpoint_bytes,
        "time between saves": own.save_minutes * 60 / made.cadence.daly_seconds,
        "days": own.days / made.time.days,
        "interruptions": own.stops / made.cadence.interruptions,
        "memory of a device": own.state_gib * 2**30 / made.memory.peak,
    }


def unseen(seed: int) -> RunSpec:
    """A dense run with a legal layout that fits or does not, drawn from the seed: 0.2 to 100 B parameters, 8 to 4,096
    devices."""
    rng = np.random.default_rng(seed)

    def one(options: tuple[int, ...]) -> int:
        return int(rng.choice(options))

    heads = one((16, 24, 32, 40, 64))
    layers = one((16, 24, 32, 40, 48, 64, 80))
    model = ModelSpec(
        layers=layers, width=128 * heads, heads=heads, kv_heads=8, ffn=one((256, 384, 448)) * heads,
        vocab=one((32_000, 50_304, 128_256)), tied=bool(one((0, 1))),
    )  # fmt: skip
    n = total(model)
    tensor = one((1, 2, 4, 8)) if n > 3e9 else 1
    pipeline = one((1, 2, 4, 8)) if n > 1e10 else 1
    data, sequence = one((8, 16, 32, 64)), one((2048, 4096, 8192))
    micro_batches = one((4, 8, 16))
    device = str(rng.choice(["A100 SXM 80GB", "H100 SXM"]))
    return RunSpec(
        name=f"unseen {seed}",
        model=model,
        data=DataSpec(tokens=float(n) * one((20, 50, 200)), sequence=sequence, global_batch=data * micro_batches),
        hardware=fill(HardwareSpec(devices=data * tensor * pipeline, device=device)),
        layout=LayoutSpec(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            sharding="fsdp" if pipeline == 1 else "zero1",
            recompute="all" if one((0, 1)) else "none",
        ),
    )

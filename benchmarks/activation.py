"""Time, bytes and FLOPs of a training step for each way to recompute, against keeping everything, in one run.

    python benchmarks/activation.py [--out FILE.json] [--preset small] [--batch 8] [--rounds N] [--precision fp32]

All variants live in one process and take turns, so that other work on the machine hits all of them alike; a ratio is
the median over rounds of this variant's time by the time of "none" in the same round. "Saved" and FLOPs are the
formulas' (tests hold them to what is counted), the peak is measured.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F

from course_lib.amp import precision_policy
from course_lib.config import PRESETS, preset
from course_lib.machine import keep_memory, probe, set_threads
from course_lib.memory import Peak
from course_lib.model import GPT
from course_lib.planning.formulas import activation_bytes, matmul_flops, recomputed_flops
from course_lib.recompute import recompute_blocks

VARIANTS = (
    ("none", "none", 1),
    ("every 2nd block", "all", 2),
    ("all blocks", "all", 1),
    ("keep attention", "keep_attention", 1),
    ("keep matmuls", "keep_matmuls", 1),
)


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--context", type=int, help="tokens a sequence; else the preset's")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    set_threads()
    keep_memory()
    changes = {"dropout": arguments.dropout, **({"context": arguments.context} if arguments.context else {})}
    config, batch = preset(arguments.preset, **changes), arguments.batch
    policy = precision_policy("cpu", arguments.precision)
    tokens = torch.randint(
        0, config.vocab_size, (batch, config.context + 1), generator=torch.Generator().manual_seed(0)
    )
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step(model: GPT) -> None:
        with policy.autocast():
            logits = model(inputs)
        F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
        model.zero_grad()

    models = {name: recompute_blocks(GPT(config), mode, every) for name, mode, every in VARIANTS}
    peaks = {}
    for name, model in models.items():
        with Peak([*model.parameters(), *model.buffers(), inputs, targets]) as peak:
            start = peak.live
            step(model)  # also the warm-up
        peaks[name] = peak.peak - start
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(arguments.rounds):
        for name, model in models.items():
            begin = time.perf_counter()
            step(model)
            seconds[name].append(time.perf_counter() - begin)
    flops = matmul_flops(config, batch, config.context)
    rows = {}
    for name, mode, every in VARIANTS:
        ratios = [b / a for a, b in zip(seconds["none"], seconds[name], strict=True)]
        rows[name] = {
            "ms_per_step": 1e3 * statistics.median(seconds[name]),
            "time_ratio": statistics.median(ratios),
            "flops_ratio": 1 + recomputed_flops(config, batch, config.context, mode, every) / flops,
            "saved_bytes": activation_bytes(config, batch, config.context, arguments.precision, mode, every),
            "peak_bytes": peaks[name],
        }
    machine = probe()
    print(f"{machine.cpu}, {machine.threads} threads, torch {machine.torch}; {arguments.preset}, {arguments.precision}")
    print(f"{config.n_layers} blocks, width {config.d_model}, {batch} x {config.context} tokens; no optimizer step")
    print(f"{'':<18}{'ms/step':>9}{'time':>7}{'FLOPs':>7}{'saved MB':>10}{'peak MB':>9}")
    for name, row in rows.items():
        print(
            f"{name:<18}{row['ms_per_step']:>9.1f}{row['time_ratio']:>7.2f}{row['flops_ratio']:>7.2f}"
            f"{row['saved_bytes'] / 1e6:>10.1f}{row['peak_bytes'] / 1e6:>9.1f}"
        )
    if arguments.out is not None:
        result = {
            "benchmark": "activation",
            "machine": asdict(machine),
            "model": asdict(config),
            "batch": batch,
            "precision": arguments.precision,
            "rounds": arguments.rounds,
            "variants": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

"""Tokens per second of the trainer in BF16 against FP32, interleaved in one run, and whether this CPU has BF16 units.

    python benchmarks/precision.py [--out FILE.json] [--preset medium] [--batch 4] [--rounds N] [--steps N] [--fp16]

Variants: FP32; BF16 by autocast; BF16 weights with FP32 masters. Each trains the same model on the same batches
(medium: about 10M parameters, context 256). All live in one process and take turns, so that other work on the machine
hits all alike; a ratio is the median over rounds of FP32's time by this variant's time in the same round. The target
is 1.3 for BF16 at 10M parameters on a CPU with AVX512-BF16 or AMX; elsewhere the ratio is only reported. --fp16 adds
FP16 with a loss scaler, which takes minutes on most CPUs.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path

import torch

from course_lib.config import PRESETS, DataConfig, OptimConfig, TrainConfig
from course_lib.data import prepare
from course_lib.machine import bf16_speedup, probe
from course_lib.trainer import Trainer, training_step

TARGET = 1.3
VARIANTS = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "bf16 weights + masters": {"precision": "bf16", "weights": "bf16"},
    "fp16 + scaler": {"precision": "fp16"},
}


def bf16_units() -> list[str]:
    """The CPU's instructions for BF16 that torch found: avx512_bf16, amx_bf16, or none."""
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return [name for name in ("avx512_bf16", "amx_bf16") if capabilities.get(name)]


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--preset", default="medium", choices=list(PRESETS))
    parser.add_argument("--batch", type=int, default=4, help="sequences a step")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="steps of each variant in a round")
    parser.add_argument("--fp16", action="store_true", help="FP16 with a loss scaler too: slow")
    arguments = parser.parse_args()
    machine, units = probe(), bf16_units()
    data = DataConfig(vocab_size=1024)
    corpus = prepare(data)
    trainers = {
        name: Trainer(
            TrainConfig(
                preset=arguments.preset,
                device="cpu",
                steps=100_000,
                batch=arguments.batch,
                data=data,
                optim=OptimConfig(lr=1e-3, warmup_steps=100),
                **changes,
            ),
            corpus=corpus,
        )
        for name, changes in VARIANTS.items()
        if name != "fp16 + scaler" or arguments.fp16
    }
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(arguments.rounds + 1):
        for name, trainer in trainers.items():
            start = time.perf_counter()
            for _ in range(arguments.steps if number else 1):
                training_step(trainer.parts, trainer.step)
            if number:  # the first step of each is a warm-up
                seconds[name].append((time.perf_counter() - start) / arguments.steps)
    tokens = arguments.batch * trainers["fp32"].context
    parameters = trainers["fp32"].parameters
    rows = {
        name: {
            "ms_per_step": 1e3 * statistics.median(times),
            "tokens_per_second": tokens / statistics.median(times),
            "ratio": statistics.median(base / own for base, own in zip(seconds["fp32"], times, strict=True)),
        }
        for name, times in seconds.items()
    }
    print(f"{machine.cpu}, {machine.threads} threads, torch {machine.torch}; BF16 units: {', '.join(units) or 'none'}")
    print(f"{arguments.preset}, {parameters:,} parameters, {tokens:,} tokens a step; {bf16_speedup():.2f} times the")
    print("FP32 rate in a BF16 matrix product of 384 x 384")
    print(f"{'':<26}{'ms/step':>9}{'tokens/s':>11}{'ratio':>8}")
    for name, row in rows.items():
        print(f"{name:<26}{row['ms_per_step']:>9.0f}{row['tokens_per_second']:>11,.0f}{row['ratio']:>8.2f}")
    target = TARGET if units and arguments.preset == "medium" else None
    if target is not None:
        print(f"target {target} for bf16: {'reached' if rows['bf16']['ratio'] >= target else 'not reached'}")
    if arguments.out is not None:
        result = {
            "benchmark": "precision",
            "machine": asdict(machine),
            "bf16_units": units,
            "preset": arguments.preset,
            "parameters": parameters,
            "tokens_per_step": tokens,
            "rounds": arguments.rounds,
            "steps_per_round": arguments.steps,
            "bf16_matmul_speedup": bf16_speedup(),
            "target": target,
            "variants": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

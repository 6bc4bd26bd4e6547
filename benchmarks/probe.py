"""The leak probe on models of about a million parameters at 128 tokens: seconds, and in plain forward passes.

    python benchmarks/probe.py [--out FILE.json] [--batch 1] [--tokens 128] [--rounds 5]

For each model the probe and a forward pass of the same tokens in the model's own format take turns, so that other work
on the machine hits both alike; the ratio is the median over rounds. The probe computes in float64, with a second
sequence beside a single one, and asks about 15 times, more often where something leaks.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.config import ModelConfig
from course_lib.failures.causality import leak_matrix, probe
from course_lib.machine import probe as machine_of
from course_lib.machine import set_threads
from course_lib.model import GPT
from course_lib.moe import MoEConfig, moe_gpt

TARGET_SECONDS = 2.0
SHAPE = ModelConfig(vocab_size=1024, d_model=128, n_layers=4, n_heads=4, context=256)


def models() -> dict[str, Any]:
    """Name -> module or function."""
    experts = {"n_experts": 8, "top_k": 2, "d_expert": 64}
    called = GPT(SHAPE)
    return {
        "GPT": GPT(SHAPE),
        "GPT in BF16": GPT(SHAPE).bfloat16(),
        "GPT, called": lambda tokens: called(tokens),
        "token choice": moe_gpt(SHAPE, MoEConfig(**experts)),
        "expert choice": moe_gpt(SHAPE, MoEConfig(routing="expert_choice", **experts)),
        "drop in order": moe_gpt(SHAPE, MoEConfig(capacity_factor=1.0, **experts)),
    }


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call took, and what it returned."""
    begin = time.perf_counter()
    out = run()
    return time.perf_counter() - begin, out


def forward(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """One plain pass."""
    with torch.no_grad():
        return model(tokens)


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    set_threads()
    tokens = torch.randint(
        SHAPE.vocab_size, (arguments.batch, arguments.tokens), generator=torch.Generator().manual_seed(0)
    )
    rows = []
    for name, model in models().items():
        probes, ratios, spent = [], [], []
        report = probe(model, tokens, SHAPE.vocab_size)  # warms up
        for _ in range(arguments.rounds):
            plain = statistics.median(seconds(lambda model=model: forward(model, tokens))[0] for _ in range(5))
            begin = time.process_time()
            took, report = seconds(lambda model=model: probe(model, tokens, SHAPE.vocab_size))
            spent.append(time.process_time() - begin)
            probes.append(took)
            ratios.append(took / plain)
        rows.append(
            {
                "model": name,
                "parameters": sum(p.numel() for p in model.parameters()) if hasattr(model, "parameters") else None,
                "seconds": statistics.median(probes),
                "cpu_seconds": statistics.median(spent),
                "forward_passes": statistics.median(ratios),
                "leaks": report.leaks,
                "leaks_across_batch": report.leaks_across_batch,
            }
        )
    matrix, _ = seconds(lambda: leak_matrix(models()["GPT"], tokens, SHAPE.vocab_size))
    machine = machine_of()
    print(f"{machine.cpu}, {machine.threads} threads; {arguments.batch} x {arguments.tokens} tokens")
    print(f"{'':<16}{'parameters':>12}{'seconds':>9}{'CPU':>7}{'passes':>8}  leaks, across the batch")
    for row in rows:
        size = f"{row['parameters']:,}" if row["parameters"] else ""
        print(
            f"{row['model']:<16}{size:>12}{row['seconds']:>9.2f}{row['cpu_seconds']:>7.2f}{row['forward_passes']:>8.0f}"
            f"  {row['leaks']}, {row['leaks_across_batch']}"
        )
    print(f"leak_matrix of the GPT, {arguments.tokens} passes and a probe: {matrix:.1f} s")
    clock, cpu = (max(row[what] for row in rows) for what in ("seconds", "cpu_seconds"))
    verdict = "reached" if clock < TARGET_SECONDS else "not reached"
    print(f"target {TARGET_SECONDS:.0f} s: {verdict}, {clock:.2f} s by the clock and {cpu:.2f} s of CPU at most")
    if arguments.out is not None:
        result = {
            "benchmark": "probe",
            "machine": asdict(machine),
            "batch": arguments.batch,
            "tokens": arguments.tokens,
            "rounds": arguments.rounds,
            "target_seconds": TARGET_SECONDS,
            "cases": rows,
            "matrix_seconds": matrix,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

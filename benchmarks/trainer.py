"""Tokens per second of the trainer against a plain reference loop on the same model, interleaved in one run.

    python benchmarks/trainer.py [--out FILE.json] [--rounds N] [--steps N] [--no-compile]

The reference is the loop that most tutorials print: FP32, AdamW without foreach or fused, `.item()` every step. It
trains the same GPT (4 layers, width 128, context 64, batch 12, vocabulary 1,024) on the same batches, and clips and
schedules as the trainer does. Each variant has a process of its own (the trainer tunes its process's memory allocator,
the plain loop does not); each round runs a few steps of every variant in turn, the others waiting. A variant's ratio is
the median over rounds, so that other work on the machine hits all of them alike.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.nn.functional as F

import course_lib.trainer
from course_lib.config import DataConfig, ModelOverrides, OptimConfig, TrainConfig
from course_lib.data import BatchStream, Corpus, prepare
from course_lib.machine import compile_problem, matmul_peak, probe, set_threads
from course_lib.model import GPT
from course_lib.optim import lr_at, param_groups
from course_lib.planning.formulas import mfu
from course_lib.trainer import Trainer, training_step

CONFIG = TrainConfig(
    preset="mini",
    steps=100_000,
    batch=12,
    precision="fp32",
    model=ModelOverrides(n_layers=4, d_model=128, n_heads=4, context=64),
    data=DataConfig(vocab_size=1024),
    optim=OptimConfig(lr=1e-3, warmup_steps=100),
)
TOKENS = 12 * 64  # a step
Step = Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """One way to train the model."""

    name: str
    ours: bool = True
    precision: str = "fp32"
    compiled: bool = False
    fused: bool = False
    """Fused AdamW in the reference loop."""
    allocator: bool = True
    """Let the trainer keep freed memory."""


VARIANTS = (
    Variant("reference loop", ours=False),
    Variant("reference + fused AdamW", ours=False, fused=True),
    Variant("trainer fp32, allocator as is", allocator=False),
    Variant("trainer fp32"),
    Variant("trainer bf16", precision="bf16"),
    Variant("trainer fp32, compiled", compiled=True),
    Variant("trainer bf16, compiled", precision="bf16", compiled=True),
)


def reference(corpus: Corpus, fused: bool) -> Step:
    """One step of a plain loop, as a function without arguments."""
    model = GPT(CONFIG.model_config(corpus.tokenizer.vocab_size))
    optim = CONFIG.optim
    groups = param_groups(model, optim.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, foreach=False, fused=fused)
    stream = BatchStream(corpus.train, model.config.context, CONFIG.batch)
    losses: list[float] = []

    def step() -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr_at(len(losses), optim, CONFIG.steps)
        inputs, targets = (torch.from_numpy(part) for part in stream.next())
        optimizer.zero_grad()
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        losses.append(loss.item())

    return step


def ours(corpus: Corpus, variant: Variant) -> Step:
    """One step of the trainer, its record included."""
    if not variant.allocator:
        course_lib.trainer.keep_memory = lambda: False  # type: ignore[attr-defined]
    trainer = Trainer(replace(CONFIG, precision=variant.precision, compile=variant.compiled), corpus=corpus)
    return lambda: training_step(trainer.parts, trainer.step)


def worker(variant: Variant, pipe: Connection) -> None:
    """Build the variant, run five steps, then as many steps as each message says; answers with seconds."""
    set_threads()
    corpus = prepare(CONFIG.data)
    start = time.perf_counter()
    step = ours(corpus, variant) if variant.ours else reference(corpus, variant.fused)
    count = 5
    while count:
        for _ in range(count):
            step()
        pipe.send(time.perf_counter() - start)
        count = pipe.recv()
        start = time.perf_counter()


def measure(variants: list[Variant], rounds: int, steps: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Seconds until five steps were done, and seconds a step in every round, by variant."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    first: dict[str, float] = {}
    for variant in variants:
        pipes[variant.name], theirs = context.Pipe()
        processes.append(context.Process(target=worker, args=(variant, theirs), daemon=True))
        processes[-1].start()
        first[variant.name] = pipes[variant.name].recv()
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            pipe.send(steps)
            seconds[name].append(pipe.recv() / steps)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(0)
        process.join()
    return first, seconds


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20, help="steps of each variant in a round")
    parser.add_argument("--no-compile", action="store_true", help="leave out the two variants that need a compiler")
    arguments = parser.parse_args()
    machine = probe()
    compiles = compile_problem() is None and not arguments.no_compile
    variants = [
        variant
        for variant in VARIANTS
        if (compiles or not variant.compiled) and machine.dtypes["cpu"][variant.precision]
    ]
    first, seconds = measure(variants, arguments.rounds, arguments.steps)
    parameters = GPT(CONFIG.model_config(CONFIG.data.vocab_size)).num_params()
    peak = {name: matmul_peak(name) for name, runs in machine.dtypes["cpu"].items() if runs and name != "fp16"}
    rows = {}
    for name, times in seconds.items():
        each = statistics.median(times)
        rows[name] = {
            "ms_per_step": 1e3 * each,
            "tokens_per_second": TOKENS / each,
            "ratio": statistics.median(b / t for b, t in zip(seconds["reference loop"], times, strict=True)),
            "mfu_of_fp32_peak": mfu(parameters, TOKENS / each, peak["fp32"]),
            "seconds_to_five_steps": first[name],
        }
    print(f"{machine.cpu}, {machine.threads} threads, torch {machine.torch}; {parameters:,} parameters")
    print("matmul peak " + ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in peak.items()))
    print(f"{'':<30}{'ms/step':>9}{'tokens/s':>11}{'ratio':>8}{'to 5 steps':>13}")
    for name, row in rows.items():
        print(
            f"{name:<30}{row['ms_per_step']:>9.1f}{row['tokens_per_second']:>11,.0f}{row['ratio']:>8.2f}"
            f"{row['seconds_to_five_steps']:>11.1f} s"
        )
    if arguments.out is not None:
        result = {
            "benchmark": "trainer",
            "machine": asdict(machine),
            "parameters": parameters,
            "tokens_per_step": TOKENS,
            "rounds": arguments.rounds,
            "steps_per_round": arguments.steps,
            "matmul_peak_flops": peak,
            "variants": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

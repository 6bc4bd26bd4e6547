"""One FSDP2 step of a preset on pretended ranks: seconds, and how they grow with layers and with ranks.

    python benchmarks/traffic.py [--out FILE.json] [--preset mini] [--ranks 1024] [--rounds 5]

One process is rank 0 of the `fake` group; the model is built and sharded (set-up), then forward and backward run on one
short sequence while every collective is counted (step). Medians over the rounds; the model is new in each. "times
uncounted" is the step against the same step with nothing counted, in the same rounds.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.config import PRESETS, preset
from course_lib.machine import probe, set_threads
from course_lib.model import GPT
from course_lib.parallel.traffic import Traffic, count_traffic, fake_ranks

TOKENS = 64


def one(name: str, layers: int | None, ranks: int) -> tuple[dict[str, float], Traffic, int]:
    """Seconds of set-up, step and uncounted step; what was sent; the model's parameters."""
    config = preset(name, **({"n_layers": layers} if layers else {}))
    with fake_ranks(ranks):
        begin = time.perf_counter()
        model = GPT(config)
        parameters = model.num_params()
        mesh = init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        ready = time.perf_counter()
        tokens = torch.zeros(1, TOKENS, dtype=torch.int64)

        def step() -> None:
            F.cross_entropy(model(tokens)[0], tokens[0]).backward()
            model.zero_grad()

        with count_traffic() as traffic:
            step()
        done = time.perf_counter()
        step()
        again = time.perf_counter()
        with count_traffic():
            step()
        counted = time.perf_counter()
    return (
        {
            "setup": ready - begin,
            "step": done - ready,
            "second": counted - again,
            "uncounted": again - done,
        },
        traffic,
        parameters,
    )


def measure(name: str, layers: int | None, ranks: int, rounds: int) -> dict[str, Any]:
    """The medians of several rounds."""
    runs = [one(name, layers, ranks) for _ in range(rounds)]
    seconds = {key: statistics.median(run[0][key] for run in runs) for key in runs[0][0]}
    _, traffic, parameters = runs[0]
    return {
        "layers": layers or preset(name).n_layers,
        "ranks": ranks,
        "parameters": parameters,
        "collectives": traffic.count(),
        "sent_elements": traffic.sent(),
        "seconds": seconds,
        "ratio": statistics.median(run[0]["second"] / run[0]["uncounted"] for run in runs),
    }


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--preset", default="mini", choices=list(PRESETS))
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    set_threads()
    one("tiny", None, 8)  # warm-up: what is imported at first use
    own = preset(arguments.preset).n_layers
    cases = [(own, arguments.ranks)]
    cases += [(layers, arguments.ranks) for layers in (2 * own, 4 * own)]
    cases += [(own, ranks) for ranks in (4, 64, 16384) if ranks != arguments.ranks]
    rows = [measure(arguments.preset, layers, ranks, arguments.rounds) for layers, ranks in cases]
    machine = probe()
    print(f"{machine.cpu}, {machine.threads} threads, torch {machine.torch}; {arguments.preset}, {TOKENS} tokens")
    print(
        f"{'layers':>7}{'ranks':>7}{'collectives':>13}{'sent / P':>10}{'set-up ms':>11}{'step ms':>9}{'uncounted':>11}"
    )
    for row in rows:
        seconds, sent = row["seconds"], row["sent_elements"] / row["parameters"]
        print(
            f"{row['layers']:>7}{row['ranks']:>7}{row['collectives']:>13}{sent:>10.2f}"
            f"{1e3 * seconds['setup']:>11.0f}{1e3 * seconds['step']:>9.0f}{row['ratio']:>9.2f} x"
        )
    if arguments.out is not None:
        result = {
            "benchmark": "traffic",
            "machine": asdict(machine),
            "preset": arguments.preset,
            "tokens": TOKENS,
            "rounds": arguments.rounds,
            "cases": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

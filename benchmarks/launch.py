"""Starting ranks: `run_ranks` against `torch.multiprocessing.spawn`, in the same run.

    python benchmarks/launch.py [--out FILE.json] [--rounds N] [--ranks N] [--spawns N]

Both start the same number of ranks, make a gloo group, add up a small tensor and bring the sum back. The first call of
`run_ranks` is timed in this fresh process, before anything has imported torch; it starts the fork server. Later calls
and the spawns take turns, so that other work on the machine hits both alike. Then how soon the error of a fault is
here, and what the flight recorder adds to a collective.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from course_lib.errors import RankError
from course_lib.machine import probe
from course_lib.parallel.launch import run_ranks

FIRST_LIMIT, LATER_LIMIT, TIMES_FASTER, FAULT_LIMIT = 6.0, 0.5, 10.0, 2.0


def add_up() -> float:
    """On a rank: the sum of all ranks' ones."""
    import torch
    import torch.distributed as dist

    x = torch.ones(10)
    dist.all_reduce(x)
    return float(x.sum())


def spawned(rank: int, ranks: int, store: str, results: Any) -> None:
    """The same by hand, as torch's tutorials do it."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    results.put((rank, add_up()))
    dist.destroy_process_group()


def spawn(ranks: int, folder: Path) -> list[float]:
    """One call through `torch.multiprocessing.spawn`."""
    import torch.multiprocessing as mp

    results = mp.get_context("spawn").SimpleQueue()
    store = folder / f"store-{time.monotonic_ns()}"
    mp.spawn(spawned, args=(ranks, str(store), results), nprocs=ranks)
    return [value for _, value in sorted(results.get() for _ in range(ranks))]


def fail() -> None:
    """Rank 1 raises while the others wait for it."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.barrier()


def be_killed() -> None:
    """Rank 1 is killed while the others wait for it."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()


def collectives(count: int) -> float:
    """On a rank: seconds of one small all-reduce."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1000)
    for _ in range(50):
        dist.all_reduce(x)
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(x)
    return (time.perf_counter() - began) / count


def seconds_of(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call, which may end in a `RankError`."""
    began = time.perf_counter()
    try:
        call()
    except RankError as error:
        assert error.rank == 1, error
    return time.perf_counter() - began


def with_setting(name: str, value: str, call: Callable[[], list[float]]) -> float:
    """The first rank's result of a call with an environment variable set."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        return call()[0]
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def measure(ranks: int, rounds: int, spawns: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each round by name."""
    rows: dict[str, list[float]] = {"first call": [seconds_of(lambda: run_ranks(add_up, ranks))]}
    for name in ("later call", "spawn", "exception", "SIGKILL", "recorder off", "recorder on", "DETAIL"):
        rows[name] = []
    assert run_ranks(add_up, ranks) == spawn(ranks, folder) == [10.0 * ranks] * ranks
    for number in range(rounds):
        rows["later call"].append(seconds_of(lambda: run_ranks(add_up, ranks)))
        if number < spawns:
            rows["spawn"].append(seconds_of(lambda: spawn(ranks, folder)))
        rows["exception"].append(seconds_of(lambda: run_ranks(fail, ranks)))
        rows["SIGKILL"].append(seconds_of(lambda: run_ranks(be_killed, ranks)))
        timed = lambda: run_ranks(collectives, 2, 300)
        rows["recorder off"].append(with_setting("TORCH_FR_BUFFER_SIZE", "0", timed))
        rows["recorder on"].append(timed()[0])
        rows["DETAIL"].append(with_setting("TORCH_DISTRIBUTED_DEBUG", "DETAIL", timed))
    return rows


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spawns", type=int, default=3, help="in how many rounds torch's spawn is timed (slow)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = measure(arguments.ranks, arguments.rounds, arguments.spawns, Path(name))
    machine = probe()
    middle = {name: statistics.median(values) for name, values in rows.items()}
    times = middle["spawn"] / middle["later call"]
    print(f"{machine.cpu}, torch {machine.torch}, {machine.cores} cores; {arguments.ranks} ranks")
    print(f"{'':<14}{'median':>10}     (least, most)")
    for name, values in rows.items():
        unit, scale = ("ms", 1e3) if name in ("recorder off", "recorder on", "DETAIL") else ("s ", 1.0)
        figures = [f"{scale * each:.3f}" for each in (middle[name], min(values), max(values))]
        print(f"{name:<14}{figures[0]:>10} {unit}  ({figures[1]}, {figures[2]})")
    print("recorder on and off, DETAIL: one all-reduce of 1000 elements on 2 ranks")
    print(
        f"first call {middle['first call']:.1f} s: at most {FIRST_LIMIT:.0f}. "
        f"Later {middle['later call']:.2f} s: at most {LATER_LIMIT}. "
        f"{times:.0f} times faster than spawn: at least {TIMES_FASTER:.0f}. "
        f"Faults {max(middle['exception'], middle['SIGKILL']):.2f} s: at most {FAULT_LIMIT:.0f}"
    )
    if arguments.out is not None:
        result = {
            "benchmark": "launch",
            "machine": asdict(machine),
            "ranks": arguments.ranks,
            "times_faster_than_spawn": times,
            "seconds": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

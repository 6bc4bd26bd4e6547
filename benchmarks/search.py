"""How many layouts a second the planner's search prices, and how their number grows with the devices.

    python benchmarks/search.py [--out FILE.json] [--preset 70b-on-512-h100] [--devices 8 64 512 4096] [--rounds 3]

All of a search counts: listing the legal layouts, pricing them, keeping the best, the front and the rivals. The batch
grows with the devices, so that there are as many sequences a device. The best of the rounds, on one core. Layouts a
second are of the clock and, for a machine that has other work, of the processor.
"""

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

from course_lib.machine import probe, set_threads
from course_lib.planning.presets import preset, presets
from course_lib.planning.search import search
from course_lib.planning.spec import RunSpec

TARGET = 50_000
"""Layouts a second."""


def with_devices(run: RunSpec, devices: int) -> RunSpec:
    """The same run on other devices, with as many sequences a device as before."""
    batch = max(1, run.data.global_batch * devices // run.hardware.devices)
    return replace(run, hardware=replace(run.hardware, devices=devices), data=replace(run.data, global_batch=batch))


def measure(run: RunSpec, rounds: int) -> dict[str, float]:
    """One number of devices."""
    seconds, busy = [], []
    for _ in range(rounds):
        begin, worked = time.perf_counter(), time.process_time()
        made = search(run)
        seconds.append(time.perf_counter() - begin)
        busy.append(time.process_time() - worked)
    took = min(seconds)
    return {
        "devices": run.hardware.devices,
        "global_batch": run.data.global_batch,
        "layouts": made.considered,
        "fits": made.fits,
        "front": len(made.pareto),
        "seconds": took,
        "processor_seconds": min(busy),
        "layouts_per_second": made.considered / took,
        "layouts_per_processor_second": made.considered / min(busy),
    }


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--preset", default="70b-on-512-h100", choices=presets())
    parser.add_argument("--devices", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 16_384])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    set_threads()
    run = preset(arguments.preset)
    rows = [measure(with_devices(run, devices), arguments.rounds) for devices in arguments.devices]
    machine = probe()
    print(f"{machine.cpu}; {arguments.preset}, one core; all of a search")
    print(
        f"{'devices':>8}{'batch':>8}{'layouts':>10}{'fit':>10}{'front':>7}{'seconds':>9}"
        f"{'layouts/s':>11}{'of processor':>14}"
    )
    for row in rows:
        print(
            f"{row['devices']:>8}{row['global_batch']:>8}{row['layouts']:>10,}{row['fits']:>10,}{row['front']:>7}"
            f"{row['seconds']:>9.2f}{row['layouts_per_second']:>11,.0f}{row['layouts_per_processor_second']:>14,.0f}"
        )
    large = [row for row in rows if row["layouts"] >= 20_000]
    if large:
        slowest, busy = (
            min(row[key] for row in large) for key in ("layouts_per_second", "layouts_per_processor_second")
        )
        reached = "reached" if slowest >= TARGET else "not reached"
        print(f"target {TARGET:,} layouts a second: {reached}, at least {slowest:,.0f} ({busy:,.0f} of processor)")
    if arguments.out is not None:
        result = {
            "benchmark": "search",
            "machine": asdict(machine),
            "preset": arguments.preset,
            "rounds": arguments.rounds,
            "target": TARGET,
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

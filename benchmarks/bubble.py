"""The bubble explorer at its largest setting: milliseconds in the kernel for every schedule, against its 100.

    python benchmarks/bubble.py [--out FILE.json] [--ranks 16] [--microbatches 64] [--rounds 15]

A setting is simulated, its slots and their tooltips are drawn as SVG, the formula and the goals are asked, and the HTML
goes into the widget: all that a slider's move costs before the browser has it. Without and with the critical path; as
many chunks as the control offers. Other settings lie between two rounds, so nothing is kept. Medians, and
the slowest: now and then a full garbage collection falls into a round, which takes the longer the more is loaded (here
torch, as in a chapter's kernel).
"""

import argparse
import contextlib
import io
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from course_lib.machine import probe, set_threads
from course_lib.widgets import bubble_explorer
from course_lib.widgets.explorer import Explorer

TARGET_MS = 100.0


def seconds(explorer: Explorer, settings: dict[str, Any], rounds: int) -> list[float]:
    """Of each round, how long setting all controls at once took."""
    found = []
    for number in range(rounds + 1):
        explorer.reset()
        begin = time.perf_counter()
        explorer.set(**settings, send=0.1 * (1 + number % 2))
        found.append(time.perf_counter() - begin)
        if explorer.error or "done" not in explorer.view.data:
            raise SystemExit(f"{settings}: {explorer.error or explorer.view.message}")
    return found[1:]  # the first one warms up


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    set_threads()
    with contextlib.redirect_stdout(io.StringIO()):  # outside of a notebook it prints its title
        explorer = bubble_explorer()
    offered: dict[str, Any] = {control.name: control for control in explorer.controls}
    rows = []
    for schedule in offered["schedule"].options:
        for marked in ("nothing", "the critical path"):
            settings = {
                "stages": arguments.ranks,
                "microbatches": arguments.microbatches,
                "schedule": schedule,
                "chunks": offered["chunks"].max,
                "highlight": marked,
            }
            times = seconds(explorer, settings, arguments.rounds)
            done = explorer.view.data["done"]
            rows.append(
                {
                    "schedule": schedule,
                    "marked": marked,
                    "slots": len(done.starts),
                    "html_bytes": len(str(explorer.view.picture).encode("utf-8")),
                    "ms": 1e3 * statistics.median(times),
                    "slowest_ms": 1e3 * max(times),
                }
            )
    machine = probe()
    print(f"{machine.cpu}, {machine.threads} threads; {arguments.ranks} ranks, {arguments.microbatches} micro-batches")
    print(f"{'':<14}{'marked':<20}{'slots':>7}{'HTML kB':>9}{'ms':>8}{'slowest':>9}")
    for row in rows:
        print(
            f"{row['schedule']:<14}{row['marked']:<20}{row['slots']:>7}{row['html_bytes'] / 1000:>9.0f}"
            f"{row['ms']:>8.1f}{row['slowest_ms']:>9.1f}"
        )
    worst = max(row["ms"] for row in rows)
    print(f"target {TARGET_MS:.0f} ms: {'reached' if worst < TARGET_MS else 'not reached'}, the slowest {worst:.0f} ms")
    if arguments.out is not None:
        result = {
            "benchmark": "bubble",
            "machine": asdict(machine),
            "ranks": arguments.ranks,
            "microbatches": arguments.microbatches,
            "rounds": arguments.rounds,
            "target_ms": TARGET_MS,
            "cases": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()

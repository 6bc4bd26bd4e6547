"""Checks of the system: who waits for whom, what is still held in memory, and whether the ranks are one run."""

import numpy as np

from course_lib.failures.evidence import Check, Finding
from course_lib.failures.runs import Run

__all__: list[str] = []

SYSTEM = "system"
ALONE = "the run is one process; there is nothing to compare"


def loader_wait(run: Run) -> Finding:
    """Share of a step spent in the loader. A batch is a copy of a few kilobytes: under 5% of a step; 30% is waiting."""
    share = float(np.median(np.array(run.notes["loader_seconds"]) / np.array(run.series["step_seconds"])))
    return Finding(
        {"share": share}, f"a step spends {share:.1%} of its time waiting for its batch (median)", share > 0.3
    )


def memory_growth(run: Run) -> Finding:
    """Bytes that stay after each step: none, once the optimizer has its state. 1 kB a step allows for counters."""
    held = run.series["memory_bytes"]
    growth = (held[-1] - held[0]) / max(len(held) - 1, 1)
    first, last = held[0] / 1e6, held[-1] / 1e6
    text = f"held after a step: {first:.2f} MB at first, {last:.2f} MB at the end, {growth:+,.0f} bytes a step"
    return Finding({"first": held[0], "last": held[-1], "growth": growth}, text, growth > 1_000)


def checksums(run: Run) -> Finding:
    """Replicas start equal and get equal updates: their bits agree at every step."""
    if "checksum_1" not in run.series:
        return Finding({"ranks": 1}, ALONE, False)
    pairs = list(zip(run.series["checksum_0"], run.series["checksum_1"], strict=True))
    apart = [k for k, (a, b) in enumerate(pairs) if a != b]
    text = f"the checksums of the two ranks' weights differ after {len(apart)} of {len(pairs)} steps"
    if apart:
        text += f", first after step {apart[0]}"
    return Finding({"differ": len(apart), "steps": len(pairs), "first": apart[0] if apart else -1}, text, bool(apart))


def rank_seconds(run: Run) -> Finding:
    """Each rank's own computing, without waiting. Equal work takes equal time; a busy machine makes it 1.3 times."""
    if "seconds_1" not in run.notes:
        return Finding({"ranks": 1}, ALONE, False)
    own = [float(np.median(run.notes[f"seconds_{rank}"])) for rank in (0, 1)]
    ratio = max(own) / min(own)
    text = f"a step's own computing takes {own[0] * 1e3:.1f} ms on rank 0 and {own[1] * 1e3:.1f} ms on rank 1 (median)"
    return Finding({"rank_0": own[0], "rank_1": own[1], "ratio": ratio}, text, ratio > 1.8)


def last_collective(run: Run) -> Finding:
    """Where each rank stands when the run is over: all have returned, or one waits for what another will not do."""
    if not run.ranks:
        return Finding({"ranks": 1}, ALONE, False)
    steps, places = [int(rank["steps"]) for rank in run.ranks], [str(rank["place"]) for rank in run.ranks]
    text = "; ".join(f"rank {k}, after {steps[k]} steps: {places[k]}" for k in range(len(places)))
    waiting = sum(place != "has returned" for place in places)
    return Finding({"steps_0": steps[0], "steps_1": steps[1], "waiting": waiting}, text, waiting > 0)


CHECKS = (
    Check("memory_growth", "Measure what is still held after each step", SYSTEM, 5, memory_growth),
    Check("loader_wait", "Time how long a step waits for its batch", SYSTEM, 5, loader_wait),
    Check("checksums", "Compare the checksums of the weights over the ranks", SYSTEM, 5, checksums),
    Check("rank_seconds", "Time each rank's own computing", SYSTEM, 10, rank_seconds),
    Check("last_collective", "Ask each rank where it stands, and in which collective", SYSTEM, 15, last_collective),
)

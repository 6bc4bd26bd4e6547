"""Logs of incidents without their names, recorded for exercise 14.2: one number a step, as a dashboard gets them."""

from course_lib.failures.incidents import reproduce

__all__ = ["KEPT", "over_incidents"]

KEPT = {
    "scheduler_reset": 21,
    "memory_leak": 22,
    "cursor_lost": 23,
    "rank_no_sync": 24,
    "bad_batch": 25,
    "fp16_overflow": 26,
    "padding_in_loss": 27,
}
"""Incidents whose log alone tells them apart, and the seed of each run."""
LEFT_OUT = ("activation", "step_seconds")


def over_incidents() -> dict[str, dict[str, object]]:
    """Each incident's series, rounded, and the steps at which its run was resumed. Checksums in units of 2^24."""
    out: dict[str, dict[str, object]] = {}
    for name, seed in KEPT.items():
        run = reproduce(name, seed)
        series = {}
        for key, values in run.series.items():
            digits, unit = (9, 2.0**24) if key.startswith("checksum") else (9 if key == "memory_bytes" else 4, 1.0)
            if key not in LEFT_OUT:
                series[key] = [float(f"{value / unit:.{digits}g}") for value in values]
        resumes = [step for step in run.setup.resumes if step < run.steps]
        out[name] = {"seed": seed, "planned": run.setup.steps, "resumes": resumes, "series": series}
    return out

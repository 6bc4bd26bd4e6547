"""How many activations each rank of a pipeline holds at the worst moment, and how many layers: closed forms.

    in_flight("1f1b", rank=0, pipeline=4, micro_batches=8)            # 4 of 8
    layers_on(30, rank=0, pipeline=4, chunks=2, schedule="interleaved")

`parallel.schedule.simulate(...).peak_in_flight` is what they are tested against. An activation is what one chunk keeps
for one micro-batch. Every number may be a numpy array.
"""

from typing import Any

import numpy as np

from course_lib.errors import ConfigError

__all__ = ["CHUNKED", "V_SHAPED", "in_flight", "layers_on"]

V_SHAPED = ("zbv", "dualpipev")
"""Stages go down the ranks and back up: rank 0 has the first stage and the last."""
CHUNKED = ("naive", "gpipe", "interleaved")
"""Schedules with any number of chunks a rank; those in a V have two, the others one."""


def in_flight(schedule: str, *, rank: Any, pipeline: Any, micro_batches: Any, chunks: Any = 1) -> Any:
    """Most (micro-batch, chunk) pairs whose activations a rank holds at once.

    1f1b: p - rank (Narayanan et al. 2021, arXiv 2104.04473); gpipe: all (Huang et al. 2019, arXiv 1811.06965); zb_h1: p
    on every rank (Qi et al. 2023, arXiv 2401.10241); zbv: 2 p chunks, so as much as p stages (Qi et al. 2024, arXiv
    2405.15362); dualpipev: one chunk more (DeepSeek-V3, arXiv 2412.19437). All of them only where m is large enough.
    `ConfigError` for an unknown schedule.
    """
    p, m, v = pipeline, micro_batches, chunks
    if schedule == "naive":
        return np.minimum(m, 1) * v
    if schedule == "gpipe":
        return m * v
    if schedule == "1f1b":
        return np.minimum(m, p - rank)
    if schedule == "interleaved":
        group = m // np.maximum(1, m // p)
        return np.minimum(m * v, (v - 1) * group + 2 * (p - 1 - rank) + 1)
    if schedule == "zb_h1":
        return np.minimum(p, m)
    if schedule == "zbv":
        return np.minimum(np.minimum(2 * p, 2 * m), m + rank + 1)
    if schedule == "dualpipev":
        return np.minimum(2 * p + 1, 2 * m)
    raise ConfigError(
        f"schedule={schedule!r} is unknown (there are: naive, gpipe, 1f1b, interleaved, zb_h1, zbv, dualpipev)"
    )


def layers_on(
    layers: int, *, rank: Any, pipeline: Any, chunks: Any = 1, schedule: str = "1f1b", before: Any = None
) -> Any:
    """Layers of a rank: as even as can be, the first stages have one more, as `parallel.pipeline.split_model` has it.

    before: counts only layers with an index below this (the dense ones of a mixture, say).
    """
    p, v = pipeline, chunks
    count: Any = 0
    if schedule in V_SHAPED:
        for stage in (rank, 2 * p - 1 - rank):
            count = count + _of_stage(layers, stage, 2 * p, before)
        return count
    for chunk in range(int(np.max(v))):
        count = count + np.where(chunk < v, _of_stage(layers, rank + chunk * p, p * v, before), 0)
    return count


def _of_stage(layers: int, stage: Any, stages: Any, before: Any) -> Any:
    """Layers of one of `stages` stages."""
    each, more = layers // stages, layers % stages
    first = stage * each + np.minimum(stage, more)
    end = first + each + (stage < more)
    if before is not None:
        first, end = np.minimum(first, before), np.minimum(end, before)
    return end - first

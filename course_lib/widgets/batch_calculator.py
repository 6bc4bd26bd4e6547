"""How large is the batch? Micro-batch, accumulation, devices and what they multiply, beside published runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.figures.batch_size import batch_scale
from course_lib.planning.formulas import effective_batch, updates_per_epoch, world_size
from course_lib.widgets.controls import ChoiceControl, IntControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

__all__ = ["batch_calculator"]

PUBLISHED = {
    "GPT-2, 512 x 1,024": 512 * 1024,  # Radford et al. 2019
    "Pythia, 1,024 x 2,048": 1024 * 2048,  # Biderman et al. 2023, arXiv 2304.01373
    "GPT-3 175B, about 1,560 x 2,048": 3_200_000,  # Brown et al. 2020, arXiv 2005.14165, table 2.1
    "Llama 3 405B, 2,048 x 8,192": 2048 * 8192,  # Dubey et al. 2024, arXiv 2407.21783, table 4
    "DeepSeek-V3, 15,360 x 4,096": 15_360 * 4096,  # DeepSeek-AI 2024, arXiv 2412.19437
}
"""Tokens an update, at the largest batch of the run."""

_CONTEXTS = {f"{length:,}": length for length in (64, 1024, 2048, 4096, 8192, 32_768, 131_072)}
_DATA = {"1 billion": 1e9, "300 billion": 3e11, "2 trillion": 2e12, "15.6 trillion": 15.6e12}


def _words(count: float) -> str:
    """1,024 up to a million, then 1.05 million, 16.8 billion."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"


def _draw(
    micro_batch: int,
    accumulation: int,
    data_parallel: int,
    tensor: int,
    pipeline: int,
    context_parallel: int,
    context: str,
    data: str,
) -> View:
    sequences = effective_batch(micro_batch, accumulation, data_parallel)
    tokens = effective_batch(micro_batch, accumulation, data_parallel, _CONTEXTS[context])
    updates = updates_per_epoch(_DATA[data], tokens)
    devices, shared = (
        world_size(data_parallel, tensor, pipeline, context_parallel),
        tensor * pipeline * context_parallel,
    )
    title = f"{_words(tokens)} tokens an update: {sequences:,} sequences of {context}"
    sum_ = f"{micro_batch} x {accumulation} x {data_parallel:,} sequences. "
    how = f"{shared:,} devices work on each of them together: they are no factor of it." if shared > 1 else ""
    return View(
        batch_scale(tokens, PUBLISHED, title=title),
        alt=f"{title}, on {devices:,} devices, {_words(updates)} updates an epoch",
        numbers=[
            (f"{sequences:,}", "sequences an update"),
            (_words(tokens), "tokens an update"),
            (_words(updates), f"updates an epoch of {data} tokens"),
            (f"{devices:,}", "devices"),
        ],
        message=sum_ + how,
        data={"tokens": tokens, "updates": updates, "devices": devices},
    )


def _gpt3_on_one(values: Mapping[str, Any], view: View) -> bool:
    return bool(view.data["devices"] == 1 and abs(view.data["tokens"] / 3.2e6 - 1) < 0.05)


def batch_calculator() -> Explorer:
    """Display the calculator of chapter 3: effective batch, tokens an update, updates an epoch, devices."""
    return explorer(
        _draw,
        [
            IntControl(name="micro_batch", label="micro-batch", unit="sequences", min=1, max=64, default=4),
            IntControl(name="accumulation", label="accumulation steps", min=1, max=128, default=8),
            IntControl(name="data_parallel", label="data-parallel ranks", min=1, max=512, default=16),
            IntControl(name="tensor", label="tensor-parallel ranks", min=1, max=16, default=1),
            IntControl(name="pipeline", label="pipeline stages", min=1, max=32, default=1),
            IntControl(name="context_parallel", label="context-parallel ranks", min=1, max=32, default=1),
            ChoiceControl(name="context", label="context", unit="tokens", options=list(_CONTEXTS), default="2,048"),
            ChoiceControl(
                name="data", label="training data", unit="tokens", options=list(_DATA), default="300 billion"
            ),
        ],
        presets=[
            Preset("Accumulation doubled", {"accumulation": 16}),
            Preset("Llama 3 405B, 8,192 GPUs", _llama(accumulation=32, data_parallel=64)),
            Preset("Llama 3 405B, 16,384 GPUs", _llama(accumulation=16, data_parallel=128)),
            Preset(
                "Llama 3 405B, long context",
                _llama(accumulation=16, data_parallel=8, context_parallel=16, context="131,072"),
            ),
        ],
        goals=[
            Goal("GPT-3's 3.2 million tokens an update (to 5%) on a single device", _gpt3_on_one),
            Goal(
                "1,024 devices or more, and fewer than 100,000 tokens an update",
                lambda values, view: view.data["devices"] >= 1024 and view.data["tokens"] < 100_000,
            ),
            Goal(
                "300 billion tokens or more in fewer than 1,000 updates",
                lambda values, view: values["data"] != "1 billion" and view.data["updates"] < 1000,
            ),
        ],
        title="How large is the batch, and what makes it larger?",
        caption="Tokens behind one update, beside published runs at their largest batch.",
    )


def _llama(**values: Any) -> dict[str, Any]:
    """Table 4 of arXiv 2407.21783; it gives the sequences of a data-parallel rank, here micro-batches of one."""
    fixed = {"micro_batch": 1, "tensor": 8, "pipeline": 16, "context": "8,192", "data": "15.6 trillion"}
    return {**fixed, **values}

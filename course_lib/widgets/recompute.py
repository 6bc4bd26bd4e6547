"""What does recomputing save? Blocks, sequence length and mode decide bytes and FLOPs of one step."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10
from typing import Any

from course_lib.config import ModelConfig
from course_lib.figures.recompute import fits_in
from course_lib.planning.formulas import activation_bytes, matmul_flops, predicted_ledger, recomputed_flops
from course_lib.widgets.controls import ChoiceControl, FloatControl, IntControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

__all__ = ["recompute_explorer"]

_MODES = {
    "keep everything": ("none", 1),
    "every 2nd block": ("all", 2),
    "all blocks": ("all", 1),
    "keep attention": ("keep_attention", 1),
    "keep matmuls": ("keep_matmuls", 1),
}
_DEVICE = 80


def _bytes(config: ModelConfig, mode: str, every: int) -> dict[str, float]:
    """The ledger of one step in bytes, and the block that is whole again while backward is in it."""
    book = predicted_ledger(config, 1, config.context, "adamw", "bf16", mode, every)
    names = ("weights", "gradients", "optimizer", "activations", "logits")
    sizes: dict[str, float] = {name: book[name] for name in names}
    kept, whole = (activation_bytes(config, 1, config.context, "bf16", way) for way in (mode, "none"))
    short = config.n_layers // every if mode != "none" else 0
    again = (whole - kept) / short if short else 0.0
    return {**sizes, "block computed again": again}


def _draw(blocks: int, length: float, mode: str) -> View:
    context = round(length)
    config = ModelConfig(vocab_size=32_000, d_model=2048, n_layers=blocks, n_heads=16, context=context)
    way, every = _MODES[mode]
    full, short = _bytes(config, "none", 1), _bytes(config, way, every)
    flops = recomputed_flops(config, 1, context, way, every) / matmul_flops(config, 1, context)
    total, before = sum(short.values()), sum(full.values())
    saved = 1 - (short["activations"] + short["block computed again"]) / full["activations"]
    runs = {"keep everything": full} | ({mode: short} if way != "none" else {})
    verdict = "fits" if total <= _DEVICE * 1e9 else "does not fit"
    words = f"{blocks} block{'s' * (blocks > 1)}, {context:,} tokens, {mode}: {total / 1e9:.3g} GB, {verdict}"
    row = [
        (f"{total / 1e9:.3g} GB", "state + kept + one block"),
        (f"{saved:.0%}", "of the activations saved"),
        (f"+{flops:.1%}", "FLOPs of a step"),
        (f"{before / 1e9:.3g} GB", "keeping everything"),
    ]
    data = {"total": total, "before": before, "saved": saved, "flops": flops}
    return View(fits_in(runs, _DEVICE, title=words), alt=words, numbers=row, data=data)


def _rescued(values: Mapping[str, Any], view: View) -> bool:
    return bool(view.data["before"] > _DEVICE * 1e9 >= view.data["total"] and view.data["flops"] < 0.1)


def _beyond(values: Mapping[str, Any], view: View) -> bool:
    return bool(values["mode"] == "all blocks" and view.data["total"] > _DEVICE * 1e9)


def _bargain(values: Mapping[str, Any], view: View) -> bool:
    return bool(view.data["saved"] > 0.4 and view.data["flops"] < 0.05)


def recompute_explorer() -> Explorer:
    """Display the explorer of chapter 5: one sequence of a GPT of width 2,048 under BF16 autocast on 80 GB.

    It opens where keeping everything does not fit and recomputing all blocks does.
    """
    return explorer(
        _draw,
        [
            IntControl(name="blocks", label="blocks", min=1, max=96, default=24),
            FloatControl(
                name="length",
                label="sequence length",
                unit="tokens",
                min=512,
                max=65_536,
                step=log10(2),
                log=True,
                default=32_768,
                format=",.0f",
            ),
            ChoiceControl(name="mode", label="what is recomputed", options=list(_MODES), default="all blocks"),
        ],
        presets=[
            Preset("The same, everything kept", {"mode": "keep everything"}),
            Preset("A short text", {"length": 2048}),
            Preset("A deep model", {"blocks": 80, "length": 2048}),
        ],
        goals=[
            Goal("A run over 80 GB that fits for less than 10% more FLOPs", _rescued),
            Goal("A run that does not fit although all blocks recompute", _beyond),
            Goal("More than 40% of the activations saved for less than 5% more FLOPs", _bargain),
        ],
        title="Does it fit when blocks are recomputed?",
        caption=(
            "One sequence, width 2,048, 16 heads, FP32 weights with AdamW under BF16 autocast; from the formulas, "
            "with gradients of activations and kernels' short-lived buffers left out."
        ),
    )

"""How many devices does the state of a training run fill? Parameters, a recipe and a device's memory decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.figures.ledger import readable, state_on_devices
from course_lib.planning.formulas import RECIPES
from course_lib.widgets.controls import ChoiceControl, FloatControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

__all__ = ["training_state_explorer"]

_RECIPES = {
    "serve, 16 bits": "inference-16bit",
    "AdamW, 16 bits": "adamw-16bit",
    "AdamW, both gradients": "adamw-16bit-both-gradients",
    "AdamW, FP32": "adamw-fp32",
}
_DEVICES = {"24 GB": 24, "80 GB": 80, "141 GB": 141}


def _draw(billions: float, recipe: str, device: str) -> View:
    book = RECIPES[_RECIPES[recipe]]
    sizes = {part: getattr(book, part) * billions for part in ("weights", "gradients", "master", "moments")}
    total, memory = sum(sizes.values()), _DEVICES[device]
    count = max(1, -int(-total // memory))
    words = f"{billions:.3g} billion parameters at {book.total} bytes: {readable(total)} GB on {count:,} x {device}"
    row = [
        (f"{book.total}", "bytes a parameter"),
        (f"{readable(total)} GB", "state"),
        (f"{count:,}", "devices, at least"),
        (f"{total / (count * memory):.0%}", "of their memory"),
    ]
    data = {"total": total, "devices": count}
    return View(state_on_devices(sizes, memory, title=words), alt=words, numbers=row, data=data)


def _one_card_serves(values: Mapping[str, Any], view: View) -> bool:
    return values["device"] == "24 GB" and 2 * values["billions"] <= 24 and view.data["devices"] > 6


def _largest_on_one(values: Mapping[str, Any], view: View) -> bool:
    trains = values["recipe"] in ("AdamW, 16 bits", "AdamW, FP32")
    return trains and values["device"] == "80 GB" and 70 < view.data["total"] <= 80


def training_state_explorer() -> Explorer:
    """Display the explorer of chapter 2: bytes a parameter, times parameters, over the memory of a device (in GB)."""
    return explorer(
        _draw,
        [
            FloatControl(
                name="billions",
                label="parameters",
                unit="billion",
                min=0.1,
                max=1000,
                step=0.05,
                log=True,
                default=7.079,
            ),
            ChoiceControl(name="recipe", label="recipe", options=list(_RECIPES), default="AdamW, 16 bits"),
            ChoiceControl(name="device", label="memory of one device", options=list(_DEVICES), default="80 GB"),
        ],
        presets=[
            Preset("Serve it", {"recipe": "serve, 16 bits"}),
            Preset("70 billion", {"billions": 70.79}),
            Preset("A consumer's card", {"device": "24 GB"}),
        ],
        goals=[
            Goal(
                "A model that one 24 GB card serves in 16 bits and that six such cards cannot train", _one_card_serves
            ),
            Goal("The largest model that one 80 GB device trains with AdamW at 16 bytes", _largest_on_one),
            Goal("A state of more than 10,000 GB", lambda values, view: view.data["total"] > 10_000),
        ],
        title="How many devices does the training state fill?",
        caption="Weights, gradients, master weights and moments of one replica; activations and buffers come on top.",
    )

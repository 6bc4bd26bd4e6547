"""The explorer of the ring: who sends which chunk in which step, and what each rank has sent by then."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from course_lib.figures.ring import ring_moment
from course_lib.figures.ring_svg import ring_svg
from course_lib.parallel.ring import hop, ring_states
from course_lib.widgets.controls import FloatControl, IntControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ring_explorer"]

_states = lru_cache(maxsize=16)(ring_states)


def _moment(ranks: int, step: int) -> tuple[int, list[list[frozenset[int]]], list[tuple[int, int]], str, str]:
    """Steps done (a ring has no more than 2 (ranks - 1)), buffers, moves of the last step, title, subtitle."""
    done = min(step, 2 * (ranks - 1))
    state = _states(ranks)[done]
    hops = [hop(rank, ranks, done - 1) for rank in range(ranks)] if done else []
    whole = sum(len(whose) == ranks for whose in state[0])
    phase = hops[0].phase if hops else "the start"
    title = f"{phase.capitalize()}: {whole} of {ranks} chunks complete on each rank"
    if done == 2 * (ranks - 1):
        title = f"Done after {done} steps: every rank has the whole sum"
    subtitle = (
        f"Step {done} of {2 * (ranks - 1)}. In a chunk: how many ranks are in its sum. At an arrow: the chunk's number."
    )
    return done, state, [(move.sends, move.receives) for move in hops], title, subtitle


def _draw(ranks: int, step: int, size: float) -> View:
    done, state, moves, title, subtitle = _moment(ranks, step)
    whole = sum(len(whose) == ranks for whose in state[0])
    row = [
        (_megabytes(done * size / ranks), "sent by each rank so far"),
        (_megabytes(2 * (ranks - 1) * size / ranks), "sent by each in all"),
        (_megabytes(2 * (ranks - 1) * size), "sent by all ranks in all"),
    ]
    message = f"A ring of {ranks} is done after {2 * (ranks - 1)} steps." if step > done else ""
    return View(
        ring_svg(state, moves, title=title, subtitle=subtitle),
        alt=f"{title}. {subtitle}",
        numbers=row,
        message=message,
        data={"done": done, "whole": whole, "ranks": ranks, "sent": done * size / ranks},
    )


def _still(ranks: int, step: int, size: float) -> Figure:
    _, state, moves, title, subtitle = _moment(ranks, step)
    subtitle = subtitle.partition(" At an arrow")[0]  # a row a rank, no arrows
    return ring_moment(state, [received for _, received in moves], title=title, subtitle=subtitle)


def _megabytes(size: float) -> str:
    return f"{size / 1000:,.3g} GB" if size >= 1000 else f"{size:,.3g} MB"


def _first_complete(values: Mapping[str, Any], view: View) -> bool:
    return bool(values["ranks"] == 8 and view.data["done"] == 7 and values["step"] == 7)


def _half(values: Mapping[str, Any], view: View) -> bool:
    return bool(view.data["ranks"] >= 6 and 2 * view.data["whole"] == view.data["ranks"])


def _more_than_all(values: Mapping[str, Any], view: View) -> bool:
    return bool(view.data["done"] < 2 * (view.data["ranks"] - 1) and view.data["sent"] > 1.6 * values["size"])


def ring_explorer() -> Explorer:
    """Display the explorer of chapter 7: a ring all-reduce on two to eight ranks, step by step.

    The schedule is `parallel.ring`'s, which tests compare with real ranks.
    """
    return explorer(
        _draw,
        [
            IntControl(name="ranks", label="ranks", min=2, max=8, default=4),
            IntControl(name="step", label="steps done", min=0, max=14, default=1),
            FloatControl(
                name="size",
                label="buffer",
                unit="MB",
                min=1,
                max=10_000,
                step=0.5,
                log=True,
                default=1000,
                format=",.0f",
            ),
        ],
        presets=[
            Preset("The start", {"step": 0}),
            Preset("Reduce-scatter is done", {"step": 3}),
            Preset("Eight ranks, half-way", {"ranks": 8, "step": 7}),
        ],
        goals=[
            Goal("The first step after which a rank of eight has a complete chunk", _first_complete),
            Goal("Six ranks or more, and exactly half of all chunks complete", _half),
            Goal("More than 1.6 buffers sent by each rank, and still not done", _more_than_all),
        ],
        title="Who sends what, when the sum goes round?",
        caption="A ring all-reduce; the darker a chunk, the more ranks are in its sum; what has arrived has a frame.",
        still=_still,
    )

"""A pipeline's timeline as SVG in the page's own colours, for the live explorer: thousands of slots in some ms.

Every slot and every gap says in a tooltip what it is and what it waits for; `framed` ones stand out from the others.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from course_lib.figures.pipeline import KINDS, chunk_color, legend
from course_lib.figures.style import COLORS, text_on
from course_lib.figures.svg import MUTED, PAGE, RULE, WIDTH, head, line, put_text, svg
from course_lib.parallel.schedule import PipelineTimeline

__all__ = ["no_timeline_svg", "pipeline_svg", "slot_text"]

_LEFT, _RIGHT = 66.0, 698.0
_TOP = 30.0  # of the first lane, under the key
_HELD = 88.0  # height of the panel with what ranks hold
_NARROW = 2.5  # px of a slot beside its number
_DIGIT = 6.6
_KINDS = "FBIW"


def pipeline_svg(
    done: PipelineTimeline,
    *,
    title: str,
    subtitle: str,
    unit: str = "ms",
    slow: int | None = None,
    framed: Sequence[int] = (),
) -> str:
    """Lanes of all ranks, and below what each holds. `slow`: a rank whose name says so.

    framed: places in `done.slots`, a chain from first to last; its last one has the thicker frame.
    """
    picture = _Picture(done, unit)
    parts = picture.key() + picture.lanes(slow)
    parts += picture.slots(faint=bool(framed)) + picture.chain(framed)
    parts += picture.axis() + picture.held()
    return head(title, subtitle) + svg(round(picture.bottom + 40), parts)


def slot_text(done: PipelineTimeline, place: int, unit: str = "ms") -> str:
    """What the slot at this place in `done.slots` is, and what it waits for: its tooltip."""
    return _Picture(done, unit).told(place)


def no_timeline_svg(ranks: int, *, title: str, subtitle: str) -> str:
    """Empty lanes, for a setting at which there is no schedule."""
    step = _lane(ranks)
    parts = []
    for rank in range(ranks):
        top = _TOP + rank * step
        parts.append(put_text(_LEFT - 8, top + 0.4 * step, f"rank {rank}", anchor="end"))
        parts.append(
            _rect(_LEFT, top, _RIGHT - _LEFT, 0.8 * step, f'fill="none" stroke="{MUTED}" stroke-dasharray="4 4"')
        )
    return head(title, subtitle) + svg(round(_TOP + ranks * step), parts)


def _lane(ranks: int) -> float:
    """From lane to lane, in px."""
    return 34.0 if ranks <= 4 else 27.0 if ranks <= 8 else 20.0


def _rect(x: float, y: float, width: float, height: float, extra: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {extra}/>'


def _number(value: float) -> str:
    """3.0 -> "3", 2.6666 -> "2.67"."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class _Picture:
    """What the parts of the picture have in common: arrays over all slots, and the two scales."""

    def __init__(self, done: PipelineTimeline, unit: str) -> None:
        self.done, self.unit = done, unit
        table = done.table
        self.span = done.makespan or 1.0
        self.step = _lane(done.ranks)
        self.high = 0.8 * self.step
        self.lanes_end = _TOP + done.ranks * self.step
        self.bottom = self.lanes_end + 34 + _HELD  # of the second panel
        self.start, self.end = done.starts, done.starts + done.durations
        self.left = _LEFT + self.start / self.span * (_RIGHT - _LEFT)
        self.wide = done.durations / self.span * (_RIGHT - _LEFT)
        self.top = _TOP + table.rank * self.step
        self.microbatch = table.code % done.microbatches
        same = np.append(False, table.rank[1:] == table.rank[:-1])
        self.before = np.where(same, np.append(0.0, self.end[:-1]), 0.0)  # when the rank was free
        chunk_of = {stage: done.grid.held_by(rank).index(stage) for stage, rank in enumerate(done.grid.homes)}
        chunks = max(chunk_of.values()) + 1
        self.chunk = np.array([chunk_of[stage] for stage in range(done.stages)])[table.stage]
        self.colors = [[chunk_color(kind, chunk, chunks) for chunk in range(chunks)] for kind in _KINDS]
        self.ranks, self.decided = table.rank.tolist(), done.decided_by.tolist()
        self.starts, self.ends = self.start.tolist(), self.end.tolist()
        different, of = np.unique(np.append(self.start, self.end), return_inverse=True)
        texts = [_number(time) for time in different.tolist()]  # far fewer than slots
        self.from_, self.to = np.array(texts, dtype=object)[of].reshape(2, -1).tolist()
        self.names = [
            f"{KINDS[_KINDS[kind]][0]} of stage {stage}, micro-batch {k}"
            for kind, stage, k in zip(table.kind.tolist(), table.stage.tolist(), self.microbatch.tolist(), strict=True)
        ]

    def key(self) -> list[str]:
        """Names of the colours, and of the column at the right."""
        parts, x = [], _LEFT
        for name, color in legend(_KINDS[kind] for kind in np.unique(self.done.table.kind)):
            fill = f'fill="{MUTED}" fill-opacity="0.16"' if color == COLORS["idle"] else f'fill="{color}"'
            parts.append(_rect(x, 4, 11, 11, fill))
            parts.append(put_text(x + 16, 10, name, anchor="start"))
            x += 34 + 6.7 * len(name)
        return [*parts, put_text(WIDTH, 10, "in flight", anchor="end", fill=MUTED)]

    def lanes(self, slow: int | None) -> list[str]:
        """Grey lanes with the ranks' names, and at the right the most that each holds."""
        done, parts = self.done, []
        for rank, peak in enumerate(done.peak_in_flight):
            top, middle = _TOP + rank * self.step, _TOP + rank * self.step + self.high / 2
            name = f"rank {rank}" + ", slow" * (rank == slow)
            size = 'font-size="11"' if rank == slow else ""
            parts.append(put_text(_LEFT - 8, middle, name, anchor="end", extra=size))
            parts.append(put_text(WIDTH, middle, str(peak), anchor="end"))
            parts.append(_rect(_LEFT, top, _RIGHT - _LEFT, self.high, f'fill="{MUTED}" fill-opacity="0.16"'))
        return parts + self._gaps()

    def _gaps(self) -> list[str]:
        """Nothing to see over the grey lanes, but a tooltip each."""
        waits = np.flatnonzero(self.start - self.before > 1e-9 * self.span)
        at = zip(waits.tolist(), self.before[waits].tolist(), self.start[waits].tolist(), strict=True)
        found = [(self.ranks[place], a, b, self._until(place)) for place, a, b in at]
        last = np.append(np.flatnonzero(np.diff(self.done.table.rank)), self.start.size - 1)
        found += [
            (rank, self.ends[place], self.span, "it has done its part of the batch, and the next needs the update")
            for rank, place in enumerate(last.tolist())
            if self.span - self.end[place] > 1e-9 * self.span
        ]
        px = (_RIGHT - _LEFT) / self.span
        return (
            ['<g class="course-slots" fill-opacity="0">']
            + [
                f'<rect x="{_LEFT + a * px:.1f}" y="{_TOP + rank * self.step:.1f}" width="{(b - a) * px:.1f}" '
                f'height="{self.high:.1f}"><title>rank {rank} is idle from {_number(a)} to {_number(b)} {self.unit}: '
                f"{why}</title></rect>"
                for rank, a, b, why in found
            ]
            + ["</g>"]
        )

    def _until(self, place: int) -> str:
        """What an action that did not start at once waits for."""
        decided = self.decided[place]
        if decided < 0:
            return "it waits for nothing"
        told = f"it waits for {self.names[decided]}, which ends at {self.to[decided]} on rank {self.ranks[decided]}"
        gone = self.starts[place] - self.ends[decided]
        return told + (f" and is on its way for {_number(gone)}" if gone > 1e-9 * self.span else "")

    def told(self, place: int) -> str:
        """What a slot is, and what it waits for."""
        rank, decided = self.ranks[place], self.decided[place]
        told = f"{self.names[place]}, on rank {rank}, {self.from_[place]} to {self.to[place]} {self.unit}: "
        if decided < 0:
            return told + "starts at once"
        if self.ranks[decided] == rank:
            return f"{told}starts when its rank is free, after {self.names[decided]}"
        return told + self._until(place)

    def slots(self, faint: bool) -> list[str]:
        """A bar for each slot, its micro-batch in it where there is room, and its tooltip."""
        gap = np.minimum(0.5, 0.15 * self.wide)
        parts = [f'<g class="course-slots" opacity="{0.35 if faint else 1}">']
        columns = (self.left + gap, self.top, np.maximum(self.wide - 2 * gap, 0.3), self.done.table.kind, self.chunk)
        high = f'height="{self.high:.1f}"'
        for place, (x, y, wide, kind, chunk) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" {high} fill="{self.colors[kind][chunk]}">'
                f"<title>{self.told(place)}</title></rect>"
            )
        parts.append("</g>")
        parts.append(f'<g text-anchor="middle" pointer-events="none" opacity="{0.5 if faint else 1}">')
        parts += self._words(np.arange(self.start.size))
        return [*parts, "</g>"]

    def _words(self, places: Sequence[int] | np.ndarray) -> list[str]:
        """The micro-batch in every slot that has the room."""
        at = np.asarray(places, dtype=int)
        digits = np.where(self.microbatch[at] > 9, 2, 1)
        at = at[self.wide[at] > _NARROW + _DIGIT * digits]
        ink = [[text_on(color) for color in row] for row in self.colors]
        columns = (self.left + self.wide / 2, self.top + self.high / 2 + 4.2, self.microbatch)
        x, y, k, kind, chunk = (column[at].tolist() for column in (*columns, self.done.table.kind, self.chunk))
        return [
            f'<text x="{a:.1f}" y="{b:.1f}" font-size="12" fill="{ink[i][j]}">{n}</text>'
            for a, b, n, i, j in zip(x, y, k, kind, chunk, strict=True)
        ]

    def chain(self, framed: Sequence[int]) -> list[str]:
        """Slots that wait for each other, first to last, and a line that goes from one to the next."""
        parts = []
        for place in framed:
            fill = self.colors[self.done.table.kind[place]][self.chunk[place]]
            wide = 3 if place == framed[-1] else 1.4
            look = f'fill="{fill}" stroke="{PAGE}" stroke-width="{wide}"'
            box = _rect(self.left[place], self.top[place], max(self.wide[place], 0.5), self.high, look)
            parts.append(f"<g>{box}<title>{self.told(place)}</title></g>")
        parts += ['<g text-anchor="middle" pointer-events="none">', *self._words(framed), "</g>"]
        for one, two in pairwise(framed):
            if self.top[one] != self.top[two]:
                a = (self.left[one] + self.wide[one], self.top[one] + self.high / 2)
                b = (self.left[two], self.top[two] + self.high / 2)
                parts.append(line(*a, *b, PAGE, 2))
        return parts

    def axis(self) -> list[str]:
        """Round numbers of the time, under both panels."""
        step = _round_step(self.span / 8)
        parts = [line(_LEFT, self.bottom, _RIGHT, self.bottom, RULE, 1)]
        for number in range(math.floor(self.span / step + 1e-9) + 1):
            x = _LEFT + number * step / self.span * (_RIGHT - _LEFT)
            parts.append(put_text(x, self.bottom + 14, _number(number * step), fill=MUTED))
        return [*parts, put_text((_LEFT + _RIGHT) / 2, self.bottom + 31, f"time ({self.unit})", fill=MUTED)]

    def held(self) -> list[str]:
        """What each rank holds over time; the first rank and the last one stand out."""
        done, ranks = self.done, self.done.ranks
        most, top = max(done.peak_in_flight), self.bottom - _HELD
        parts = [put_text(_LEFT, top - 14, "activations in flight:", anchor="start", fill=MUTED)]
        x = _LEFT + 138
        for rank, color in ((0, COLORS["forward"]), (ranks - 1, COLORS["communication"]))[: min(ranks, 2)]:
            parts.append(line(x, top - 14, x + 18, top - 14, color, 3))
            words = f"rank {rank}, at most {done.peak_in_flight[rank]}"
            parts.append(put_text(x + 24, top - 14, words, anchor="start"))
            x += 56 + 6.7 * len(words)
        if ranks > 2:
            parts += [line(x, top - 14, x + 18, top - 14, MUTED, 1)]
            parts += [put_text(x + 24, top - 14, "ranks between", anchor="start", fill=MUTED)]
        for count in sorted({0, most, most // 2 if most >= 4 else 0}):
            y = self.bottom - count / most * (_HELD - 6)
            parts.append(line(_LEFT, y, _RIGHT, y, RULE, 0.6))
            parts.append(put_text(_LEFT - 8, y, str(count), anchor="end", fill=MUTED))
        for rank in reversed(range(ranks)):
            color, wide = (COLORS["forward"], 2.4) if rank == 0 else (MUTED, 1.0 if ranks <= 8 else 0.5)
            dashes = ""
            if rank == ranks - 1 > 0:
                color, wide, dashes = COLORS["communication"], 2.2, 'stroke-dasharray="6 2"'
            times, counts = done.in_flight(rank)
            px, py = (_RIGHT - _LEFT) / self.span, (_HELD - 6) / most
            path = "".join(
                f"H{_LEFT + a * px:.1f}V{self.bottom - n * py:.1f}" for a, n in zip(times[1:], counts[1:], strict=True)
            )
            words = html.escape(f"rank {rank} has at most {done.peak_in_flight[rank]} in flight")
            path = f'd="M{_LEFT} {self.bottom:.1f}{path}" stroke="{color}" stroke-width="{wide}" {dashes}'
            parts.append(f'<path {path} fill="none"><title>{words}</title></path>')
        return parts


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10 ... above."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-12)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least - 1e-12)

"""What a search of layouts found, in words: the same sections as a plan's, and plain data.

sections = search_sections(found)        # for `render.sections_text`, `render.sections_markdown` and `page`
search_dict(found)                       # for JSON
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from course_lib.planning.report import Fact, Section, Table
from course_lib.planning.search import Option, Search
from course_lib.planning.spec import LayoutSpec
from course_lib.planning.units import duration, gib, percent

__all__ = ["layout_words", "search_dict", "search_sections"]


def layout_words(layout: LayoutSpec) -> str:
    """A layout in one line: "data 16 zero1, tensor 8, pipeline 4 interleaved x 5, micro-batch 1"."""
    words = [f"data {layout.data} {layout.sharding}{f' in {layout.replicas} groups' if layout.replicas > 1 else ''}"]
    words += [f"{key} {getattr(layout, key)}" for key in ("tensor", "context", "expert") if getattr(layout, key) > 1]
    if layout.pipeline > 1:
        words.append(
            f"pipeline {layout.pipeline} {layout.schedule}{f' x {layout.chunks}' if layout.chunks > 1 else ''}"
        )
    words.append(f"micro-batch {layout.micro_batch}")
    if layout.recompute != "none":
        words.append(f"recompute {layout.recompute}")
    return ", ".join(words)


def search_sections(found: Search) -> list[Section]:
    """The best and the runner-up, time against memory, and what each choice is worth."""
    best = found.best
    facts = [
        Fact("best layout", duration(best.seconds), f"{gib(best.peak)} GiB; {layout_words(best.layout)}"),
        Fact("layouts", f"{found.considered:,}", f"considered of {found.total:,} legal ones; {found.fits:,} fit"),
    ]
    if found.runner_up is not None:
        facts.insert(1, Fact("runner-up", duration(found.runner_up.seconds), found.why))
    if found.fastest.layout != best.layout and found.fastest.seconds < best.seconds:
        fastest = f"needs {gib(found.fastest.peak)} GiB, so does not fit; {layout_words(found.fastest.layout)}"
        facts.append(Fact("fastest of all", duration(found.fastest.seconds), fastest))
    shown = _thinned(found.pareto)
    table = Table(("a step", "slower", "GiB", "layout"), tuple(_row(one, best) for one in shown), words=(3,))
    left = len(found.pareto) - len(shown)
    notes = (f"{left} more are not shown; --json has them.",) if left else ()
    rivals: dict[tuple[float, str], list[str]] = {}
    for name, one in found.rivals.items():
        rivals.setdefault((one.option.seconds, one.why), []).append(name.replace("_", "-"))
    rows = tuple((", ".join(names), duration(seconds), why) for (seconds, why), names in rivals.items())
    other = Table(("another", "a step", "what it loses"), rows, words=(0, 2))
    front = Section(
        "Time against memory: no layout is both faster and smaller than one of these", table=table, notes=notes
    )
    worth = [Section("The best layout with another value of one choice", table=other)] if rows else []
    return [Section("Search", tuple(facts)), front, *worth]


def _thinned(front: Sequence[Option], step: float = 0.85) -> list[Option]:
    """Those that need clearly less memory than the one before (at most `step` times), up to thrice the best time."""
    kept: list[Option] = []
    for one in front:
        if not kept or (one.peak <= step * kept[-1].peak and one.seconds <= 3 * kept[0].seconds):
            kept.append(one)
    return kept


def _row(one: Option, best: Option) -> tuple[str, str, str, str]:
    slower = one.seconds / best.seconds - 1
    return duration(one.seconds), percent(slower) if slower > 5e-4 else "-", gib(one.peak), layout_words(one.layout)


def _option(one: Option | None) -> dict[str, Any] | None:
    return None if one is None else {"layout": asdict(one.layout), "seconds": one.seconds, "peak": one.peak}


def search_dict(found: Search) -> dict[str, Any]:
    """Plain data; the best layout's plan is not repeated in it."""
    return {
        "best": _option(found.best),
        "runner_up": _option(found.runner_up),
        "why": found.why,
        "pareto": [_option(one) for one in found.pareto],
        "rivals": {name: {"option": _option(one.option), "why": one.why} for name, one in found.rivals.items()},
        "fastest": _option(found.fastest),
        "considered": found.considered,
        "fits": found.fits,
        "total": found.total,
    }

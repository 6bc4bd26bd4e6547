"""A class's results: CSV for a spreadsheet or a learning platform, and one HTML page to look at.

write_csv(path, rows)                    # one row a hand-in
write_gradebook(folder, rows, course)    # folder/index.html and a page of feedback for each learner
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.grading.feedback import page_name, write_feedback
from course_lib.grading.gradebook_page import PAGE
from course_lib.grading.pages import render
from course_lib.grading.roster import Learner, fold
from course_lib.grading.sheets import (
    OUTCOMES,
    WORDS,
    Course,
    Row,
    Sheet,
    item_of,
    outcome,
    plain,
    reason,
    sheets,
    smells,
)
from course_lib.grading.table import csv_text, write_file

__all__ = ["Bar", "csv_rows", "outcome_bars", "score_bars", "write_csv", "write_gradebook"]

_TONE = {"passed": "good", "partly": "half", "not_attempted": "none", "missing": "none"}
_SHORT = {**WORDS, "not_attempted": "not tried", "kernel_died": "died"}
_TICK = {"passed": "✓", "partly": "½", "failed": "✗", "not_attempted": "–", "missing": "∅"}
BINS = 10


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram: what it counts, how many, its colour's name (good, half, bad, none, or "")."""

    label: str
    count: int
    tone: str = ""


def write_csv(
    path: Path,
    rows: Sequence[Row],
    people: Mapping[str, Learner] | None = None,
    course: Course | None = None,
    *,
    bom: bool = False,
) -> None:
    """One row a hand-in, one column an exercise. `people`: names and addresses by learner.

    `bom`: with the mark by which Excel knows UTF-8. `course`: for the exercises of a chapter that nobody handed in.
    """
    write_file(path, ("\ufeff" if bom else "") + csv_text(csv_rows(rows, people, course)))


def csv_rows(
    rows: Sequence[Row], people: Mapping[str, Learner] | None = None, course: Course | None = None
) -> list[list[object]]:
    """Head and rows. Points are numbers; an exercise of another chapter is empty; what was not graded has 0."""
    found = sheets(rows, course)
    columns = [column for sheet in found for column in sheet.columns]
    known = ["name", "email"] if people is not None else []
    head = ["student", *known, "assignment", "status", "score", "max_score"]
    table: list[list[object]] = [[*head, *(column.id for column in columns), "reason", "flags"]]
    places = {id(one): sheet for sheet in found for _, one in sheet.rows}
    for learner, one in rows:
        sheet = places[id(one)]
        who = (people or {}).get(learner)
        names = [plain(who.name if who else ""), plain(who.email if who else "")] if people is not None else []
        row: list[object] = [plain(learner), *names, one.assignment or sheet.name, one.status]
        row += [_number(one.score), _number(sheet.max_score) if sheet.columns else ""]
        for column in columns:
            item = item_of(one, column)
            row.append(_number(item.score) if item else 0 if column in sheet.columns else "")
        flags = "; ".join(one.flags) if one.items else ""
        table.append([*row, " ".join(reason(one).split()), " ".join(plain(flags, 2000).split())])
    return table


def _number(points: float) -> float | int:
    return int(points) if float(points).is_integer() else round(points, 6)


def outcome_bars(sheet: Sheet, item: str) -> list[Bar]:
    """How many of the chapter's hand-ins came to which outcome in one exercise. A missing one is none."""
    counts: Counter[str] = Counter()
    for _, one in _handed_in(sheet.rows):
        found = next((graded for graded in one.items if graded.id == item), None)
        counts[outcome(found) if found else "missing"] += 1
    bars = [Bar(_SHORT[name], counts[name], _TONE.get(name, "bad")) for name in OUTCOMES]
    return [bar for bar, name in zip(bars, OUTCOMES, strict=True) if bar.count or name in ("passed", "failed")]


def score_bars(sheet: Sheet) -> list[Bar]:
    """How many hand-ins have which share of the chapter's points; the last bar holds full marks too."""
    counts = [0] * BINS
    for _, one in _handed_in(sheet.rows):
        share = one.score / sheet.max_score if sheet.max_score else 0.0
        counts[min(max(int(share * BINS), 0), BINS - 1)] += 1
    return [Bar(f"{100 * index // BINS}%", count) for index, count in enumerate(counts)]


def _handed_in(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row[1].items or row[1].status != "missing"]


def write_gradebook(
    folder: Path,
    rows: Sequence[Row],
    course: Course,
    people: Mapping[str, Learner] | None = None,
    loose: Sequence[str] = (),
) -> Path:
    """Write `index.html` and `feedback/` with one page a learner; the path of the index.

    The index is for the one who teaches: all names, all flags. A page of feedback is for its learner alone.
    `people`: names by learner. `loose`: lines on files of which nobody knows whose they are.
    """
    learners = list(dict.fromkeys(learner for learner, _ in rows))
    pages = {learner: _who(learner, people) for learner in learners}
    mine: dict[str, list[Any]] = {learner: [] for learner in learners}
    for learner, one in rows:
        mine[learner].append(one)
    for learner in learners:
        known = (people or {}).get(learner)
        write_feedback(folder / "feedback", learner, mine[learner], course, known.name if known else "")
    found = sheets(rows, course)
    parts = [_part(sheet, course, pages) for sheet in found]
    graded = sorted(one.score / most for _, one, most in _graded(found))
    half = len(graded) // 2
    middle = (graded[half] + graded[-half - 1]) / 2 if graded else None
    page = render(
        PAGE,
        title=f"Gradebook: {course.title}",
        sortable=True,
        course=course.title,
        facts=_facts(rows, learners, middle),
        tiers=sorted({one.tier for _, one in rows if one.tier}),
        watch=[_watch(row, pages) for row in _handed_in(rows) if row[1].status != "graded" or row[1].flags],
        loose=[plain(line, 400) for line in loose if not _has_row(line, rows)],
        absent=_absent(found, pages),
        overview=_overview(found, learners, pages) if len(found) > 1 else None,
        parts=parts,
    )
    write_file(folder / "index.html", page)
    return folder / "index.html"


def _graded(found: Sequence[Sheet]) -> list[tuple[str, Any, float]]:
    return [(learner, one, s.max_score) for s in found for learner, one in s.rows if one.items and s.max_score]


def _facts(rows: Sequence[Row], learners: Sequence[str], middle: float | None) -> list[tuple[str, str]]:
    counts = Counter(one.status for _, one in rows)
    facts = [(str(len(learners)), "learner" if len(learners) == 1 else "learners")]
    many = len(_handed_in(rows))
    facts.append((str(many), "hand-in" if many == 1 else "hand-ins"))
    order = ("graded", "graded_with_problems", "unreadable", "missing")
    facts += [(str(counts[name]), name.replace("_", " ")) for name in order if counts[name] or name == "graded"]
    if middle is not None:
        facts.append((f"{100 * middle:.0f}%", "of the points: the median of what was graded"))
    return facts


def _has_row(line: str, rows: Sequence[Row]) -> bool:
    return any(line in flag for _, one in rows for flag in one.flags)


def _who(learner: str, people: Mapping[str, Learner] | None) -> dict[str, str]:
    """What a line calls a learner: by name where the class list has one, with the id behind it."""
    person = (people or {}).get(learner)
    name = person.name if person and fold(person.name) not in ("", fold(learner)) else ""
    return {"learner": name or learner, "id": learner if name else "", "page": f"feedback/{page_name(learner)}"}


def _watch(row: Row, pages: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    learner, one = row
    why = [plain(flag, 400) for flag in one.flags] if one.items else [reason(one)]
    return {**pages[learner], "chapter": one.assignment, "status": one.status, "why": why}


def _absent(found: Sequence[Sheet], pages: Mapping[str, Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Who has no hand-in, chapter by chapter."""
    names = [
        (sheet.title, [pages[who]["learner"] for who, one in sheet.rows if not one.items and one.status == "missing"])
        for sheet in found
    ]
    return [(title, who) for title, who in names if who]


def _overview(
    found: Sequence[Sheet], learners: Sequence[str], pages: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Learners by chapters; of two hand-ins for one chapter the better one counts."""
    named = [sheet for sheet in found if sheet.columns]
    best: dict[tuple[str, str], float] = {}
    for sheet in named:
        for learner, one in _handed_in(sheet.rows):
            best[sheet.name, learner] = max(one.score, best.get((sheet.name, learner), 0.0))
    lines = []
    for learner in learners:
        scores = [best.get((sheet.name, learner)) for sheet in named]
        lines.append({**pages[learner], "scores": scores, "total": sum(filter(None, scores))})
    return {"sheets": named, "lines": lines, "total": sum(sheet.max_score for sheet in named)}


def _part(sheet: Sheet, course: Course, pages: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    lines = []
    for learner, one in sheet.rows:
        cells = []
        for column in sheet.columns:
            item = item_of(one, column)
            kind = outcome(item) if item else "missing"
            cells.append({"item": item, "kind": kind, "tick": _TICK.get(kind, "✗"), "word": WORDS[kind]})
        lines.append({**pages[learner], "one": one, "cells": cells, "here": bool(_handed_in([(learner, one)]))})
    common = [
        {"name": name, "item": item, "learners": learners, "belief": course.belief(item, name)}
        for name, item, learners in smells(sheet.rows)
    ]
    charts = [
        {"column": column, "bars": _drawn(outcome_bars(sheet, column.id)), "what": "outcomes"}
        for column in sheet.columns
    ]
    return {"sheet": sheet, "lines": lines, "common": common, "charts": charts, "scores": _drawn(score_bars(sheet))}


def _drawn(bars: Sequence[Bar]) -> dict[str, Any]:
    """Where the bars of a chart 240 by 100 stand, and the chart as a sentence."""
    most = max((bar.count for bar in bars), default=0) or 1
    step = 240 / max(len(bars), 1)
    marks = [
        {
            "x": round(index * step + step * 0.14, 1),
            "y": round(78 - 62 * bar.count / most, 1),
            "width": round(step * 0.72, 1),
            "height": round(62 * bar.count / most, 1),
            "middle": round((index + 0.5) * step, 1),
            "bar": bar,
            "lines": bar.label.split(" ") if len(bars) < BINS or index % 2 == 0 else [],
        }
        for index, bar in enumerate(bars)
    ]
    return {"marks": marks, "said": ", ".join(f"{bar.label} {bar.count}" for bar in bars)}

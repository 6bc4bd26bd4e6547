"""The page of one learner: what passed, what did not and why, what to look at next. It holds nobody else's results."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.pages import render
from course_lib.grading.report import ahead, nothing_tried, to_type
from course_lib.grading.sheets import Course, outcome, plain, reason, sheets
from course_lib.grading.table import write_file

__all__ = ["page_name", "whose_cases", "write_feedback"]

_TONE = {"passed": "good", "partly": "half", "not_attempted": "", "missing": ""}
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|index)(\..*)?")


def page_name(learner: str) -> str:
    """The file name of a learner's page. Two learners never share one, also where names in capitals are the same.

    An id of small letters, digits, `-` and `_` is its own name; any other one is spelled in those, with a hash of it.
    """
    if not learner:
        return "index.html"
    if re.fullmatch(r"[a-z0-9_][a-z0-9_-]{0,59}", learner) and not _RESERVED.fullmatch(learner):
        return f"{learner}.html"
    stem = re.sub(r"[^a-z0-9_]+", "-", plain(learner).lower()).strip("-")[:40]
    digest = hashlib.sha256(learner.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{stem or 'learner'}-{digest}.html"


def whose_cases(submission: Submission) -> str:
    """Which cases only the grader runs, in a sentence; "" when nothing was run."""
    if not submission.items:
        return ""
    if submission.seed == 0:
        return "graded on the cases that the checks in your notebook run too"
    return (
        "graded on cases that only the grader runs: of the same kinds and number as those of the checks in your "
        "notebook, with other numbers in them"
    )


def write_feedback(
    folder: Path, learner: str, submissions: Sequence[Submission], course: Course | None = None, name: str = ""
) -> Path:
    """Write the learner's page into the folder; its path. With the learner "" it is your own page, `index.html`.

    `name`: what the roster calls the learner, beside the id.
    Your own page has the notes of the grading. A page of a class leaves them out: they are for the one who teaches.
    """
    course = course or Course()
    rows = [(learner, one) for one in submissions]
    parts = [_part(one, sheet.title, course, bool(learner)) for sheet in sheets(rows, course) for _, one in sheet.rows]
    who = " ".join(plain(f"{name} ({learner})" if name and name != learner else learner).split())
    title = f"Feedback: {who}" if learner else "Your exercises"
    most = sum(_worth(one, course) for one in submissions)
    total = sum(one.score for one in submissions)
    absent = sum(one.status == "missing" for one in submissions)
    page = render(
        _PAGE,
        title=title,
        body="narrow",
        course=course.title,
        heading=title,
        parts=parts,
        total=total,
        most=most,
        present=len(parts) - absent,
        absent=absent,
    )
    path = folder / page_name(learner)
    write_file(path, page)
    return path


def _worth(one: Submission, course: Course) -> float:
    """Points that a hand-in could have, also one that is missing or cannot be read."""
    assignment = course.assignment(one.assignment)
    return one.max_score or (sum(item.points for item in assignment.items) if assignment else 0.0)


def _part(one: Submission, title: str, course: Course, classroom: bool) -> dict[str, Any]:
    assignment = course.assignment(one.assignment)
    hinted = {item.id for item in assignment.items if item.hints} if assignment else set()
    items = [_item(item, course, item.id in hinted, classroom) for item in one.items]
    onward = ahead(one.items)
    notes = [] if classroom or not one.items else [plain(flag, 400) for flag in one.flags]
    if one.items and one.status != "graded" and classroom:
        notes = ["something in this notebook could not be graded as it was; ask whoever graded it"]
    if classroom:
        notes += [plain(flag, 400) for flag in one.flags if " points by hand" in flag]
    return {
        "title": title if one.items or one.assignment else one.name.replace("\\", "/").rpartition("/")[2],
        "one": one,
        "exercises": items,
        "ahead": next((found for found in items if found["item"] is onward), None),
        "notes": notes,
        "reason": "" if one.items else reason(one),
        "cases": "nothing attempted yet in what is saved" if nothing_tried(one) else whose_cases(one),
    }


def _item(item: GradedItem, course: Course, hinted: bool, classroom: bool) -> dict[str, Any]:
    kind, words = outcome(item), f"hint {item.position}"
    command = f"python3 start.py {words}" if classroom else to_type(words)  # a class has what we gave out
    belief = course.belief(item.id, item.misconception) if item.misconception and kind != "passed" else ""
    return {
        "item": item,
        "kind": kind,
        "tone": _TONE.get(kind, "bad"),
        "message": plain(item.message, 4000) if item.status != "passed" or kind != "passed" else "",
        "belief": belief,
        "hint": command if hinted and kind != "passed" else "",
    }


_PAGE = """{% extends "base" %}
{% block main %}
<h1>{{ heading }}</h1>
<p class="muted">{{ course }}</p>
{% if parts | length > 1 %}<p><b>{{ total | number }}</b> of {{ most | number }} points, {{ present }} of\
 {{ parts | length }} notebooks {{ "handed in" if absent else "graded" }}.</p>
{% endif %}
{% for part in parts %}
<h2>{{ part.title }}</h2>
{% if part.exercises %}
<p><b>{{ part.one.score | number }}</b> of {{ part.one.max_score | number }} points, {{ part.cases }}.</p>
{% else %}
<p><span class="mark {{ part.one.status }}">{{ part.one.status | status }}</span> {{ part.reason }}</p>
{% endif %}
{% if part.ahead %}
<p class="next"><b>Next:</b> <a href="#{{ part.ahead.item.id }}">{{ part.ahead.item.position }}\
 {{ part.ahead.item.title }}</a></p>
{% endif %}
{% for found in part.exercises %}
<article class="{{ found.tone }}" id="{{ found.item.id }}">
<h3>{{ found.item.position }} {{ found.item.title }}
<span class="points"><span class="mark {{ found.kind }}">{{ found.kind | word }}</span>\
 {{ found.item.score | number }} of {{ found.item.max_score | number }}</span></h3>
{% if found.message %}<pre>{{ found.message }}</pre>
{% endif %}
{% if found.belief %}<p>It looks as if you took this to be so: <em>{{ found.belief }}</em>
 <code>[{{ found.item.misconception }}]</code></p>
{% endif %}
{% if found.hint %}<p class="muted">A hint: <code>{{ found.hint }}</code></p>
{% endif %}
</article>
{% endfor %}
{% if part.notes %}
<h3>Notes</h3>
<ul>{% for note in part.notes %}<li>{{ note }}</li>{% endfor %}</ul>
{% endif %}
{% endfor %}
{% endblock %}
"""

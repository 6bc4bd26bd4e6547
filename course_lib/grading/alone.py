"""One exercise apart from the others: whether another one ran before it, and the notebook that holds it alone."""

import builtins
from copy import deepcopy
from typing import Any

from course_lib.grading.reach import spoken_of
from course_lib.grading.sources import defined, used
from course_lib.grading.splice import Spliced

__all__ = ["facts", "lonely", "others_before"]


def facts(cell: Any) -> dict[str, Any]:
    """What a spliced notebook says of a cell: its role, and its exercise or None."""
    return dict(cell.metadata["course"]["graded"])


def lonely(spliced: Spliced, key: str, left_out: set[str]) -> tuple[Spliced, set[str]]:
    """Our cells, one exercise's answer and check, the answers that it builds on, and the learner's own cells they use.

    Their names, its own among them, come with it. `left_out`: ids of cells that are to stay away.
    """
    wanted = {key, *_built_on(spliced, key)}
    cells = [(facts(cell), cell) for cell in spliced.notebook.cells]
    mine = [cell.source for about, cell in cells if about["item"] in wanted and about["role"] in ("answer", "check")]
    own = [cell for about, cell in cells if about["role"] == "extra"]
    used_ones = spoken_of(mine, [cell.source for cell in own], _given(spliced))
    away = left_out | {cell.id for number, cell in enumerate(own) if number not in used_ones}
    notebook = deepcopy(spliced.notebook)
    notebook.cells = [
        cell
        for cell in notebook.cells
        if cell.id not in away
        and (facts(cell)["item"] in (None, key) or (facts(cell)["role"] == "answer" and facts(cell)["item"] in wanted))
    ]
    return Spliced(notebook, {key: spliced.items[key]}, spliced.extras, []), wanted


def others_before(spliced: Spliced, key: str) -> bool:
    """Whether something of the learner's ran before it, other than stubs: only then can a run without that differ."""
    for cell in spliced.notebook.cells:
        about = facts(cell)
        if about["item"] == key and about["role"] == "check":
            return False
        if about["role"] == "extra":
            return True
        if about["role"] == "answer" and about["item"] != key and not spliced.items[about["item"]].untouched:
            return True
    return False


def _given(spliced: Spliced) -> set[str]:
    """Names that are there without a learner: Python's, and those of our cells."""
    ours = [cell.source for cell in spliced.notebook.cells if facts(cell)["role"] == "ours"]
    return set(dir(builtins)).union(*map(defined, ours))


def _built_on(spliced: Spliced, key: str) -> set[str]:
    """The other exercises whose answers this one names, also through the learner's own cells and through each other."""
    cells = [(facts(cell), cell.source) for cell in spliced.notebook.cells]
    learners = [(about, source) for about, source in cells if about["role"] in ("answer", "extra")]
    names = set().union(*(used(source) for about, source in cells if about["item"] == key))
    given = _given(spliced)
    found: set[str] = set()
    taken: set[int] = set()
    while True:  # who binds `sum` or our `torch` anew has damaged it, and nobody builds on that
        new = [n for n, (_, source) in enumerate(learners) if n not in taken and defined(source) & (names - given)]
        if not new:
            return found - {key}
        for number in new:
            about, source = learners[number]
            taken.add(number)
            names |= used(source)
            found |= {about["item"]} if about["item"] else set()

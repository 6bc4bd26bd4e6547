"""The learner's sources in the pristine notebook: answers where they belong, helpers beside them, everything else ours.

An answer is found by its grade_id (several cells with one are joined, in order), then by its cell id, then by the name
that it must define, then by its likeness to the stub. Of a hand-in's checks, outputs and metadata nothing is taken.
"""

import builtins
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from course_lib.grading.assignment import Assignment, Item
from course_lib.grading.handins import HandIn, HandInCell
from course_lib.grading.notebook import course_of, grade_of
from course_lib.grading.reach import reachable
from course_lib.grading.release import release
from course_lib.grading.sources import (
    calls_only,
    checked_names,
    clean,
    defined,
    grader_parts,
    joined,
    needed,
    parses,
    same,
    used,
)

__all__ = ["Spliced", "SplicedItem", "splice"]

LIKENESS = 0.7
MOST_PIECES = 6
"""Into how many pieces a cell may have been cut within its statements."""


@dataclass
class SplicedItem:
    """One exercise in a hand-in: its learner's sources (empty when missing), whether they are the stub, notes.

    `doubtful`: it could not be taken as it was handed in, so that a person should look whether these are its sources.
    """

    item: Item
    sources: list[str] = field(default_factory=list)
    untouched: bool = False
    notes: list[str] = field(default_factory=list)
    doubtful: bool = False


@dataclass
class Spliced:
    """The notebook to run; cells carry metadata.course.graded = {"role": answer | check | extra | ours, "item": id}.

    `notes`: what of the file had to be left out; each of them is a problem.
    """

    notebook: NotebookNode
    items: dict[str, SplicedItem]
    extras: list[str]
    notes: list[str]

    def searched(self, name: str) -> list[str]:
        """The sources in which a forbidden name counts against an exercise: its own, and what it uses."""
        item = self.items[name]
        graded = [(course_of(cell)["graded"], cell.source) for cell in self.notebook.cells]
        lent = [source for about, source in graded if about["role"] == "answer" and about["item"] != name]
        check = next(cell for cell in self.notebook.cells if _is_check(cell, name))
        return reachable(item.sources, checked_names(check.source), [*lent, *self.extras])


def splice(assignment: Assignment, handin: HandIn) -> Spliced:
    """Put a hand-in's sources into the assignment's own notebook."""
    return _Splicer(assignment, release(assignment, hidden_tests=True), handin).result()


class _Splicer:
    """Learner cells have indices of the hand-in, ours of the pristine notebook; `place` leads from one to the other."""

    def __init__(self, assignment: Assignment, pristine: NotebookNode, handin: HandIn) -> None:
        self.pristine = pristine
        self.items = {item.id: SplicedItem(item) for item in assignment.items}
        self.notes = list(handin.notes)
        self.by_grade = {str(grade_of(cell).get("grade_id")): index for index, cell in enumerate(pristine.cells)}
        self.by_id = {str(cell.id): index for index, cell in enumerate(pristine.cells)}
        self.answer_at = {name: self.by_grade[name] for name in self.items}
        self.check_at = {name: self.by_grade[f"check-{name}"] for name in self.items}
        self.cells = self._healed([cell for cell in handin.cells if cell.source.strip()])
        self.answers: dict[str, list[HandInCell]] = defaultdict(list)
        self.place: dict[int, int] = {}
        self.extras: list[HandInCell] = []
        self.spare: list[HandInCell] = []
        """Edited check cells and cells that are no code: taken only for a name that an answer needs."""

    def _healed(self, cells: list[HandInCell]) -> list[HandInCell]:
        """Neighbours that were one cell, cut within a statement, are one again."""
        found: list[HandInCell] = []
        for cell in cells:
            found.append(cell)
            for size in range(2, min(MOST_PIECES, len(found)) + 1):
                if parses(cell.source) and parses(found[-2].source):
                    break
                whole = joined([piece.source for piece in found[-size:]])
                if whole is not None:
                    found[-size:] = [self._joint(found[-size:], whole)]
                    break
        return found

    def _joint(self, pieces: list[HandInCell], source: str) -> HandInCell:
        """Of the first piece's place; named by the first that has a name; code when any of them is."""
        grade_id = next((cell.grade_id for cell in pieces if cell.grade_id), None)
        cell_id = next((cell.cell_id for cell in pieces if cell.cell_id in self.by_id), pieces[0].cell_id)
        kind = next((cell.kind for cell in pieces if cell.kind == "code"), pieces[0].kind)
        return replace(pieces[0], kind=kind, source=source, grade_id=grade_id, cell_id=cell_id)

    def result(self) -> Spliced:
        for cell in self.cells:
            self._match(cell)
        for name in self.items:
            self._find_lost(name)
        for name, item in self.items.items():
            cells = sorted(self.answers[name], key=lambda cell: cell.index)
            own = [cell for cell in cells if not self._is_stub(name, cell)]
            item.untouched = bool(cells) and not own
            cells = own or cells[:1]
            whole = joined([cell.source for cell in cells])
            item.sources = [clean(cell.source) for cell in cells] if whole is None else [clean(whole)]
            if len(cells) > 1:
                item.notes.append(f"its answer stood in {len(cells)} cells; they were joined in order")
            if any(cell.kind != "code" for cell in cells):
                item.notes.append("its answer cell was not a code cell; it was run as one")
            part = next(filter(None, map(grader_parts, item.sources)), None)
            if part:
                item.notes.append(f"it speaks of a part of the grader (`{part}`); have a look at it")
                item.doubtful = True
        part = next(filter(None, (grader_parts(cell.source) for cell in self.extras)), None)
        if part:
            self.notes.append(f"one of its own cells speaks of a part of the grader (`{part}`); have a look at it")
        return Spliced(self._build(), self.items, [clean(cell.source) for cell in self.extras], self.notes)

    def _match(self, cell: HandInCell) -> None:
        """A learner's cell is an answer, a copy of one of ours, or an extra cell."""
        index = self.by_grade.get(cell.grade_id) if cell.grade_id else self.by_id.get(cell.cell_id or "")
        answer = next((name for name, at in self.answer_at.items() if at == index), None)
        if answer is None and cell.kind != "code":
            self.spare.append(cell)
            return
        if answer is None:
            copied = next((at for at, ours in enumerate(self.pristine.cells) if _copies(ours, cell)), None)
            index = index if copied is None else copied
            answer = next((name for name, at in self.answer_at.items() if at == copied), None)
        else:
            copied = None
        if index is not None:
            self.place[cell.index] = index
        if answer is not None:
            self.answers[answer].append(cell)
        elif copied is None and not calls_only(cell.source):
            if index is not None and grade_of(self.pristine.cells[index]):
                self._note_edited(index)
                self.spare.append(cell)
            else:
                self.extras.append(cell)
        elif copied is None and index is not None:
            self._note_edited(index)

    def _note_edited(self, index: int) -> None:
        for name, at in self.check_at.items():
            if at == index:
                self.items[name].notes.append("its check cell was edited; ours was used")

    def _is_stub(self, name: str, cell: HandInCell) -> bool:
        return same(cell.source, self.pristine.cells[self.answer_at[name]].source)

    def _find_lost(self, name: str) -> None:
        """An answer without an id: by the name that the check takes, then in a merged cell, then by likeness."""
        stub = self.pristine.cells[self.answer_at[name]].source
        wanted = checked_names(self.pristine.cells[self.check_at[name]].source)
        wanted = wanted & defined(stub) or wanted
        found = [cell for cell in self.answers[name] if not self._is_stub(name, cell)]
        if wanted <= {one for cell in found for one in defined(cell.source)}:
            return
        edited = [cell for cell in self.spare if cell.kind == "code"]
        hits = [cell for cell in [*self.extras, *edited] if wanted & defined(cell.source)]
        if hits:
            self._take(name, hits, "its answer was found by the name that it defines")
            return
        others = [cell for key, cells in self.answers.items() if key != name for cell in cells]
        merged = [cell for cell in others if wanted & defined(cell.source) and not self._is_any_stub(cell)]
        if merged:
            self.answers[name] += [cell for cell in merged if cell not in self.answers[name]]
            self.items[name].notes.append("its answer was found in the cell of another one")
            self.items[name].doubtful = True
            return
        if found:
            return
        texts = [cell for cell in self.spare if cell.kind != "code"]
        likely = [cell for cell in texts if wanted & defined(cell.source)]
        likely = [cell for cell in likely if parses(cell.source)] or likely
        alike = [] if likely or self.answers[name] else self.extras
        likely = likely or [cell for cell in alike if _likeness(cell.source, stub) > LIKENESS]
        if len(likely) == 1 or (likely and all(parses(cell.source) for cell in likely)):
            self._take(name, likely, "its answer was found by its likeness to the stub")
            self.items[name].doubtful = True

    def _is_any_stub(self, cell: HandInCell) -> bool:
        return any(self._is_stub(name, cell) for name in self.items)

    def _take(self, name: str, cells: list[HandInCell], note: str) -> None:
        self.extras = [cell for cell in self.extras if cell not in cells]
        self.spare = [cell for cell in self.spare if cell not in cells]
        self.answers[name] = [*self.answers[name], *cells]
        self.place.update({cell.index: self.answer_at[name] for cell in cells})
        self.items[name].notes.append(note)

    def _build(self) -> NotebookNode:
        notebook = deepcopy(self.pristine)
        before: dict[int, list[HandInCell]] = defaultdict(list)
        after: dict[int, list[HandInCell]] = defaultdict(list)
        anchors = self._anchors()
        hoisted = self._hoisted(anchors)
        for extra in self.extras:
            room, at = (before, hoisted) if extra.index in hoisted else (after, anchors)
            room[at[extra.index]].append(extra)
        self._provide(before, after)
        roles = {at: ("answer", name) for name, at in self.answer_at.items()}
        roles |= {at: ("check", name) for name, at in self.check_at.items()}
        cells = [_extra(cell) for cell in after[-1]]
        for index, ours in enumerate(notebook.cells):
            cells += [_extra(cell) for cell in before[index]]
            role, name = roles.get(index, ("ours", None))
            if role == "answer" and name is not None and self.items[name].sources:
                cells += [_learner_cell(source, "answer", name) for source in self.items[name].sources]
            elif course_of(ours).get("role") != "hint" and ours.cell_type == "code":
                ours.metadata["course"] = {"graded": {"role": role, "item": name}}
                cells.append(ours)
            cells += [_extra(cell) for cell in after[index]]
        for number, cell in enumerate(cells):
            cell.id = f"cell-{number}"
        notebook.cells = cells
        return notebook

    def _provide(self, before: dict[int, list[HandInCell]], after: dict[int, list[HandInCell]]) -> None:
        """What an answer needs and would come after it here, or in no cell that runs, comes before it. In place."""
        known = {*dir(builtins), *(name for cell in after[-1] for name in defined(cell.source))}
        answered = {at: name for name, at in self.answer_at.items() if self.items[name].sources}
        for index, ours in enumerate(self.pristine.cells):
            for cell in before[index]:
                known |= defined(cell.source)
            if index in answered:
                sources = self.items[answered[index]].sources
                own = {name for source in sources for name in defined(source)}
                wants = {name for source in sources for name in needed(source)} - own
                while wants - known:
                    want = min(wants - known)
                    known.add(want)
                    giver = self._giver(want, answered[index])
                    if giver is None:
                        continue
                    for cells in [*before.values(), *after.values()]:
                        cells[:] = [cell for cell in cells if cell is not giver]
                    before[index].insert(0, giver)
                    wants |= needed(giver.source)
                    known |= defined(giver.source)
                known |= own
            elif ours.cell_type == "code":
                known |= defined(ours.source)
            for cell in after[index]:
                known |= defined(cell.source)

    def _giver(self, want: str, answer: str) -> HandInCell | None:
        """The learner's cell that binds a name: the last one above the answer in the hand-in, else the first one."""
        first = min(cell.index for cell in self.answers[answer])
        spare = [cell for cell in self.spare if parses(cell.source)]
        others = [cell for name, cells in self.answers.items() if name != answer for cell in cells]
        for cells in (self.extras, others, spare):
            hits = [cell for cell in cells if want in defined(cell.source) and not self._is_any_stub(cell)]
            if hits:
                above = [cell for cell in hits if cell.index < first]
                giver = above[-1] if above else hits[0]
                if cells is spare:
                    self.extras.append(giver)
                    self.spare = [cell for cell in self.spare if cell is not giver]
                return giver
        return None

    def _anchors(self) -> dict[int, int]:
        """For each extra cell the pristine cell that it follows in the hand-in; -1 for before all."""
        found, last = {}, -1
        extras = {cell.index for cell in self.extras}
        for cell in self.cells:
            last = self.place.get(cell.index, last)
            if cell.index in extras:
                found[cell.index] = last
        return found

    def _hoisted(self, anchors: dict[int, int]) -> dict[int, int]:
        """Extra cells that an answer needs, that stood above it in the hand-in, and would come after it here."""
        users = []
        for name, cells in self.answers.items():
            users += [(cell.index, self.answer_at[name], used(cell.source)) for cell in cells]
        found: dict[int, int] = {}
        for extra in reversed(self.extras):
            names, anchor = defined(extra.source), anchors[extra.index]
            places = [at for index, at, needs in users if index > extra.index and at <= anchor and names & needs]
            if places:
                found[extra.index] = min(places)
                users.append((extra.index, min(places), used(extra.source)))
        return found


def _copies(ours: NotebookNode, cell: HandInCell) -> bool:
    return ours.cell_type == "code" and bool(ours.source.strip()) and same(ours.source, cell.source)


def _likeness(one: str, two: str) -> float:
    return SequenceMatcher(None, one[:5000], two[:5000], autojunk=False).ratio()


def _is_check(cell: NotebookNode, name: str) -> bool:
    return bool(course_of(cell)["graded"] == {"role": "check", "item": name})


def _extra(cell: HandInCell) -> NotebookNode:
    return _learner_cell(clean(cell.source), "extra", None)


def _learner_cell(source: str, role: str, item: str | None) -> NotebookNode:
    cell: NotebookNode = new_code_cell(source, metadata={"course": {"graded": {"role": role, "item": item}}})
    return cell

"""A class list as its platform exports it, and who of it is named by the name of a file or folder.

roster = read_roster(Path("class.csv"))
who = Names(roster)
who.exactly("Doe, Jane")       # the learners who are called that: none, one, or several
who.within("hw3-doe-jane-v2")  # the same, for a name that stands somewhere in the words
"""

import re
import unicodedata
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.grading.table import read_rows

__all__ = ["Learner", "Names", "fold", "read_roster", "words"]

_ID: tuple[str, ...] = (
    "id",
    "studentid",
    "student",
    "sisuserid",
    "idnumber",
    "sid",
    "userid",
    "username",
    "login",
    "loginid",
)
_ID += ("sisloginid", "user", "matriculation", "matriculationnumber", "matrikelnummer", "orgdefinedid", "netid")
_NAME = ("name", "fullname", "studentname", "displayname", "sortablename")
_FIRST = ("firstname", "first", "givenname", "forename", "given")
_LAST = ("lastname", "last", "surname", "familyname", "family")
_EMAIL = ("email", "emailaddress", "mail")
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ı": "i"})
_LONGEST_NAME = 6


@dataclass(frozen=True)
class Learner:
    """One row of the class list; `others` are further ids (a login, a platform's number).

    `cells`: (head, cell) of the columns that say who it is, as the list has them; () of a list without a head.
    """

    id: str
    name: str = ""
    email: str = ""
    others: tuple[str, ...] = ()
    cells: tuple[tuple[str, str], ...] = field(default=(), compare=False)


def words(text: str) -> list[str]:
    """The words of a text: without case, accents and signs."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold()).translate(_LETTERS)
    plain = "".join(one for one in plain if not unicodedata.combining(one))
    return re.findall(r"[^\W_]+", plain)


def fold(text: str) -> str:
    """A text by which names are compared: its words without what lies between them."""
    return "".join(words(text))


def read_roster(path: Path) -> list[Learner]:
    """The class list, in its order. CourseError naming the line when an id is missing or stands twice."""
    rows = read_rows(path)
    if not rows:
        raise CourseError(f"{path}: the class list is empty")
    columns = _columns([fold(cell) for cell in rows[0][1]])
    who: list[tuple[int, str]] = []
    if columns:
        known = {index for indexes in columns.values() for index in indexes}
        head = rows[0][1]
        # Canvas imports no gradebook without its column of sections.
        who = [(index, cell) for index, cell in enumerate(head) if index in known or fold(cell) == "section"]
        rows = rows[1:]
    else:
        columns = _guessed(rows[0][1])
    found: list[Learner] = []
    lines: dict[str, int] = {}
    for line, cells in rows:
        row = {index: cell for index, cell in enumerate(cells) if cell}
        if any(fold(cell) == "pointspossible" for cell in row.values()):
            continue  # the second line of a Canvas gradebook
        learner = _learner(columns, row)
        if not learner.id:
            raise CourseError(f"{path}: line {line} has no id, no email address and no name")
        key = learner.id.casefold()
        if key in lines:
            raise CourseError(f"{path}: line {line} repeats the id {learner.id!r} of line {lines[key]}")
        lines[key] = line
        found.append(replace(learner, cells=tuple((name, row.get(index, "")) for index, name in who)))
    if not found:
        raise CourseError(f"{path}: the class list has a head and nobody in it")
    return found


def _columns(head: list[str]) -> dict[str, list[int]]:
    """What each kind of column is called here; {} when the first row is no head."""
    found: dict[str, list[int]] = {}
    for kind, known in (("id", _ID), ("name", _NAME), ("first", _FIRST), ("last", _LAST), ("email", _EMAIL)):
        hits = [index for name in known for index, cell in enumerate(head) if cell == name]
        if hits:
            found[kind] = hits
    ids = found.get("id", [])
    if "student" in head and not found.keys() & {"name", "first", "last"} and len(ids) > 1:
        found["name"] = [head.index("student")]  # Canvas: Student is the name, ID the number
        found["id"] = [index for index in ids if index != head.index("student")]
    return found


def _guessed(cells: list[str]) -> dict[str, list[int]]:
    """Without a head: the column with an @ is the address, the first other one the id, the next one the name."""
    email = [index for index, cell in enumerate(cells) if re.fullmatch(r"\S+@\S+", cell)][:1]
    rest = [index for index in range(len(cells)) if index not in email]
    return {"email": email, "id": rest[:1], "name": rest[1:2]}


def _learner(columns: dict[str, list[int]], row: dict[int, str]) -> Learner:
    def cells(kind: str) -> list[str]:
        return [row[index] for index in columns.get(kind, []) if index in row]

    email = next(iter(cells("email")), "")
    name = next(iter(cells("name")), "") or " ".join(cells("first")[:1] + cells("last")[:1])
    ids = cells("id")
    fallback = email.partition("@")[0] or name
    return Learner(ids[0] if ids else fallback, name, email, tuple(dict.fromkeys(ids[1:])))


class Names:
    """Who is called what: by id, address, login and name, the name's parts in any rotation ("Doe, Jane")."""

    def __init__(self, roster: list[Learner]) -> None:
        self._known: dict[str, set[str]] = defaultdict(set)
        for one in roster:
            for text in (one.id, *one.others, one.email, one.email.partition("@")[0]):
                self._add(text, one.id)
            parts = words(one.name)
            for start in range(len(parts)):
                self._add(" ".join(parts[start:] + parts[:start]), one.id)

    def _add(self, text: str, learner: str) -> None:
        if fold(text):
            self._known[fold(text)].add(learner)

    def exactly(self, text: str) -> frozenset[str]:
        """The ids of those whose id, address, login or name this is."""
        return frozenset(self._known.get(fold(text), ()))

    def within(self, text: str) -> frozenset[str]:
        """The ids of those who are named among the words; a name within a longer one does not count.

        Short numbers say nothing here: they are chapters, copies, dates.
        """
        parts = words(text)
        hits: list[tuple[int, int, set[str]]] = []
        for start in range(len(parts)):
            for end in range(start + 1, min(len(parts), start + _LONGEST_NAME) + 1):
                run = "".join(parts[start:end])
                if len(run) < 2 or (run.isdigit() and len(run) < 4):
                    continue
                if run in self._known:
                    hits.append((start, end, self._known[run]))
        longest = [
            hit
            for hit in hits
            if not any(o[0] <= hit[0] and hit[1] <= o[1] and o[1] - o[0] > hit[1] - hit[0] for o in hits)
        ]
        return frozenset(learner for _, _, learners in longest for learner in learners)

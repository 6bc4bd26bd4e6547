"""The hand-ins of a class, however they lie: which file is whose, and of which chapter. What is not sure is listed.

    with collect(Path("handins"), roster) as found:
        found.handins, found.ambiguous, found.missing, found.notes

A learner is found by the class list, else by the folder, else by the file's name; a chapter by the id in the notebook,
else by names, else by the answers in it. Links are not followed; of archives only notebooks are written, under numbers,
into a temporary folder that goes with the result.
"""

import hashlib
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from course_lib.errors import CourseError, HandInError
from course_lib.grading.assignment import assignment_paths
from course_lib.grading.decisions import DECISIONS, Decision, settled
from course_lib.grading.grade import assignment_of
from course_lib.grading.handins import read_handin
from course_lib.grading.places import Candidate, find_candidates, unpacking_room
from course_lib.grading.roster import Learner, Names, fold, words

__all__ = ["Collected", "Found", "collect"]

_CHAPTER = re.compile(r"(?:hw|homework|ch|chapter|ex|exercises?|assignment|sheet|week|unit|lab)0*(\d*)")
_FILLERS = {"copy", "of", "final", "late", "solution", "solutions", "submission", "submissions", "submitted", "answers"}
_FILLERS |= {"notebook", "untitled", "ipynb", "handin", "handins", "homeworks", "labs", "files", "download", "student"}
_NUMBER = re.compile(r"(?<=.)(?: *\(\d+\)| - copy|-\d{1,2})$", re.IGNORECASE)

_PLATFORMS = {
    "Moodle": re.compile(r"(?P<who>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+(?:_(?P<file>.*))?"),
    "Blackboard": re.compile(r".+_(?P<who>[^_]+)_attempt_\d{4}(?:-\d\d){5}(?:_(?P<file>.+))?"),
    "Canvas": re.compile(r"(?P<who>[^_]+)_(?:LATE_)?(?P<number>\d{2,})_\d{2,}_(?P<file>.+)"),
    "Brightspace": re.compile(r"(?P<number>\d+-\d+) - (?P<who>.+?) - .+?(?: [AP]M)?(?: - (?P<file>.+))?"),
}


@dataclass(frozen=True)
class Found:
    """One hand-in: whose, of which chapter (its name, or "" when nothing tells), and where it can be read.

    `place`: where it lies for whoever collected it; `how` it was matched; `problem`: why it is not to be graded;
    `release`: the content hash of the exercises that it was made from.
    """

    learner: str
    assignment: str
    path: Path
    how: str
    place: str = ""
    problem: str = ""
    release: str = ""


@dataclass
class Collected:
    """What was found. Use as a context manager, or close it: what was unpacked goes then."""

    handins: list[Found] = field(default_factory=list)
    ambiguous: list[str] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _room: "TemporaryDirectory[str] | None" = None

    def close(self) -> None:
        if self._room is not None:
            self._room.cleanup()

    def __enter__(self) -> "Collected":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _Read:
    """A candidate after its notebook was looked at."""

    candidate: Candidate
    assignment: str
    how: str
    problem: str = ""
    stray: bool = False
    """Whether it is a notebook that holds none of the course's exercises."""
    release: str = ""


def collect(
    paths: Path | str | Iterable[Path | str],
    roster: Sequence[Learner] | None = None,
    material: Path | None = None,
    *,
    results: Path | None = None,
    decisions: Sequence[Decision] = (),
) -> Collected:
    """Look through folders, files and archives. CourseError when one of them is not there or holds no notebook.

    `results`: where to unpack (None: the system's temporary folder). What a killed run left there goes first, so that
    only one run at a time may have it. `decisions`: whose a file is, or that it does not count.
    """
    roots = [Path(paths)] if isinstance(paths, str | Path) else [Path(one) for one in paths]
    room = unpacking_room(results)
    result = Collected(_room=room)
    try:
        candidates = find_candidates(roots, Path(room.name), result.notes)
        if not candidates:
            raise CourseError(f"{', '.join(map(str, roots))}: there are no notebooks in it")
        known = [path.stem for path in assignment_paths(material)]
        read = [_read(one, known, material, Path(room.name)) for one in candidates]
        names = Names(list(roster)) if roster else None
        by_hand = settled(decisions, [one.place for one in candidates], names, result.notes)
        _sort_out(result, read, names, by_hand)
        if roster:
            _note_missing(result, roster)
    except BaseException:
        room.cleanup()
        raise
    return result


# ---------------------------------------------------------------- which chapter


def _read(candidate: Candidate, known: list[str], material: Path | None, room: Path) -> _Read:
    """The chapter of a candidate, and what is wrong with it."""
    by_folder = _named(candidate.parts, known)
    if candidate.problem:
        return _Read(candidate, by_folder, "name", candidate.problem)
    try:
        handin = read_handin(candidate.path)
    except HandInError as error:
        return _Read(candidate, by_folder, "name", str(error).replace(str(candidate.path), candidate.place))
    if handin.assignment in known:
        return _Read(candidate, str(handin.assignment), "embedded id", release=handin.release or "")
    try:
        assignment = assignment_of(replace(handin, path=Path(candidate.parts[-1])), material)
    except HandInError:
        if not by_folder:
            return _Read(candidate, "", "", f"{candidate.place}: is no exercise notebook of this course", stray=True)
        # The grader names a file's chapter by the file alone: give it one that is called so.
        target = room / "by-folder" / str(len(list((room / "by-folder").glob("*")))) / f"{by_folder}.ipynb"
        target.parent.mkdir(parents=True)
        shutil.copyfile(candidate.path, target)
        return _Read(replace(candidate, path=target), by_folder, "folder", release=handin.release or "")
    return _Read(candidate, assignment.name, "name or answers", release=handin.release or "")


def _named(parts: Sequence[str], known: list[str]) -> str:
    """The chapter that a path names, the innermost part first; "" when none does, or two in one part."""
    for part in reversed(parts):
        text = part.lower()
        hits = {stem for stem in known if re.search(rf"(?<![0-9a-z]){re.escape(stem)}(?![0-9a-z])", text)}
        if not hits:
            numbers = {_CHAPTER.fullmatch(word) for word in words(part)}
            chapters = {match.group(1).zfill(2) for match in numbers if match and match.group(1)}
            if part == parts[-1] and re.fullmatch(r"\d\d\.ipynb", text):
                chapters |= {text[:2]}
            hits = {stem for stem in known if stem[:2] in chapters}
        if hits:
            return hits.pop() if len(hits) == 1 else ""
    return ""


# ---------------------------------------------------------------- whose


def _sort_out(result: Collected, read: list[_Read], names: Names | None, by_hand: Mapping[str, str]) -> None:
    """Give each its learner; set apart what is not sure."""
    owned: list[tuple[str, str, _Read]] = []
    for one in read:
        decided = by_hand.get(one.candidate.place)
        if decided == "":
            continue
        learners, how = _by_roster(one, names) if names else (frozenset({_label(one)}), _how(one))
        if decided:
            learners, how = frozenset({decided}), DECISIONS
        if len(learners) == 1:
            owned.append((next(iter(learners)), how, one))
        elif one.stray and not learners:
            result.notes.append(f"{one.problem}; it was left alone")
        elif learners:
            result.ambiguous.append(f"{one.candidate.place}: could be of {', '.join(sorted(learners))}")
        else:
            result.ambiguous.append(f"{one.candidate.place}: nobody in the class list is named by it")
    owned = _apart(owned) if names is None else owned
    chapters = {one.assignment for _, _, one in owned if one.assignment}
    groups: dict[tuple[str, str], list[tuple[str, _Read]]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for learner, _, _ in owned:
        count[learner] += 1
    for learner, how, one in owned:
        if one.stray and count[learner] > 1:
            result.notes.append(f"{one.problem}; {learner} handed in others, and it was left alone")
            count[learner] -= 1
            continue
        assignment = one.assignment
        if not assignment and len(chapters) == 1 and count[learner] == 1:
            assignment = next(iter(chapters))
        groups[learner, assignment].append((how, one))
    for (learner, assignment), ones in sorted(groups.items()):
        _settle(result, learner, assignment, ones)


def _settle(result: Collected, learner: str, assignment: str, ones: list[tuple[str, _Read]]) -> None:
    """One notebook for a learner and chapter, or a row that says which ones there are."""
    if len(ones) > 1 and assignment:
        digests = {_digest(one.candidate.path) for _, one in ones}
        places = ", ".join(one.candidate.place for _, one in ones)
        if len(digests) == 1:
            result.notes.append(f"{learner}, {assignment}: the same file lies there {len(ones)} times ({places})")
            ones = ones[:1]
        else:
            text = f"{learner}, {assignment}: {len(ones)} notebooks: {places}; keep the one that counts"
            result.ambiguous.append(text)
            first = ones[0][1].candidate
            result.handins.append(Found(learner, assignment, first.path, "", places, f"ambiguous: {text}"))
            return
    for how, one in ones:
        how = f"learner by {how}" + (f", chapter by {one.how}" if one.assignment else "")
        candidate = one.candidate
        place, problem = candidate.place, one.problem
        result.handins.append(Found(learner, assignment, candidate.path, how, place, problem, one.release))


def _digest(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return str(path)


def _platform(part: str) -> tuple[str, re.Match[str]] | None:
    for name, pattern in _PLATFORMS.items():
        match = pattern.fullmatch(part)
        if match:
            return name, match
    return None


def _components(one: _Read) -> list[str]:
    """The parts of a path that may name a learner: without the chapter's name and file suffixes."""
    parts = [re.sub(r"(?i)(\.ipynb)?(\.txt|\.json|\.zip|\.ipynb)?$", "", part) for part in one.candidate.parts]
    if one.assignment:
        name = rf"(?i)(?<![0-9a-z]){re.escape(one.assignment)}(?![0-9a-z])"
        parts = [part if _platform(part) else re.sub(name, " ", part) for part in parts]
    return parts


def _by_roster(one: _Read, names: Names) -> tuple[frozenset[str], str]:
    """Who is named, and by what. Whole names count before names among other words; two that differ are no answer."""
    whole: list[frozenset[str]] = []
    among: list[frozenset[str]] = []
    for part in _components(one):
        found = _platform(part)
        if found:
            groups = found[1].groupdict()
            who = names.exactly(groups["who"])
            number = names.exactly(groups["number"]) if groups.get("number") else frozenset()
            whole += [hit for hit in (who if len(who) != 1 and not number else who or number, number) if hit]
            among.append(names.within(groups["who"]))
        elif fold(part):
            whole.append(names.exactly(_NUMBER.sub("", part)) or names.exactly(part))
            among.append(names.within(part))
    whole, among = [hit for hit in whole if hit], [hit for hit in among if hit]
    for level, hits in (("class list", whole), ("class list (named among other words)", among)):
        if not hits:
            continue
        both = frozenset.intersection(*hits)
        if len(both) > 1:
            for more in among:
                both = both & more or both
        return (both or frozenset.union(*hits)), level
    return frozenset(), ""


def _label(one: _Read) -> str:
    """Without a class list: whom the platform's name, else the folder, else the file names; last, the root's name."""
    parts = _components(one)
    for part in parts:
        found = _platform(part)
        if found:
            return found[1].group("who").strip()
    for index, part in enumerate(parts):
        left = _without_fillers(part, one.assignment, index == len(parts) - 1)
        if left:
            return left
    return one.candidate.root


def _how(one: _Read) -> str:
    parts = _components(one)
    platforms = [found[0] for found in map(_platform, parts) if found]
    if platforms:
        return f"{platforms[0]}'s file name"
    for index, part in enumerate(parts):
        if _without_fillers(part, one.assignment, index == len(parts) - 1):
            return "file name" if index == len(parts) - 1 else "folder"
    return "the folder that was named"


def _without_fillers(part: str, assignment: str, is_file: bool) -> str:
    """What is left of a name without "hw3", "copy of", "(1)": as it stands when it holds none of these."""
    part = (_NUMBER.sub("", part) if is_file else part).strip(" _-.")
    chapter = assignment[:2]
    pieces = [piece for piece in re.split(r"[\s_\-]+", part) if piece]
    kept = []
    for piece in pieces:
        text = fold(piece)
        if text in _FILLERS or _CHAPTER.fullmatch(text) or not text:
            continue
        if chapter and (piece == chapter or (len(pieces) > 1 and piece == chapter.lstrip("0"))):
            continue
        kept.append(piece)
    return part if len(kept) == len(pieces) else " ".join(kept)


def _apart(owned: list[tuple[str, str, _Read]]) -> list[tuple[str, str, _Read]]:
    """Two people of one name whom a platform tells apart by a number keep that number."""
    numbers: dict[str, set[str]] = defaultdict(set)
    own: dict[int, str] = {}
    for index, (learner, _, one) in enumerate(owned):
        found = next((match for match in map(_platform, _components(one)) if match), None)
        number = found[1].groupdict().get("number") if found and found[0] != "Brightspace" else None
        if number:
            numbers[learner].add(number)
            own[index] = number
    return [
        (f"{learner} ({own[index]})" if index in own and len(numbers[learner]) > 1 else learner, how, one)
        for index, (learner, how, one) in enumerate(owned)
    ]


def _note_missing(result: Collected, roster: Sequence[Learner]) -> None:
    """Who of the class has nothing for a chapter that somebody handed in."""
    chapters = sorted({one.assignment for one in result.handins if one.assignment})
    has = {(one.learner, one.assignment) for one in result.handins}
    result.missing += [
        (learner.id, chapter) for chapter in chapters for learner in roster if (learner.id, chapter) not in has
    ]

"""`course incident`: the incident simulator in the terminal."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tqdm.auto import tqdm

from course_lib.errors import CourseError
from course_lib.events import json_number

if TYPE_CHECKING:
    from course_lib.failures.scoring import Order, Score
    from course_lib.failures.simulator import Case

__all__ = ["Desk", "as_dict", "main"]

DESCRIPTION = """A run went wrong, or so it is said: look at its dashboards, order checks, name the fault.

The run is a real one, trained now with a fault in it, and every check measures it. What a check would cost on a large
job is counted in minutes. The score is for the name and for the minutes, against the path of the diagnosis table.

Examples:
  course incident                         a new case
  course incident --seed 7                the same case again
  course incident --list                  the checks and the faults that there are
  course incident --seed 7 --check NAME --check NAME --answer NAME
                                          without questions; also: echo "answer NAME" | course incident --seed 7

Exit status 0: the fault was named right, or none was named; 1: another one was named."""

HELP = """check NAME (or its number)   order a check, and get what it measured
restart                      start the run again
answer NAME (or its number)  name the fault; this ends the case
checks, faults, dashboards   show them again
quit                         leave the case open"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which case, and how to work on it."""

    seed: int | None = None
    """Which case: the same number is the same case. Without it, a new one."""
    check: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Order this check (or `restart`) before anything is asked; give it as often as you like."""
    answer: str | None = None
    """Name the fault, and ask nothing."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Only list the checks and the faults."""
    no_input: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Ask nothing, also without --answer."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the case as one line of JSON, alone on stdout, at its end."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No progress bar."""


def checks_text() -> str:
    """Every check by kind of cause, in the order of suspicion, numbered."""
    from course_lib.failures.scoring import RESTART, restart_minutes, table_order

    lines: list[str] = []
    kind = ""
    for number, check in enumerate(table_order(), start=1):
        if check.category != kind:
            kind = check.category
            lines.append(f"  {kind}")
        lines.append(f"  {number:>4}  {check.name:<24}{check.minutes:>4g} min  {check.title}")
    lines.append(f"        {RESTART:<24}{restart_minutes():>4g} min  start the run again")
    return "\n".join(lines)


def faults_text() -> str:
    """Every fault that may be the answer, numbered."""
    from course_lib.failures.scoring import faults

    rows = enumerate(faults().items(), start=1)
    return "\n".join(f"  {number:>4}  {name:<24}{title}" for number, (name, title) in rows)


class Desk:
    """Somebody at a terminal, or a script, working on one case. `say` prints a paragraph."""

    def __init__(self, case: Case, say: Callable[[str], None], encoding: str | None = "utf-8") -> None:
        self.case, self.say, self._encoding = case, say, encoding

    def begin(self) -> None:
        """What is seen first."""
        case = self.case
        self.say(f"Case {case.seed}. {case.headline}. Something is wrong with it, they say.")
        self.dashboards()
        self.say(f"The checks, in the order of suspicion:\n{checks_text()}")

    def dashboards(self) -> None:
        """The dashboards, in blocks where the output can show them."""
        from course_lib.figures.incident_text import BLOCKS, PLAIN, dashboards_text

        try:
            BLOCKS.encode(self._encoding or "ascii")
            marks = BLOCKS
        except (UnicodeEncodeError, LookupError):
            marks = PLAIN
        self.say(dashboards_text(self.case.dashboards, self.case.events, self.case.good, marks))

    def order(self, name: str) -> None:
        """Order a check or a restart, and show what came back."""
        known = {order.name for order in self.case.orders}
        finding = self.case.restart() if name == "restart" else self.case.order(_numbered(name, _checks()))
        again = len(self.case.orders) == len(known)
        cost = "in your notes" if again else f"{self.case.orders[-1].minutes:g} min"
        self.say(_wrapped(f"[{cost}, {self.case.minutes:g} in all] {finding.text}", rest="  "))

    def answer(self, name: str) -> None:
        """Name the fault, and show the score and the trace."""
        score = self.case.answer(_numbered(name, _faults()))
        self.say("\n".join(_wrapped(line, rest="  ") for line in score_text(score).split("\n")))
        self.say(f"What each check says about this run (*: you ordered it):\n{self._trace()}")

    def _trace(self) -> str:
        ordered = {order.name for order in self.case.orders}
        return "\n".join(_trace_line(order, order.name in ordered) for order in self.case.trace())

    def obey(self, line: str) -> bool:
        """Do what one line says; False when it ends the work on the case. `CourseError` for a name that is none."""
        word, _, rest = line.strip().partition(" ")
        word, rest = word.lower(), rest.strip()
        if word in ("quit", "exit", "q"):
            return False
        shown = {"checks": checks_text, "faults": faults_text, "help": lambda: HELP, "?": lambda: HELP}
        if word in shown:
            self.say(shown[word]())
        elif word == "dashboards":
            self.dashboards()
        elif word == "answer":
            if not rest:
                raise CourseError(f"name the fault: answer NAME. They are:\n{faults_text()}")
            self.answer(rest)
        elif word:
            self.order(rest if word == "check" and rest else line.strip())
        return self.case.score is None


def _checks() -> Sequence[str]:
    from course_lib.failures.scoring import table_order

    return [check.name for check in table_order()]


def _faults() -> Sequence[str]:
    from course_lib.failures.scoring import faults

    return list(faults())


def _numbered(word: str, names: Sequence[str]) -> str:
    """The name for a number of the list; other words as they are."""
    return names[int(word) - 1] if word.isdecimal() and 0 < int(word) <= len(names) else word


def score_text(score: Score) -> str:
    """The score as a few lines."""
    from course_lib.failures.scoring import faults

    said, truth = faults()[score.said], faults()[score.truth]
    verdict = f"Right: “{truth}”." if score.right else f"No: you said “{said}”, and it is “{truth}”."
    path = ", ".join(score.path)
    lines = [f"{verdict} {score.points} points of 100."]
    lines.append(f"Spent: {score.minutes:g} minutes. The table's path takes {score.par:g}: {path}.")
    return "\n".join([*lines, *score.remarks, f"To mend it: {score.fix}", f"Not to do: {score.never}"])


def _trace_line(order: Order, ordered: bool) -> str:
    sign = "abnormal" if order.finding.abnormal else ""
    head = f"{'*' if ordered else ' '} {order.name:<18}{order.minutes:>3g} min  {sign:<10}"
    return _wrapped(order.finding.text, head, " " * len(head))


def as_dict(case: Case) -> dict[str, Any]:
    """The case for JSON; a number that is not finite is a string."""
    score = None if case.score is None else dataclasses.asdict(case.score)
    trace = [] if case.score is None else [_as_row(order) for order in case.trace()]
    return {
        "seed": case.seed,
        "headline": case.headline,
        "dashboards": {name: [json_number(value) for value in line] for name, line in case.dashboards.items()},
        "good": {name: [json_number(value) for value in line] for name, line in case.good.items()},
        "events": case.events,
        "orders": [_as_row(order) for order in case.orders],
        "minutes": case.minutes,
        "score": score,
        "trace": trace,
    }


def _as_row(order: Order) -> dict[str, Any]:
    numbers = {name: json_number(value) for name, value in order.finding.numbers.items()}
    found = {"text": order.finding.text, "abnormal": order.finding.abnormal, "numbers": numbers}
    return {"name": order.name, "minutes": order.minutes, **found}


def _wrapped(text: str, first: str = "", rest: str = "") -> str:
    """A paragraph broken at the terminal's width; `first` stands before it, `rest` before its other lines."""
    width = max(80, shutil.get_terminal_size((110, 24)).columns)
    return "\n".join(textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest)) or text


class _Progress:
    """A bar on stderr for each run that is trained: called with (done, total)."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            disable = self._quiet
            self._bar = tqdm(
                total=total, unit="step", file=sys.stderr, dynamic_ncols=True, disable=disable, leave=False
            )
        self._bar.update(done - self._bar.n)
        if done == total:
            self.close()

    def close(self) -> None:
        """Take the bar away, also when the run ended early."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _talk(desk: Desk, prompts: bool, err: Callable[[str], None]) -> None:
    """Read commands until the fault is named, the input ends, or somebody leaves."""
    while True:
        if prompts:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            if prompts:
                err("")
            return
        try:
            if not desk.obey(line):
                return
        except CourseError as error:
            err(str(error))


def main(argv: Sequence[str]) -> int:
    """Run `course incident` with these words and return the exit status: 1 when a wrong fault was named, else 0."""
    options = tyro.cli(Options, args=list(argv), prog="course incident", description=DESCRIPTION)
    out = sys.stderr if options.json else sys.stdout

    def say(text: str) -> None:
        print(text + "\n", file=out, flush=True)

    if options.list:
        say(f"The checks, in the order of suspicion:\n{checks_text()}")
        say(f"The faults:\n{faults_text()}")
        return 0
    from course_lib.failures.simulator import Case, spelled

    checks = [
        one if one == "restart" else spelled(_numbered(one, _checks()), _checks(), "check") for one in options.check
    ]
    answer = None if options.answer is None else spelled(_numbered(options.answer, _faults()), _faults(), "fault")
    progress = _Progress(options.quiet)
    case = Case(options.seed, on_step=progress)
    progress.close()
    desk = Desk(case, say, getattr(out, "encoding", None))
    desk.begin()
    for check in checks:
        desk.order(check)
    if answer is not None:
        desk.answer(answer)
    elif not options.no_input:
        terminal = sys.stdin.isatty()
        if terminal:
            say(HELP)
        _talk(desk, terminal, lambda text: print(text, file=sys.stderr, flush=True))
    if case.score is None:
        say(f"The case is open: no fault was named. The same case again: course incident --seed {case.seed}")
    if options.json:
        print(json.dumps(as_dict(case)), flush=True)
    return 0 if case.score is None or case.score.right else 1

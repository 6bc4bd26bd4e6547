"""The terminal entry: `course COMMAND ...`. It only dispatches: each command's module is imported when it is called.

A command's module offers `main(argv) -> exit status`. A `CourseError` is shown as one line (exit 2), Ctrl-C exits 130,
anything else is a bug and keeps its traceback.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from course_lib import __version__
from course_lib.errors import CourseError

__all__ = ["COMMANDS", "main"]

# name -> ("module:function", what it does in one line)
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("course_lib.train_cli:main", "train a small language model on this machine"),
    "drill": ("course_lib.drill_cli:main", "resume a run exactly, then with one part left out at a time"),
    "plan": ("course_lib.plan_cli:main", "plan a training run: days, memory, traffic, risks"),
    "incident": ("course_lib.incident_cli:main", "a run went wrong: order checks, name the fault"),
    "grade": ("course_lib.grading.cli:grade_main", "grade hand-ins: notebooks, folders or a chapter number"),
    "progress": ("course_lib.grading.progress_cli:progress_main", "a map of the course: what is done, what comes next"),
    "hint": ("course_lib.grading.cli:hint_main", "the next hint for an exercise: course hint 03.2"),
    "syllabus": ("course_lib.grading.cli:syllabus_main", "chapters, exercises, minutes and points"),
    "release": ("course_lib.grading.cli:release_main", "write exercises/ from solutions/, for authors"),
    "execute": ("course_lib.grading.cli:execute_main", "run a notebook and save its outputs, for authors"),
}


def usage() -> str:
    """The text of `course --help`."""
    lines = ["usage: course COMMAND [OPTIONS]", "", "Pre-training, Measured, in the terminal. The commands:", ""]
    lines += [f"  {name:<10} {line}" for name, (_, line) in COMMANDS.items()]
    lines += ["", "course COMMAND --help tells a command's options; course --version prints the version."]
    return "\n".join(lines)


def unknown(command: str) -> str:
    """One line for a word that is no command, with the nearest one."""
    near = difflib.get_close_matches(command, COMMANDS, 1)
    return f"there is no command {command!r}" + (f"; did you mean {near[0]!r}?" if near else "; see course --help")


def fail(message: str, status: int) -> int:
    """Say one line on stderr and return the exit status."""
    print(f"course: {message}", file=sys.stderr, flush=True)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run `course` with these words (default: those of the process) and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"course {__version__}")
        return 0
    if words[0] not in COMMANDS:
        return fail(unknown(words[0]), 2)
    module, function = COMMANDS[words[0]][0].split(":")
    try:
        status = getattr(importlib.import_module(module), function)(words[1:])
        sys.stdout.flush()
        return int(status or 0)
    except CourseError as error:
        return fail(" ".join(str(error).split()), 2)
    except KeyboardInterrupt:
        return fail("stopped", 130)
    except BrokenPipeError:
        # `course syllabus | head`: the reader has gone, which is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())

"""`course drill`: the recovery drill in the terminal."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from tqdm.auto import tqdm

__all__ = ["main", "table"]

DESCRIPTION = """Does this machine resume a run exactly? 30 steps in one go, against 20, a checkpoint and 10 more.

Then the resume with one part left out at a time: at which step that shows, and why. It takes a few seconds.
Exit status 0: the full resume is the same bit by bit, and each omission shows what it should; 1 if not."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to report the drill."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print everything as one line of JSON, alone on stdout."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No progress bar."""


def table(rows: Sequence[Any]) -> str:
    """The rows of a drill as text: what was left out, the first step that differs, the reason."""
    head = f"{'resumed at step 20':<22}{'precision':<11}{'loss differs':<14}{'parameters':<12}reason"
    lines = [head, "-" * len(head)]
    for row in rows:
        loss, parameters = ("never" if one is None else f"step {one}" for one in (row.first_loss, row.first_parameters))
        mark = "" if row.passed else "FAILED: "
        lines.append(f"{row.name:<22}{row.precision:<11}{loss:<14}{parameters:<12}{mark}{row.reason}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run `course drill` with these words and return the exit status: 0 when the drill passed, else 1."""
    options = tyro.cli(Options, args=list(argv), prog="course drill", description=DESCRIPTION)
    from course_lib.drill import drill

    with tqdm(unit="step", file=sys.stderr, dynamic_ncols=True, disable=options.quiet, leave=False) as bar:

        def progress(done: int, total: int, name: str) -> None:
            bar.total = total
            bar.set_description_str(name, refresh=False)
            bar.update(done - bar.n)

        result = drill(progress)
    if options.json:
        print(json.dumps(dataclasses.asdict(result)), flush=True)
    else:
        print(table(result.rows))
        word = "passed" if result.passed else "failed"
        print(f"{word} in {result.seconds:.1f} s; steps count from 0, and step 20 is the first after the checkpoint")
    return 0 if result.passed else 1

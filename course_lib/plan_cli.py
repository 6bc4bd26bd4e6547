"""`course plan`: a training run on paper, in the terminal."""

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from course_lib.errors import ConfigError
from course_lib.settings import nearest

if TYPE_CHECKING:
    from course_lib.planning.plan import Plan
    from course_lib.planning.search import Search
    from course_lib.planning.spec import RunSpec

__all__ = ["main"]

DESCRIPTION = """Plan a training run: days, memory of each device, traffic, checkpoints, and its risks in order.

Nothing is trained and nothing is measured: all of it follows from the shapes, the layout and the data sheets.

Examples:
  course plan --list                          the presets and the devices that there are
  course plan 70b-on-512-h100                 a preset
  course plan 70b-on-512-h100 --toml > my.toml
                                              a file to begin from; then: course plan my.toml
  course plan my.toml --set layout.tensor=4 --set layout.data=32
                                              with single values changed
  course plan my.toml --search                the best layout of all legal ones; with --toml, as a file
  course plan my.toml --html plan.html        a page to look at and to pass on

A value with blanks or quotes: --set "hardware.device=B200 SXM". Exit status 2 and one line when a plan cannot exist."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to plan, and how to show it."""

    plan: tyro.conf.Positional[str | None] = None
    """A TOML file, or the name of a preset."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Change one value: section.key=value; give it as often as you like."""
    search: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Look for the layout with the shortest step that fits, over all legal ones, and plan that."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print everything as one line of JSON."""
    markdown: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print Markdown, to be pasted into a document."""
    html: str | None = None
    """Write an HTML page to this file; - or nothing: to stdout."""
    toml: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print only the plan's file, with everything that was filled in."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Only list the presets and the devices."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No progress of a search."""


def options_of(argv: Sequence[str]) -> Options:
    """The options; a word that is none is a `ConfigError`. `--html` may stand without a file."""
    words = list(argv)
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else "--"
        if word == "--html" and (after.startswith("--") or after.endswith(".toml")):
            words[place] = "--html=-"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Options, args=words, prog="course plan", description=DESCRIPTION)
    except SystemExit as ended:
        if not ended.code:
            raise
        lines = [line.strip(" |╭╮╰╯│") for line in said.getvalue().splitlines()]
        told = [line for line in lines[1:] if line.strip("─-")]
        near = told[2].split(",")[0] if len(told) > 2 and told[1].startswith("Perhaps") else ""
        what = (told[0] if told else "these options are not understood").rstrip(".")
        raise ConfigError(f"{what}{f'; did you mean {near}?' if near else ''}; see course plan --help") from None


def sections_of(name: str) -> dict[str, Any]:
    """The sections of a preset or a file, not yet checked."""
    from course_lib.planning.files import name_of, read
    from course_lib.planning.presets import preset_sections, presets

    if name in presets():
        return preset_sections(name)
    path = Path(name)
    if not (path.suffix or path.parent.name or path.exists()):
        raise ConfigError(
            f"there is no preset {name!r} and no such file{nearest(name, presets())} (course plan --list has them)"
        )
    return {"name": name_of(path), **read(name)}


def planned(options: Options, sections: dict[str, Any]) -> "tuple[Plan, Search | None]":
    """The plan, after the search if there is to be one: then the layout of the file need not be legal."""
    from course_lib.planning.files import from_dict, with_settings
    from course_lib.planning.plan import plan

    run = from_dict(with_settings(sections, options.set))
    found = searched(run, options.quiet or options.json) if options.search else None
    return (plan(run) if found is None else found.best.plan or plan(run)), found


def listing() -> str:
    """The presets and the devices, a line each."""
    from course_lib.planning.devices import DEVICES
    from course_lib.planning.presets import about, presets

    wide = max(map(len, presets()))
    lines = ["Presets:", *(f"  {name:<{wide}}  {about(name)}" for name in presets()), "", "Devices:"]
    head = f"  {'':<14} {'GiB':>5} {'TFLOP/s':>8} {'inside':>7} {'across GB/s':>12}"
    lines.append(head)
    for name, one in DEVICES.items():
        figures = f"{one.memory_gib:>5g} {one.peak_tflops:>8g} {one.inside_gb_per_s:>7g} {one.across_gb_per_s:>12g}"
        lines.append(f"  {name:<14} {figures}")
    return "\n".join(lines)


def searched(run: "RunSpec", quiet: bool) -> "Search":
    """The search, with a bar on stderr where somebody may be looking at it."""
    from tqdm.auto import tqdm

    from course_lib.planning.search import search

    hidden = quiet or not sys.stderr.isatty()
    with tqdm(unit=" layouts", unit_scale=True, dynamic_ncols=True, disable=hidden, leave=False) as bar:

        def progress(now: Any) -> None:
            bar.total = now.total
            bar.update(now.considered - bar.n)

        return search(run, progress=progress)


def write(path: str, words: str) -> None:
    """Write a file, or stdout for "-"."""
    if path == "-":
        print(words, end="")
        return
    try:
        Path(path).write_text(words, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--html {path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def main(argv: Sequence[str]) -> int:
    """Run `course plan` with these words and return the exit status."""
    options = options_of(argv)
    if options.list:
        print(listing())
        return 0
    if options.plan is None:
        raise ConfigError("name a TOML file or a preset, for instance course plan 70b-on-512-h100 (see --list)")
    ways = [word for word in ("json", "markdown", "html", "toml") if getattr(options, word)]
    if len(ways) > 1:
        raise ConfigError(f"--{ways[0]} and --{ways[1]} at once: choose one")
    sections = sections_of(options.plan)
    try:
        made, found = planned(options, sections)
    except ConfigError as error:
        where = f"{options.plan}: " if Path(options.plan).is_file() else ""
        raise ConfigError(f"{where}{error}") from None
    show(made, found, options)
    return 0


def show(made: "Plan", found: "Search | None", options: Options) -> None:
    """Print the plan, or write it, in the form that was asked for."""
    from course_lib.planning.found import search_dict, search_sections

    before = [] if found is None else search_sections(found)
    if options.json:
        print(json.dumps(made.as_dict() | ({} if found is None else {"search": search_dict(found)}), allow_nan=False))
    elif options.toml:
        from course_lib.planning.files import to_toml

        print(to_toml(made.run), end="")
    elif options.html:
        from course_lib.planning.page import page

        write(options.html, page(made, before))
    else:
        from course_lib.planning import render

        width = max(80, min(120, shutil.get_terminal_size((100, 24)).columns))
        print(render.markdown(made, before) if options.markdown else render.text(made, width, before))

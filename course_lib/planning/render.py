"""A plan as text for a terminal, and as Markdown for a document. `course_lib.planning.page` has the same as HTML.

print(text(made))              # about 60 lines of 100 columns
print(markdown(made))          # headings, lists and tables of GitHub's Markdown
"""

import textwrap
from collections.abc import Iterable, Sequence

from course_lib.planning.plan import Plan
from course_lib.planning.report import Bars, Fact, Section, Table, headline, report
from course_lib.planning.units import gib, percent

__all__ = ["markdown", "sections_markdown", "sections_text", "text"]

MARKS = "#=+*o%x-:@~"
"""One for each part of a bar, in the order of the legend."""


def text(plan: Plan, width: int = 100, before: Iterable[Section] = ()) -> str:
    """The whole plan in lines of at most `width` columns (80 at least), after the sections `before`."""
    what, comes = headline(plan)
    return "\n".join([*_wrap(what, width), *_wrap(comes, width), "", sections_text([*before, *report(plan)], width)])


def sections_text(sections: Iterable[Section], width: int = 100) -> str:
    """Sections one below the other."""
    width = max(80, width)
    return "\n\n".join("\n".join(_section(section, width)) for section in sections)


def _wrap(words: str, width: int, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(words, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or [
        first.rstrip()
    ]


def _section(section: Section, width: int) -> list[str]:
    lines = [section.title]
    for number, (what, remedy) in enumerate(section.points, start=1):
        lines += _wrap(what, width, f"{number:>3}. ", "     ")
        lines += _wrap(f"-> {remedy}", width, "     ", "        ") if remedy else []
    lines += _facts(section.facts, width)
    lines += _bars(section.bars, width) if section.bars else []
    lines += _table(section.table, width) if section.table else []
    for note in section.notes:
        lines += _wrap(note, width, "  ", "  ")
    return lines


def _facts(facts: Sequence[Fact], width: int) -> list[str]:
    """Labels, values and notes in three columns; the values are aligned right."""
    if not facts:
        return []
    labels = max(16, *(len(fact.label) for fact in facts))
    values = max(len(fact.value) for fact in facts)
    lines = []
    for fact in facts:
        head = f"  {fact.label:<{labels}}  {fact.value:>{values}}  "
        lines += [line.rstrip() for line in _wrap(fact.note, width, head, " " * len(head))]
    return lines


def _bars(bars: Bars, width: int) -> list[str]:
    """Each bar as a row of marks, and its parts as numbers; a limit is a bar's end."""
    names = list(dict.fromkeys(name for bar in bars.rows for name, size in bar.parts.items() if size > 0))
    marks = {name: MARKS[place % len(MARKS)] for place, name in enumerate(names)}
    longest = max(max(sum(bar.parts.values()) for bar in bars.rows), bars.limit or 0.0)
    label = max(len(bar.label) for bar in bars.rows)
    said = max(len(bar.said) for bar in bars.rows)
    room = width - label - said - 8
    lines = []
    for bar in bars.rows:
        row = "".join(marks[name] * _cells(bar.parts, name, longest, room) for name in names if name in bar.parts)
        if bars.limit:
            end = round(room * bars.limit / longest)
            row = f"{row:<{room + 1}}"
            row = row[:end] + "|" + row[end + 1 :]
        lines.append(f"  {bar.label:<{label}}  {bar.said:>{said}}  {row}".rstrip())
    return lines + _legend(bars, names, marks, width)


def _cells(parts: dict[str, float], name: str, longest: float, room: int) -> int:
    """Marks of one part: its end, rounded, less the end of the part before, so that no rounding adds up."""
    names = list(parts)
    before = sum(parts[each] for each in names[: names.index(name)])
    return round(room * (before + parts[name]) / longest) - round(room * before / longest)


def _legend(bars: Bars, names: Sequence[str], marks: dict[str, str], width: int) -> list[str]:
    """Which mark is what; for one bar with its shares, for several with what each has."""
    if len(bars.rows) == 1:
        (bar,) = bars.rows
        total = sum(bar.parts.values())
        sizes = {name: f"{gib(bar.parts[name])} " if bars.limit else "" for name in names}
        said = [f"{marks[name]} {name} {sizes[name]}{percent(bar.parts[name] / total)}" for name in names]
        return _wrap(", ".join(said), width, "  ", "  ")
    header = ("", *(f"{marks[name]} {name}" for name in names))
    rows = tuple((bar.label, *(gib(bar.parts.get(name, 0.0)) for name in names)) for bar in bars.rows)
    return _table(Table(header, rows), width)


def _table(table: Table, width: int) -> list[str]:
    """Columns as wide as they need; the last one, if it is words, takes what is left, over several lines."""
    cut = len(table.header) if table.brief is None else table.brief
    table = Table(table.header[:cut], tuple(row[:cut] for row in table.rows), table.words)
    last = len(table.header) - 1
    wide = [max(len(row[place]) for row in (table.header, *table.rows)) for place in range(last + 1)]
    least = sum(wide[:last]) + (40 if last in table.words else wide[last])
    if 2 + least + 2 * last > width:  # headers over several lines
        words = [max(map(len, cell.split() or [""])) for cell in table.header]
        wide = [max(words[place], *(len(row[place]) for row in table.rows)) for place in range(last + 1)]
    if last in table.words:
        wide[last] = max(20, width - 2 - sum(wide[:last]) - 2 * last)
    lines = []
    for row in (table.header, *table.rows):
        cells = [textwrap.wrap(cell, wide[place], break_on_hyphens=False) or [""] for place, cell in enumerate(row)]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            told = [
                f"{part:<{wide[place]}}" if place in table.words else f"{part:>{wide[place]}}"
                for place, part in enumerate(parts)
            ]
            lines.append(("  " + "  ".join(told)).rstrip())
    return lines


# ------------------------------------------------------------------------------------------------------- Markdown


def _escaped(words: str) -> str:
    """Text that Markdown shows as it is."""
    for letter in "\\`*_<>|[]#":
        words = words.replace(letter, "\\" + letter)
    return words


def markdown(plan: Plan, before: Iterable[Section] = ()) -> str:
    """The whole plan, to be pasted into a document, after the sections `before`."""
    what, comes = headline(plan)
    name, _, rest = what.partition(": ")
    head = f"## Plan: {_escaped(name)}\n\n{_escaped(rest)}.\n\n**{_escaped(comes)}.**\n\n"
    return head + sections_markdown([*before, *report(plan)])


def sections_markdown(sections: Iterable[Section]) -> str:
    """Sections one below the other, each with a heading."""
    return "\n".join("\n".join(_section_markdown(section)) for section in sections)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _section_markdown(section: Section) -> list[str]:
    lines = [f"### {_escaped(section.title)}", ""]
    for number, (what, remedy) in enumerate(section.points, start=1):
        lines.append(f"{number}. **{_escaped(what)}**" + (f" {_escaped(remedy)}" if remedy else ""))
    if section.facts:
        lines += [_row(("", "", "")), "|---|---:|---|"]
        lines += [_row(map(_escaped, (fact.label, fact.value, fact.note))) for fact in section.facts]
    for table in (section.table, _table_of(section.bars)):
        if table:
            lines += ["", _row(map(_escaped, table.header))] if lines[-1] else [_row(map(_escaped, table.header))]
            lines.append(
                "|" + "|".join("---" if place in table.words else "---:" for place in range(len(table.header))) + "|"
            )
            lines += [_row(map(_escaped, row)) for row in table.rows]
    if section.notes:
        lines += ([""] if lines[-1] else []) + [_escaped(note) for note in section.notes]
    return [*lines, ""]


def _table_of(bars: Bars | None) -> Table | None:
    """Bars as numbers: GiB where there is a limit, else shares."""
    if bars is None:
        return None
    names = list(dict.fromkeys(name for bar in bars.rows for name, size in bar.parts.items() if size > 0))

    def said(part: float, total: float) -> str:
        return gib(part) if bars.limit else percent(part / total)

    rows = tuple(
        (bar.label, *(said(bar.parts.get(name, 0.0), sum(bar.parts.values())) for name in names), bar.said)
        for bar in bars.rows
    )
    return Table(("", *names, "together"), rows)

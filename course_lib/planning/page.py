"""A plan as one HTML page: no script, no font or picture from elsewhere, readable in light and dark and on paper.

    page(made)                            # the text of a file
    page(made, search_sections(found))    # with what a search found, before the plan

Every word of a plan passes `html.escape`. Bars are plain boxes, their colours the course's (Okabe and Ito's).
"""

from collections.abc import Iterable, Sequence
from html import escape

from course_lib import __version__
from course_lib.planning.plan import Plan
from course_lib.planning.report import Bar, Bars, Fact, Section, Table, headline, report
from course_lib.planning.units import count, days, gib, percent

__all__ = ["page"]

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442", "#999999")
"""Of the parts of a bar, in the order of the legend; neighbours differ in lightness too."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5a6470; --paper: #fff; --line: #d8dee4; --box: #f5f7f9;
  --bad: #b3261e; --good: #1a7f4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5b1; --paper: #14181c; --line: #343c44;
  --box: #1d2329; --bad: #ff8a80; --good: #6fd3a0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
.what { color: var(--soft); margin: .25rem 0 1.25rem; }
.key { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem; margin: 0; }
.key div { background: var(--box); border-radius: 6px; padding: .7rem .9rem; }
.key dt { color: var(--soft); font-size: .82rem; }
.key dd { margin: 0; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.bad { color: var(--bad); } .good { color: var(--good); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .4rem 0; font-size: .93rem; }
.scroll { overflow-x: auto; }
th, td { padding: .22rem .8rem .22rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; font-size: .85rem; color: var(--soft); border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; white-space: nowrap; }
.wide td { border-bottom: 1px solid var(--line); }
.wide td:not(.n):not(:first-child) { min-width: 11rem; }
.facts th { border: 0; font-weight: 400; white-space: nowrap; font-size: .93rem; }
.facts td.n { font-weight: 600; }
.facts td.s { color: var(--soft); }
ol.risks { padding-left: 1.4rem; margin: 0; }
ol.risks li { margin: 0 0 .7rem; }
ol.risks b { display: block; font-weight: 600; }
.bars { margin: .8rem 0 .2rem; position: relative; }
.bar { display: grid; grid-template-columns: 5.5rem 6.5rem 1fr; align-items: center; gap: .6rem; margin: .2rem 0;
  font-variant-numeric: tabular-nums; font-size: .93rem; }
.bar .said { text-align: right; }
.track { position: relative; height: 1.4rem; background: var(--box); }
.track i { position: absolute; top: 0; bottom: 0; display: block; border-right: 1px solid var(--paper); }
.track .limit { background: none; border-right: 0; border-left: 2px solid var(--ink); top: -.2rem; bottom: -.2rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; padding: 0; margin: .4rem 0;
  font-size: .88rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; vertical-align: -.05rem; }
.legend i.limit { width: 2px; background: var(--ink); }
.note { color: var(--soft); font-size: .88rem; margin: .4rem 0; }
footer { color: var(--soft); font-size: .82rem; margin-top: 3rem; border-top: 1px solid var(--line);
  padding-top: .6rem; }
@media (max-width: 40rem) { .facts tr { display: grid; grid-template-columns: 1fr auto; }
  .facts td.s { grid-column: 1 / -1; padding-bottom: .6rem; }
  .bar { grid-template-columns: 4.2rem 5.2rem 1fr; gap: .35rem; } }
@media print { body { max-width: none; padding: 0; font-size: 11px; } .track i { print-color-adjust: exact;
  -webkit-print-color-adjust: exact; } section { break-inside: avoid; } }
"""


def page(plan: Plan, before: Iterable[Section] = ()) -> str:
    """The whole page; `before`: sections that come before the plan's own."""
    what, _ = headline(plan)
    name, _, rest = what.partition(": ")
    body = "\n".join(_section(section) for section in [*before, *report(plan, stages=64)])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Plan: {escape(name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<header>\n"
        f'<h1>{escape(name)}</h1>\n<p class="what">{escape(rest)}</p>\n{_key(plan)}\n</header>\n'
        f"<main>\n{body}\n</main>\n<footer>{_foot()}</footer>\n</body>\n</html>\n"
    )


def _foot() -> str:
    return (
        f"Made by course plan {escape(__version__)} of Pre-training, Measured. Times are predictions, and bytes are "
        "counted from shapes. GiB are 2<sup>30</sup> bytes, GB 10<sup>9</sup>."
    )


def _key(plan: Plan) -> str:
    """The five numbers that are asked for first."""
    time, memory = plan.time, plan.memory
    ends = time.hours != float("inf")
    cells = [
        ("from begin to end", days(time.hours) if ends else "it never ends", "" if ends else "bad"),
        ("device-hours", count(time.device_hours) if ends else "-", ""),
        ("MFU, " + ("assumed" if time.assumed else "predicted"), percent(time.mfu), ""),
        (
            f"memory, of {gib(memory.limit)} GiB",
            f"{gib(memory.peak)} GiB",
            "good" if memory.fits else "bad",
        ),
        ("risks", str(len(plan.risks)), ""),
    ]
    if time.cost is not None:
        cells.insert(2, ("cost", count(time.cost), ""))
    rows = "".join(f'<div><dt>{escape(a)}</dt><dd class="{kind}">{escape(b)}</dd></div>' for a, b, kind in cells)
    return f'<dl class="key">{rows}</dl>'


def _section(section: Section) -> str:
    parts = [f"<section>\n<h2>{escape(section.title)}</h2>"]
    if section.points:
        items = (
            f"<li><b>{escape(what)}</b>{'→ ' if remedy else ''}{escape(remedy)}</li>" for what, remedy in section.points
        )
        parts.append('<ol class="risks">' + "\n".join(items) + "</ol>")
    parts += [_facts(section.facts)] if section.facts else []
    parts += [_bars(section.bars)] if section.bars else []
    parts += [_table(section.table)] if section.table else []
    parts += [f'<p class="note">{escape(note)}</p>' for note in section.notes]
    return "\n".join([*parts, "</section>"])


def _facts(facts: Sequence[Fact]) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{escape(fact.label)}</th><td class="n">{escape(fact.value)}</td>'
        f'<td class="s">{escape(fact.note)}</td></tr>'
        for fact in facts
    )
    return f'<div class="scroll"><table class="facts">\n{rows}\n</table></div>'


def _table(table: Table) -> str:
    kinds = ["" if place in table.words else ' class="n"' for place in range(len(table.header))]
    head = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for cell, kind in zip(table.header, kinds, strict=True))
    rows = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table class="wide"><tr>{head}</tr>\n{rows}\n</table></div>'


def _bars(bars: Bars) -> str:
    names = list(dict.fromkeys(name for bar in bars.rows for name, size in bar.parts.items() if size > 0))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    longest = max(max(sum(bar.parts.values()) for bar in bars.rows), bars.limit or 0.0)
    rows = "\n".join(_bar(bar, names, colours, longest, bars.limit) for bar in bars.rows)
    legend = "".join(
        f'<li><i style="background:{colours[name]}"></i>{escape(_said(bars, name))}</li>' for name in names
    )
    if bars.limit:
        legend += f'<li><i class="limit"></i>{escape(bars.limit_said)}</li>'
    return f'<div class="bars">\n{rows}\n</div>\n<ul class="legend">{legend}</ul>'


def _said(bars: Bars, name: str) -> str:
    """A part in the legend; of a single bar with its share."""
    if len(bars.rows) > 1:
        return name
    (bar,) = bars.rows
    size = f" {gib(bar.parts[name])}" if bars.limit else ""
    return f"{name}{size} {percent(bar.parts[name] / sum(bar.parts.values()))}"


def _bar(bar: Bar, names: Sequence[str], colours: dict[str, str], longest: float, limit: float | None) -> str:
    cells, begin = [], 0.0
    for name in names:
        size = bar.parts.get(name, 0.0)
        if size > 0:
            told = f"{name}: {gib(size)} GiB" if limit else f"{name}: {percent(size / sum(bar.parts.values()))}"
            cells.append(
                f'<i style="left:{100 * begin / longest:.3f}%;width:{100 * size / longest:.3f}%;'
                f'background:{colours[name]}" title="{escape(told)}"></i>'
            )
        begin += size
    if limit:
        cells.append(f'<i class="limit" style="left:{100 * limit / longest:.3f}%"></i>')
    words = ", ".join(f"{name} {gib(size) if limit else percent(size)}" for name, size in bar.parts.items() if size > 0)
    return (
        f'<div class="bar"><span>{escape(bar.label)}</span><span class="said">{escape(bar.said)}</span>'
        f'<div class="track" role="img" aria-label="{escape(words)}">{"".join(cells)}</div></div>'
    )

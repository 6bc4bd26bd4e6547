"""The frame of every report that is a web page: its look, its policy, and a template that escapes what it is given.

A page is one file that loads nothing. Its Content-Security-Policy allows this file's own style and, where a table is
sorted, this file's own script, each by its hash; nothing from a hand-in could run even if it were not escaped.
"""

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from course_lib.grading.sheets import WORDS, plain

__all__ = ["render"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --muted: #55595e; --paper: #fff; --panel: #f5f6f8; --rule: #cfd3d8;
  --link: #005a9c; --good: #00694c; --good-bg: #e2f3ec; --bad: #a33a00; --bad-bg: #fcebe0; --half: #6b5200;
  --half-bg: #fbf3d3; --none: #55595e; --bar: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --muted: #a9b0b8; --paper: #15181c; --panel: #1f2329;
  --rule: #3b424b; --link: #7cc0f5; --good: #6fd6ae; --good-bg: #12352a; --bad: #ffab7a; --bad-bg: #43240f;
  --half: #ecd06a; --half-bg: #3a310d; --none: #a9b0b8; --bar: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 78rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: break-word; }
body.narrow { max-width: 48rem; }
h1, h2, h3, li { overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .4rem; } p { margin: .35rem 0; } a { color: var(--link); }
.muted, .id { color: var(--muted); } .id { font-weight: 400; font-size: .87em; } details { margin: .6rem 0; }
summary { cursor: pointer; } .num { text-align: right; font-variant-numeric: tabular-nums; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
ul.facts { list-style: none; display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; padding: 0; }
ul.facts li { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: .5rem .9rem; }
ul.facts b { display: block; font-size: 1.35rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.scroll { overflow: auto; max-height: 90vh; border: 1px solid var(--rule); border-radius: 6px; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .75rem 0; }
.scroll:focus-visible, button:focus-visible, a:focus-visible { outline: 3px solid var(--link); outline-offset: 1px; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
caption { text-align: left; padding: .5rem .6rem; color: var(--muted); }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
thead th { background: var(--panel); vertical-align: bottom; position: sticky; top: 0; z-index: 1; }
tbody tr:last-child > * { border-bottom: 0; }
tbody th { font-weight: 600; background: var(--paper); overflow-wrap: anywhere; min-width: 9rem; max-width: 16rem; }
table.wide tbody th, table.wide thead th:first-child { position: sticky; left: 0; }
table.wide thead th:first-child { z-index: 2; }
table.list, table.overview { width: auto; min-width: min(100%, 30rem); }
td.why { overflow-wrap: anywhere; min-width: 18rem; } td.score { white-space: nowrap; }
th.num button { text-align: right; } th button { font: inherit; font-weight: 600; color: inherit; background: none;
  border: 0; padding: 0; cursor: pointer; text-align: left; } th button:hover { text-decoration: underline; }
th button::after { content: " \\2195"; color: var(--muted); font-weight: 400; }
th[aria-sort=ascending] button::after { content: " \\2191"; color: var(--ink); }
th[aria-sort=descending] button::after { content: " \\2193"; color: var(--ink); }
.mark { border-radius: 4px; padding: 0 .35rem; white-space: nowrap; }
.passed { color: var(--good); background: var(--good-bg); }
.failed, .timeout, .kernel_died, .unreadable { color: var(--bad); background: var(--bad-bg); }
.partly, .graded_with_problems { color: var(--half); background: var(--half-bg); }
.not_attempted, .missing, .graded { color: var(--none); }
ul.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; list-style: none;
  padding: 0; } ul.charts li { border: 1px solid var(--rule); border-radius: 6px; padding: .6rem .75rem; }
ul.charts h4 { margin: 0; font-size: .95rem; } svg { display: block; width: 100%; height: auto; margin-top: .4rem; }
svg text { fill: var(--ink); font-size: 11px; } svg .axis { stroke: var(--rule); } svg .bar { fill: var(--bar); }
svg .bar.good { fill: #009e73; } svg .bar.bad { fill: #d55e00; } svg .bar.half { fill: #e69f00; }
svg .bar.none { fill: #9a9a9a; }
article { border: 1px solid var(--rule); border-left-width: 5px; border-radius: 6px; padding: .6rem .9rem;
  margin: .7rem 0; }
article.good { border-left-color: #009e73; } article.bad { border-left-color: #d55e00; }
article.half { border-left-color: #e69f00; } article h3 { margin: 0; display: flex; flex-wrap: wrap; gap: .3rem .8rem; }
article h3 .points { margin-left: auto; font-weight: 400; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--panel); padding: .5rem .7rem; margin: .5rem 0;
  border-radius: 4px; font: .9rem/1.45 ui-monospace, monospace; } code { font-family: ui-monospace, monospace; }
.next { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: .6rem .9rem; }
@media print { :root { color-scheme: light; --ink: #000; --muted: #444; --paper: #fff; --panel: #fff; --rule: #999;
  --good: #000; --bad: #000; --half: #000; --none: #000; --good-bg: #fff; --bad-bg: #fff; --half-bg: #fff;
  --link: #000; --bar: #444; }
  body { max-width: none; padding: 0; font-size: 10.5pt; } .scroll { overflow: visible; max-height: none; border: 0; }
  nav { display: none; } thead th, table.wide tbody th, table.wide thead th:first-child { position: static; }
  th button::after { content: ""; }
  tr, article, ul.charts li, ul.facts li { break-inside: avoid; } h2, h3 { break-after: avoid; }
  svg .bar { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""

_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent.trim();
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("num") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const compare = (a, b) => head.classList.contains("num")
        ? Number(value(a)) - Number(value(b))
        : value(a).localeCompare(value(b), undefined, { numeric: true });
      const rows = [...table.tBodies[0].rows].sort(compare);
      if (order === "descending") rows.reverse();
      table.tBodies[0].append(...rows);
    });
  });
}
"""

_STATUS = {"missing": "no hand-in"}

_BASE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy | safe }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="robots" content="noindex">
<title>{{ title }}</title>
<style>{{ style | safe }}</style>
</head>
<body class="{{ body }}">
{% block main %}{% endblock %}
{% if script %}<script>{{ script | safe }}</script>
{% endif %}</body>
</html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def render(template: str, *, title: str, sortable: bool = False, body: str = "", **values: Any) -> str:
    """The page of a template that extends "base"; `sortable`: with the script that sorts its tables."""
    allowed = f"script-src {_hash(_SCRIPT)}; " if sortable else ""
    policy = f"default-src 'none'; {allowed}style-src {_hash(_STYLE)}; base-uri 'none'; form-action 'none'"
    ours = {"policy": policy, "style": _STYLE, "script": _SCRIPT if sortable else ""}
    return str(_template(template).render(title=plain(title), body=body, **ours, **values))


def _plain(value: object) -> object:
    """Text as `plain` makes it. What a macro made, or a template marked as safe, is markup of ours."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@cache
def _template(source: str) -> Any:
    environment = Environment(
        loader=DictLoader({"base": _BASE}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )
    environment.filters["number"] = lambda value: f"{value:.6g}"
    environment.filters["word"] = lambda outcome: WORDS.get(outcome, outcome)
    environment.filters["status"] = lambda status: _STATUS.get(status, str(status).replace("_", " "))
    return environment.from_string(source)

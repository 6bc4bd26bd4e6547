"""A plan as text, Markdown, HTML and JSON: the same numbers in each, no name escapes, nothing is too wide."""

import html.parser
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.planning.found import search_dict, search_sections
from course_lib.planning.page import COLOURS, page
from course_lib.planning.plan import plan
from course_lib.planning.presets import preset, presets
from course_lib.planning.render import MARKS, markdown, text
from course_lib.planning.report import headline, report
from course_lib.planning.risks import Risk
from course_lib.planning.search import search
from course_lib.planning.units import count, days, duration, figures, flops, gb, gib, percent, size

PLANS = {name: plan(preset(name)) for name in presets()}
MADE = PLANS["70b-on-512-h100"]
EVIL = "<script>alert('x')</script> | `a` & [b](c) *d* \"e\""


class Tags(html.parser.HTMLParser):
    """Checks that tags are closed in order, and collects text and attributes."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.words, self.tags, self.attributes = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def parsed(words):
    tags = Tags()
    tags.feed(words)
    tags.close()
    assert tags.open == []
    return tags


# ------------------------------------------------------------------------------------------------------------ text


@pytest.mark.parametrize("name", presets())
def test_text_is_about_sixty_lines_and_no_wider_than_asked(name):
    for width in (80, 100, 120):
        lines = text(PLANS[name], width).split("\n")
        assert max(map(len, lines)) <= width
        assert all(line == line.rstrip() and line.isascii() for line in lines)
    assert 50 <= len(text(PLANS[name]).split("\n")) <= 95


def test_the_numbers_of_a_plan_are_in_the_text():
    said = " ".join(text(MADE).split())
    for expected in (
        f"{MADE.parameters.total:,}",
        f"{MADE.amount.steps:,} steps",
        f"{days(MADE.time.hours)}",
        f"{gib(MADE.memory.peak)} GiB",
        flops(MADE.flops.six_nd),
        flops(MADE.flops.exact),
        f"{MADE.cadence.every_steps:,} steps",
        percent(MADE.cadence.goodput),
        f"at most {MADE.batch_floor:,}",
        "data 16 (zero1) x tensor 8 with sequence parallel x pipeline 4 (interleaved, 5 chunks)",
    ):
        assert expected in said, expected


def test_columns_of_facts_and_tables_are_aligned():
    lines = text(MADE).split("\n")
    start = lines.index("Checkpoints and failures") + 1
    ends = {re.match(r"  .{16}  \s*\S+(?: \S+)?(?=  )", line).end() for line in lines[start : start + 5]}
    assert len(ends) == 1
    start = next(place for place, line in enumerate(lines) if line.startswith("Traffic")) + 1
    rows = [line for line in lines[start : start + 4] if not line.startswith("  Sending")]
    assert len({len(row) for row in rows}) == 1


def test_risks_come_first_and_in_order():
    made = replace(MADE, risks=(Risk("a", 2.0, 1.0, "first thing", "mend it"), Risk("b", 0.1, 1.0, "second", "")))
    lines = text(made).split("\n")
    assert lines[3:7] == ["Risks, the worst first", "  1. first thing", "     -> mend it", "  2. second"]
    assert "1. **first thing** mend it\n2. **second**\n" in markdown(made)
    words = " ".join(parsed(page(made)).words)
    assert words.index("first thing") < words.index("second") < words.index("Memory of a device")


def test_no_risk_and_no_traffic_are_said():
    made = plan(preset("laptop"))
    said = text(replace(made, risks=()))
    assert "None that the formulas see." in said and "One device sends nothing." in said


def test_a_memory_bar_is_as_long_as_its_bytes():
    """Of the room up to the limit, each stage's marks are its share; a mark is at most off by one."""
    lines = text(MADE, 100).split("\n")
    rows = [line for line in lines if re.match(r"  stage \d +[\d.]+ GiB  ", line)]
    assert len(rows) == 4
    for row, stage in zip(rows, MADE.memory.stages, strict=True):
        cells = row.split("GiB  ")[1]
        room = cells.index("|")
        marks = cells[:room].rstrip()
        assert set(marks) <= set(MARKS)
        assert len(marks) == pytest.approx(room * stage.peak / MADE.memory.limit, abs=1)
        largest = max(set(marks), key=marks.count)
        assert marks.count(largest) == pytest.approx(room * max(stage.parts.values()) / MADE.memory.limit, abs=1)


def test_a_bar_beyond_the_limit_shows_the_limit_inside():
    made = PLANS["llama-3-405b"]
    assert not made.memory.fits
    row = next(line for line in text(made).split("\n") if line.startswith("  stage 0 "))
    cells = row.split("GiB  ")[1]
    assert cells.index("|") == pytest.approx(len(cells) * made.memory.limit / made.memory.stages[0].peak, abs=2)


def test_many_stages_are_cut_in_text_and_whole_on_the_page():
    made = PLANS["deepseek-v3"]
    assert "12 stages in between are not shown" in text(made)
    assert all(f"stage {stage}" in page(made) for stage in range(16))


# -------------------------------------------------------------------------------------------- Markdown, HTML, JSON


@pytest.mark.parametrize("name", presets())
def test_tables_of_markdown_have_equal_rows(name):
    cells = []
    for line in markdown(PLANS[name]).split("\n"):
        if line.startswith("|"):
            cells.append(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(set(cells)) <= 1
            cells = []


def test_a_name_is_only_a_name():
    made = plan(replace(preset("laptop"), name=EVIL))
    tags = parsed(page(made))
    assert "script" not in tags.tags and EVIL in "".join(tags.words)
    assert EVIL in text(made)
    first = markdown(made).split("\n")[0]
    assert first.startswith("## Plan: \\<script\\>") and "\\|" in first and "\\*d\\*" in first


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=80))
def test_any_name_is_shown_as_it_is(name):
    made = replace(MADE, run=replace(MADE.run, name=name))
    assert name in "".join(parsed(page(made)).words)
    assert name in text(made, 200)


@pytest.mark.parametrize("name", ["laptop", "deepseek-v3", "70b-on-512-h100"])
def test_a_page_needs_nothing_from_elsewhere(name):
    words = page(PLANS[name])
    tags = parsed(words)
    assert not {"script", "link", "img", "iframe", "object"} & set(tags.tags)
    assert not [key for key, _ in tags.attributes if key in ("src", "href") or key.startswith("on")]
    assert "url(" not in words and "@import" not in words and "http" not in words
    assert words.startswith("<!DOCTYPE html>") and '<meta charset="utf-8">' in words


def test_a_page_has_the_words_of_the_report_and_bars_to_scale():
    tags = parsed(page(MADE))
    words = " ".join(tags.words)
    for section in report(MADE):
        assert section.title in words
        assert all(fact.label in words and fact.value in words for fact in section.facts)
    widths = [float(found) for found in re.findall(r"width:([\d.]+)%", page(MADE))]
    parts = [part for stage in MADE.memory.stages for part in stage.parts.values() if part > 0]
    assert sorted(widths)[-len(MADE.memory.stages) :]
    for part in parts:
        assert min(abs(width - 100 * part / MADE.memory.limit) for width in widths) < 0.001
    assert len(set(COLOURS)) == len(COLOURS)


def test_the_headline_says_what_and_what_comes_out():
    what, comes = headline(MADE)
    assert what == "70b-on-512-h100: 70.6B parameters, 2.00T tokens, 512 x H100 SXM"
    assert comes.startswith(days(MADE.time.hours)) and "memory fits" in comes
    moe = headline(PLANS["deepseek-v3"])
    assert "671B parameters (37.6B active)" in moe[0] and "memory does not fit" in moe[1]


def test_a_price_and_an_assumed_mfu_are_shown():
    run = preset("laptop")
    run = replace(run, hardware=replace(run.hardware, price_per_device_hour=0.5), assume=replace(run.assume, mfu=0.4))
    made = plan(run)
    assert f"cost {made.time.cost:,.0f} at 0.5 an hour" in text(made) and "MFU 40.0%" in text(made)
    assert "assumed" in text(made) and "<dt>cost</dt>" in page(made)


def test_a_run_without_failures():
    run = preset("laptop")
    made = plan(replace(run, hardware=replace(run.hardware, failures_per_device_year=0.0)))
    assert "one failure in" in text(made) and "never" in text(made)
    json.dumps(made.as_dict(), allow_nan=False)
    parsed(page(made))


KEYS = {
    "": "run parameters amount flops memory step time batch_floor cadence risks drill",
    "run": "name model data hardware layout assume",
    "parameters": "by_part total active",
    "amount": "sequences batch_tokens micro_batches steps tokens tokens_per_parameter",
    "flops": "six_nd exact hardware parts why ratio",
    "memory": "stages worst peak limit fits",
    "step": "seconds parts bubble mfu hfu tokens_per_second traffic crossover floor",
    "time": "step_seconds mfu assumed tokens_per_second computing_hours hours device_hours cost days",
    "cadence": "checkpoint_bytes write_seconds mtbf_seconds young_seconds daly_seconds every_steps every_seconds "
    "lost_seconds restart_seconds interruptions writing_hours lost_hours goodput goodput_first_order",
}


@pytest.mark.parametrize("name", presets())
def test_the_keys_of_json_are_stable(name):
    """Scripts read them: a key may be added here, none may go."""
    found = json.loads(json.dumps(PLANS[name].as_dict(), allow_nan=False))
    for place, keys in KEYS.items():
        assert set(keys.split()) <= set(found[place] if place else found)
    assert all(
        set(["stage", "layers", "parts", "peak", "at", "filled_by"]) <= set(one) for one in found["memory"]["stages"]
    )
    assert all(set(["key", "severity", "number", "text", "remedy"]) <= set(one) for one in found["risks"])
    assert all(
        set(["key", "inject", "at_step", "lost_steps", "minutes", "expect", "proof"]) <= set(one)
        for one in found["drill"]
    )


def test_a_search_in_every_form():
    found = search(preset("1b-on-8-h100"))
    sections = search_sections(found)
    best = found.best.plan
    for words in (text(best, 100, sections), markdown(best, sections), page(best, sections)):
        assert words.index("best layout") < words.index("Risks, the worst first")
        assert f"{found.considered:,}" in words
    assert max(map(len, text(best, 100, sections).split("\n"))) <= 100
    data = json.loads(json.dumps(search_dict(found), allow_nan=False))
    assert data["best"]["seconds"] == found.best.seconds and data["considered"] == found.considered
    assert len(data["pareto"]) == len(found.pareto)
    table = next(section.table for section in sections if section.title.startswith("Time against memory"))
    peaks = [float(row[2]) for row in table.rows]
    assert peaks == sorted(peaks, reverse=True) and len(peaks) <= 20


# ----------------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    "said, expected",
    [
        (count(70_553_706_496), "70.6B"),
        (count(999_999_999), "1.00B"),
        (count(512), "512"),
        (count(124e6), "124M"),
        (count(21.3), "21.3"),
        (count(2e12), "2.00T"),
        (count(float("inf")), "infinite"),
        (figures(0), "0"),
        (figures(0.0293), "0.029"),
        (figures(99.96), "100"),
        (figures(9.996), "10.0"),
        (figures(1234.5), "1,234"),
        (figures(9.99e6), "9,990,000"),
        (figures(1.5e30), "1.50e30"),
        (gib(80 * 2**30), "80.0"),
        (gib(0.04 * 2**30), "0.04"),
        (gib(0), "0.0"),
        (gb(2.5e9), "2.50"),
        (size(5.68e12), "5.68 TB"),
        (size(999.9e9), "1.00 TB"),
        (size(131e6), "131 MB"),
        (duration(0.00212), "2.12 ms"),
        (duration(59), "59.0 s"),
        (duration(119), "119 s"),
        (duration(5400), "90.0 min"),
        (duration(7200), "2.00 h"),
        (duration(172_800), "2.00 days"),
        (duration(3 * 365 * 86400), "3.00 years"),
        (duration(float("inf")), "forever"),
        (duration(0), "0 s"),
        (percent(0.4146), "41.5%"),
        (flops(6e20), "6.00e20"),
    ],
)
def test_units(said, expected):
    assert said == expected

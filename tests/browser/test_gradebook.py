"""The gradebook in a real browser: it sorts by mouse and by keyboard, loads nothing, and runs nothing of a hand-in."""

import pytest

from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.gradebook import write_gradebook
from course_lib.grading.sheets import Course

EVIL = '<img src=x onerror="window.evil=1"><script>window.evil=1</script>'


def handed_in(first, second, flags=()):
    items = (
        GradedItem("one", "01.1", "One", "passed" if first else "failed", first, 10, EVIL),
        GradedItem("two", "01.2", "Two", "failed", second, 9, EVIL),
    )
    return Submission("x", "graded", items, flags, "01_first")


@pytest.fixture
def folder(tmp_path):
    rows = [
        ("learner10", handed_in(10, 2)),
        ("learner9", handed_in(0, 9)),
        (EVIL, handed_in(2, 3, (EVIL,))),
        ("gone", Submission("x", "missing", assignment="01_first")),
    ]
    write_gradebook(tmp_path, rows, Course())
    return tmp_path


@pytest.fixture
def opened(browser):
    """opened(path, **context) -> a page, and what it said on its console and asked for."""
    contexts = []

    def open_(path, **more):
        context = browser.new_context(**more)
        contexts.append(context)
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfinished", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page, said, asked

    yield open_
    for context in contexts:
        context.close()


def names(page):
    return page.locator("table.wide tbody th").all_inner_texts()


def test_it_sorts_by_numbers_by_names_and_back(folder, opened):
    page, said, asked = opened(folder / "index.html")
    table = page.locator("table.wide")
    total = table.locator("thead th").last
    total.locator("button").click()
    assert names(page) == ["learner10", "learner9", EVIL, "gone"] and total.get_attribute("aria-sort") == "descending"
    total.locator("button").click()
    assert names(page) == ["gone", EVIL, "learner9", "learner10"] and total.get_attribute("aria-sort") == "ascending"
    head = table.locator("thead th").first
    head.locator("button").focus()
    page.keyboard.press("Enter")
    order = names(page)
    assert order.index("learner9") < order.index("learner10"), "9 before 10"
    assert head.get_attribute("aria-sort") == "ascending" and total.get_attribute("aria-sort") is None
    assert said == [] and asked == [(folder / "index.html").as_uri()]


def test_a_long_table_keeps_its_head_in_sight_and_chapters_are_found(tmp_path, opened):
    rows = [(f"learner{n}", handed_in(n % 11, 9)) for n in range(120)]
    rows += [(who, Submission("x", "graded", one.items, (), "02_second")) for who, one in rows]
    write_gradebook(tmp_path, rows, Course())
    page, _, _ = opened(tmp_path / "index.html", viewport={"width": 500, "height": 800})
    page.get_by_role("navigation").get_by_role("link", name="Chapter 2").click()
    heading = page.get_by_role("heading", name="Chapter 2")
    assert 0 <= heading.bounding_box()["y"] < 100
    room = page.get_by_role("region", name="Chapter 2")
    room.evaluate("(room) => room.scrollTo(200, 1500)")
    place, head = room.bounding_box(), room.locator("thead th").first.bounding_box()
    assert place["height"] <= 800 and abs(head["y"] - place["y"]) < 4 and abs(head["x"] - place["x"]) < 4
    row = room.locator("tbody th", has_text="learner119").bounding_box()
    assert abs(row["x"] - place["x"]) < 4, "the names stay in sight, too"


def test_nothing_of_a_hand_in_runs_even_if_it_got_in(folder, opened):
    """The policy is what stands when the escaping fails: put the hand-in's text into the page as markup."""
    page, _, _ = opened(folder / "index.html")
    assert page.evaluate("window.evil") is None
    broken = folder / "broken.html"
    source = (folder / "index.html").read_text(encoding="utf-8")
    picture = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    (folder / "beside.svg").write_text(picture, encoding="utf-8", newline="\n")
    image = (
        '<img id="i" src="beside.svg" onload="window.evil=1" onerror="window.evil=1"><style>h1{display:none}</style>'
    )
    script = "<script>window.evil=1</script>"
    broken.write_text(source.replace("<h1>", f"{script}{image}<h1>"), encoding="utf-8", newline="\n")
    page, said, asked = opened(broken)
    page.wait_for_timeout(200)
    assert page.evaluate("window.evil") is None and page.locator("h1").is_visible()
    assert page.evaluate("document.getElementById('i').naturalWidth") == 0 and asked == [broken.as_uri()]
    assert len(said) >= 3 and all("Content Security Policy" in text for text in said)
    page.locator("table.wide thead button").last.click()
    assert names(page)[0] == "learner10", "our own script still runs"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_every_word_can_be_read(folder, opened, scheme, width):
    """WCAG's contrast of 4.5 for text on its background, in both schemes; no page is wider than the window."""
    feedback = sorted((folder / "feedback").iterdir())
    for path in (folder / "index.html", *feedback):
        page, said, _ = opened(path, color_scheme=scheme, viewport={"width": width, "height": 900})
        assert said == [] and page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = numbers(color).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (!(numbers(color).length === 4 && numbers(color)[3] === 0)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || ["SCRIPT", "STYLE"].includes(node.tagName)) continue;
    const ink = node instanceof SVGElement ? getComputedStyle(node).fill : getComputedStyle(node).color;
    const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push([walker.currentNode.textContent.trim(), ink, behind(node)]);
  }
  return faint;
}"""

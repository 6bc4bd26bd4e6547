"""What a committed notebook has to be. Each rule is a function: a notebook in, one line for each thing to mend out."""

import copy
import re
from collections.abc import Callable, Iterator

from nbformat import NotebookNode

from course_lib.grading.notebook import stable_ids

Rule = Callable[[NotebookNode], list[str]]

MAX_BYTES = 1_500_000
MAX_LINES = 25
PART_MINUTES = 25
WIDGET = "application/vnd.jupyter.widget-view+json"
IMAGE_DATA = re.compile(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=\s]+")
PATHS = re.compile(
    r"(?:^|[\s\"'(=])(?:/(?:tmp|root|home|Users|private|var|mnt)/[\w.-]+|[A-Z]:\\(?:Users|Windows))", re.M
)
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
HEADING = re.compile(r"^(#{1,4}) (.+)$", re.M)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def outputs(notebook: NotebookNode) -> Iterator[tuple[NotebookNode, int, NotebookNode]]:
    """(cell, place, output) for every output."""
    for cell in code_cells(notebook):
        for place, output in enumerate(cell.get("outputs", [])):
            yield cell, place, output


def texts(output: NotebookNode) -> list[str]:
    """What a reader would see as text, pictures inside HTML left out."""
    found = [output.text] if output.output_type == "stream" else []
    found += [str(text) for mime, text in output.get("data", {}).items() if mime.startswith("text/")]
    return [IMAGE_DATA.sub("", text) for text in found]


def prose(notebook: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


# ---------------------------------------------------------------- every committed notebook


def kernel_is_python3(notebook: NotebookNode) -> list[str]:
    name = notebook.metadata.get("kernelspec", {}).get("name")
    return [] if name == "python3" else [f"the kernelspec is {name!r}, not python3"]


def counts_run_from_1(notebook: NotebookNode) -> list[str]:
    counts = [cell.execution_count for cell in code_cells(notebook)]
    wanted = list(range(1, len(counts) + 1))
    return [] if counts == wanted else [f"execution counts are {counts}, not 1 to {len(counts)}: run `course execute`"]


def no_error_no_stderr(notebook: NotebookNode) -> list[str]:
    lines = []
    for cell, _, output in outputs(notebook):
        if output.output_type == "error":
            lines.append(f"{cell.id}: raised {output.ename}")
        if output.output_type == "stream" and output.name == "stderr":
            lines.append(f"{cell.id}: writes to stderr: {output.text[:80]!r}")
    return lines


def no_widget_state(notebook: NotebookNode) -> list[str]:
    return ["its metadata holds widget state"] if "widgets" in notebook.metadata else []


def nothing_of_a_machine(notebook: NotebookNode) -> list[str]:
    lines = []
    for cell, _, output in outputs(notebook):
        found = [hit for text in texts(output) for hit in (PATHS.search(text), ADDRESS.search(text)) if hit]
        lines += [f"{cell.id}: shows {hit[0].strip()!r}" for hit in found]
    return lines


def no_svg(notebook: NotebookNode) -> list[str]:
    """JupyterLab does not draw it in a notebook that nobody has trusted, which every fresh clone is."""
    return [
        f"{cell.id}: an output in SVG; commit a PNG"
        for cell, _, output in outputs(notebook)
        if "image/svg+xml" in output.get("data", {}) or any("<svg" in text for text in texts(output))
    ]


def ids_are_stable(notebook: NotebookNode) -> list[str]:
    """Unique, and what `course execute` makes of the cells: the same after every run."""
    ids = [cell.id for cell in notebook.cells]
    lines = [f"two cells have the id {one!r}" for one in sorted({one for one in ids if ids.count(one) > 1})]
    again = copy.deepcopy(notebook)
    stable_ids(again)
    moved = [old for old, cell in zip(ids, again.cells, strict=True) if old != cell.id]
    return lines + [f"the ids {moved[:3]} are not those that `course execute` writes"] * bool(moved)


def pictures_have_captions(notebook: NotebookNode) -> list[str]:
    """A PNG is followed, in the same cell, by one sentence in a paragraph of class course-caption."""
    lines = []
    for cell, place, output in outputs(notebook):
        if "image/png" not in output.get("data", {}):
            continue
        after = cell.outputs[place + 1] if place + 1 < len(cell.outputs) else NotebookNode()
        data = after.get("data", {})
        caption = str(data.get("text/plain", "")).strip()
        if "course-caption" not in str(data.get("text/html", "")):
            lines.append(f"{cell.id}: a picture without a caption after it; use `show`")
        elif not caption.endswith((".", "?")) or len(caption.split()) < 4 or re.search(r"[.!?] [A-Z]", caption):
            lines.append(f"{cell.id}: its caption is not one sentence: {caption!r}")
        if not str(output.data.get("text/plain", "")).startswith("[picture] "):
            lines.append(f"{cell.id}: a picture that says nothing to those who read the file as text; use `show`")
    return lines


def widgets_have_two_faces(notebook: NotebookNode) -> list[str]:
    """One output with a static face for those without a kernel; a picture in it has an alt text."""
    lines = []
    for cell, _, output in outputs(notebook):
        data = output.get("data", {})
        face = str(data.get("text/html", ""))
        if WIDGET in data:
            if len(re.sub(r"<[^>]*>", " ", IMAGE_DATA.sub("", face)).split()) < 5 and "<img" not in face:
                lines.append(f"{cell.id}: a widget without a static face in text/html")
            if "widget" in tags(cell) and "<img" not in face:
                lines.append(f"{cell.id}: an explorer whose static face has no picture")
        for image in re.findall(r"<img\b[^>]*>", IMAGE_DATA.sub("", face)):
            if not re.search(r'\balt="[^"]{10,}"', image):
                lines.append(f"{cell.id}: an <img> without an alt text")
    return lines


def cells_are_short(notebook: NotebookNode) -> list[str]:
    """The lines of the docstring and of the imports of a set-up cell do not count."""
    lines = []
    for cell in code_cells(notebook):
        counted = [line for line in cell.source.splitlines() if not line.startswith(("import ", "from "))]
        if len(counted) > MAX_LINES:
            lines.append(f"{cell.id}: {len(counted)} lines; what is not the lesson belongs in course_lib")
        if not cell.source.strip():
            lines.append(f"{cell.id}: an empty code cell")
    return lines


def no_trailing_semicolon(notebook: NotebookNode) -> list[str]:
    """nbval shows the output all the same; write `_ =`."""
    return [
        f"{cell.id}: a line ends with `;`"
        for cell in code_cells(notebook)
        if any(line.split("#")[0].rstrip().endswith(";") for line in cell.source.splitlines())
    ]


def no_magics(notebook: NotebookNode) -> list[str]:
    """A notebook is plain Python: it runs anywhere, and nothing is downloaded."""
    return [
        f"{cell.id}: a magic or shell line: {line.strip()!r}"
        for cell in code_cells(notebook)
        for line in cell.source.splitlines()
        if re.match(r"\s*(%%?[a-z]|!\s*\w)", line)
    ]


def compared_cells_print_text(notebook: NotebookNode) -> list[str]:
    """What nbval compares is text on stdout and nothing else: no picture, no widget, not nothing."""
    lines = []
    for cell in code_cells(notebook):
        if "nbval-check-output" in tags(cell):
            kinds = [out.output_type if out.output_type != "stream" else out.name for out in cell.outputs]
            if kinds != ["stdout"]:
                lines.append(f"{cell.id}: nbval compares it, but its outputs are {kinds}; print exact text and no more")
    return lines


COMMITTED: tuple[Rule, ...] = (
    kernel_is_python3,
    counts_run_from_1,
    no_error_no_stderr,
    no_widget_state,
    nothing_of_a_machine,
    no_svg,
    ids_are_stable,
    pictures_have_captions,
    widgets_have_two_faces,
    cells_are_short,
    no_trailing_semicolon,
    no_magics,
    compared_cells_print_text,
)


# ---------------------------------------------------------------- chapters only


def opening_says_what_and_how_long(notebook: NotebookNode) -> list[str]:
    text = notebook.cells[0].source if notebook.cells and notebook.cells[0].cell_type == "markdown" else ""
    lines = []
    if not re.match(r"# \d+\. \w", text):
        lines.append("the first cell does not begin with `# N. Title`")
    verbs = re.search(r"\*\*After this chapter you can\*\*[^\n]*\n\n((?:- .+\n(?:  .+\n)*)+)", text)
    if verbs is None or verbs[1].count("\n- ") + 1 < 3:
        lines.append("no `**After this chapter you can**` with a list of three or more things to do")
    elif re.search(r"^- (?:[A-Z]|know|understand|learn)", verbs[1], re.M):
        lines.append("what a learner can do begins with a verb that shows (write, measure, predict), in lower case")
    if not re.search(r"^\*\*Time\*\*: [^\n]*\d+ minutes(?:.|\n)*?\d+ seconds", text, re.M):
        lines.append("no line `**Time**: about N minutes of yours ...; about N seconds of machine time`")
    if "**Needs**" not in text:
        lines.append("no `**Needs**`: what a learner should know before")
    return lines


def parts_are_short(notebook: NotebookNode) -> list[str]:
    """Parts of at most 25 minutes that together take as long as the chapter says, each but the last with a stop."""
    parts = re.findall(r"^## Part (\d+): .+\(about (\d+) minutes\)$", prose(notebook), re.M)
    lines = [] if parts else ["no `## Part 1: ... (about N minutes)`"]
    lines += [f"part {n} takes {m} minutes; at most {PART_MINUTES}" for n, m in parts if int(m) > PART_MINUTES]
    if [int(number) for number, _ in parts] != list(range(1, len(parts) + 1)):
        lines.append(f"parts are numbered {[number for number, _ in parts]}")
    said = re.search(r"\*\*Time\*\*: [^\n]*?(\d+) minutes", prose(notebook))
    total = sum(int(minutes) for _, minutes in parts)
    if parts and said and abs(total - int(said[1])) > 5:
        lines.append(f"its parts take {total} minutes, the opening says {said[1]}")
    if len(re.findall("stopping place", prose(notebook), re.I)) < len(parts) - 1:
        lines.append("a part ends without a stopping place")
    return lines


def recall_questions(notebook: NotebookNode) -> list[str]:
    """From chapter 2 on: three or four, each with its answer in a closed details block."""
    number = re.match(r"# (\d+)\.", notebook.cells[0].source)
    if number is None or int(number[1]) < 2:
        return []
    start = re.search(r"(?:\*\*|#+ )(?:Recall|Do you still know)(?:.|\n)*?(?=\n#+ |\Z)", prose(notebook))
    asked = len(re.findall(r"^(?:\*\*)?(?:<details><summary>)?\d\. ", start[0], re.M)) if start else 0
    lines = [] if 3 <= asked <= 4 else [f"{asked} recall questions from earlier chapters under `Recall`; three or four"]
    return lines + ([] if start is None or "<details>" in start[0] else ["recall questions without answers to open"])


def ends_well(notebook: NotebookNode) -> list[str]:
    text = prose(notebook)
    lines = [] if re.search(r"^## Summary$", text, re.M) else ["no `## Summary`"]
    references = re.search(r"(?:\*\*|## )References(?:\*\*)?\n+((?:- .+\n?(?:  .+\n?)*)+)", text)
    entries = re.split(r"^- ", references[1], flags=re.M)[1:] if references else []
    if not entries:
        lines.append("no list of references")
    lines += [
        f"a reference without a year: {entry[:40]!r}" for entry in entries if not re.search(r"(?:19|20)\d\d", entry)
    ]
    for what, words in (
        ("what surprised you", r"surprised you"),
        ("a question on a published configuration", r"transfer question|published (?:model|configuration|run)"),
        ("where the exercises are", r"exercises/\d\d_|\bexercises\b"),
    ):
        if not re.search(words, text, re.I):
            lines.append(f"it does not say or ask: {what}")
    return lines


def sections(notebook: NotebookNode) -> list[list[NotebookNode]]:
    """Its cells, cut at the headings of level 2 and 3."""
    found: list[list[NotebookNode]] = [[]]
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and re.search(r"^#{2,3} ", cell.source, re.M):
            found.append([])
        found[-1].append(cell)
    return found


def is_prediction(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(re.search(r"(?<![\w.])predict\(", cell.source))


def claims_are_predicted_and_bounded(notebook: NotebookNode) -> list[str]:
    """A section that shows a claim asks for a prediction first; after the claim is shown, its bound follows."""
    lines = []
    for section in sections(notebook):
        shows = [i for i, cell in enumerate(section) for tag in tags(cell) if re.fullmatch(r"claim-\d+", tag)]
        if shows and not any(is_prediction(cell) for cell in section[: max(shows) + 1]):
            lines.append(f"{section[shows[0]].id}: shows a claim that no prediction was asked for in its section")
    first: dict[str, int] = {}
    for place, cell in enumerate(notebook.cells):
        for tag in tags(cell):
            if tag.startswith("claim-"):
                first.setdefault(tag.removeprefix("claim-"), place)
    for number, place in first.items():
        after = [cell for cell in notebook.cells[place:] if f"bound-{number}" in tags(cell)]
        if not any("stops being true" in cell.source for cell in after):
            lines.append(f"claim {number}: no cell tagged bound-{number} after it that says where it stops being true")
    return lines


def predictions_are_compared(notebook: NotebookNode) -> list[str]:
    """Each `name = predict(...)` has its `name.reveal()` in a later cell, and a tag `predict-...`."""
    lines = []
    for place, cell in enumerate(notebook.cells):
        if not is_prediction(cell):
            continue
        names = re.findall(r"^(\w+) = predict\(", cell.source, re.M)
        later = "\n".join(other.source for other in notebook.cells[place + 1 :] if other.cell_type == "code")
        if not names:
            lines.append(f"{cell.id}: a prediction without a name")
        lines += [f"{cell.id}: {name}.reveal() is missing" for name in names if f"{name}.reveal(" not in later]
        if not any(tag.startswith("predict-") for tag in tags(cell)):
            lines.append(f"{cell.id}: a prediction without a tag predict-...")
        if not cell.metadata.get("jupyter", {}).get("source_hidden"):
            lines.append(f"{cell.id}: a prediction whose code holds the answer and is not folded; run `course execute`")
    return lines


def own_explanation_first(notebook: NotebookNode) -> list[str]:
    """Three or more times a chapter asks for the learner's own explanation, and keeps ours closed below it."""
    text = prose(notebook)
    asked = len(re.findall(r"\*\*Before you read on\*\*", text))
    closed = len(re.findall(r"<details>", text))
    opened, ended = len(re.findall("<details", text)), len(re.findall("</details>", text))
    lines = [] if asked >= 3 else [f"`**Before you read on**` stands there {asked} times; at least three"]
    if closed < asked or "<details open" in text:
        lines.append("an explanation of ours that is not in a closed <details>")
    return lines + ([] if opened == ended else ["a <details> that is not closed"])


CHAPTER: tuple[Rule, ...] = (
    opening_says_what_and_how_long,
    parts_are_short,
    recall_questions,
    ends_well,
    claims_are_predicted_and_bounded,
    predictions_are_compared,
    own_explanation_first,
)

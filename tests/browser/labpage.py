"""A JupyterLab of its own in a temporary folder, a page in Debian's Chromium on it, and what a chapter must be there.

The checks return a list of problems, each one line; an empty list is a pass. They know nothing of any chapter.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false"},
    "docmanager-extension/plugin": {"autosave": False},
}
LIVE = ".course-explorer, .course-incident, .course-diagnosis"
READY = """() => {
  const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
  return !!(context?.isReady && context.session?.kernel?.status === 'idle'
            && document.querySelector('.jp-Notebook .jp-Cell'));
}"""


class LabServer:
    """A running JupyterLab whose root is `folder`; its own settings, trust database and runtime files."""

    def __init__(self, folder: Path, home: Path, theme: str = "JupyterLab Light") -> None:
        self.folder = folder
        places = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
        env = dict(os.environ) | {f"JUPYTER_{name}": str(home / place) for name, place in places.items()}
        env |= {
            "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        }
        env |= {"IPYTHONDIR": str(home / "ipython"), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        for name, value in (SETTINGS | {"apputils-extension/themes": {"theme": theme}}).items():
            path = home / "settings/@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value), encoding="utf-8")
        self._log = (home / "lab.log").open("w", encoding="utf-8")
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
        command += [f"--ServerApp.root_dir={folder}", "--IdentityProvider.token=", "--ServerApp.password="]
        command += ["--ServerApp.disable_check_xsrf=True", "--LabApp.expose_app_in_browser=True"]
        command += ["--ContentsManager.pre_save_hook=course_lib.widgets.saving.keep_static_faces"]  # as `lab` does
        self._process = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log, cwd=folder)
        self.url = self._wait(home)

    def _wait(self, home: Path) -> str:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            for path in (home / "runtime").glob("jpserver-*.json"):
                with contextlib.suppress(ValueError):
                    return str(json.loads(path.read_text(encoding="utf-8"))["url"]).rstrip("/")
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        self.close()
        raise RuntimeError("JupyterLab did not start:\n" + (home / "lab.log").read_text(encoding="utf-8")[-2000:])

    def close(self) -> None:
        """End it and the kernels it started."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class LabPage:
    """One notebook open in a browser page. `console` collects the browser's console errors."""

    def __init__(self, page: Any, server: LabServer, name: str) -> None:
        self.page, self.name = page, name
        self.cells = json.loads((server.folder / name).read_text(encoding="utf-8"))["cells"]
        self.console: list[str] = []
        page.on("console", lambda m: self.console.append(m.text[:300]) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.console.append(str(error)[:300]))
        page.goto(f"{server.url}/doc/tree/{name}?reset")
        page.wait_for_function(READY, timeout=90_000)
        page.wait_for_timeout(300)

    def run(self, wanted: list[int], timeout_s: float = 300) -> None:
        """Run these cells, one after the other, each within `timeout_s`, and wait until the page is at rest."""
        for index in wanted:
            self.page.evaluate(_RUN, index)
            try:
                self.page.wait_for_function("() => window.courseRan", timeout=timeout_s * 1000)
            except Exception as error:
                source = "".join(self.cells[index]["source"])[:200]
                raise TimeoutError(f"{self.name}: cell {index} ran for more than {timeout_s} s: {source}") from error
        self.page.wait_for_function(READY)
        self.page.wait_for_function("() => !document.body.innerText.includes('Loading widget')")
        self.page.wait_for_timeout(400)

    def tagged(self, *prefixes: str) -> list[int]:
        """Indices of the code cells with a tag that starts so."""
        found = []
        for index, cell in enumerate(self.cells):
            tags = cell["metadata"].get("tags", [])
            if cell["cell_type"] == "code" and any(tag.startswith(prefixes) for tag in tags):
                found.append(index)
        return found

    def save(self) -> None:
        """Save the notebook, as Ctrl-S does, and end its kernel."""
        self.page.evaluate(
            """async () => {
              await jupyterapp.commands.execute('docmanager:save');
              await jupyterapp.shell.currentWidget.sessionContext.shutdown();
            }"""
        )

    def write(self, tag: str, source: str) -> None:
        """Replace the source of the cell with this tag."""
        (index,) = self.tagged(tag)
        code = "([i, s]) => jupyterapp.shell.currentWidget.content.widgets[i].model.sharedModel.setSource(s)"
        self.page.evaluate(code, [index, source])

    def trusted(self) -> bool:
        """Whether JupyterLab trusts every code cell of the notebook."""
        cells = "[...jupyterapp.shell.currentWidget.content.model.cells]"
        return bool(self.page.evaluate(f"() => {cells}.filter(c => c.type === 'code').every(c => c.trusted)"))

    def live_explorers(self) -> int:
        """Explorers, incident simulators and searchable tables that are alive on the page."""
        return int(self.page.locator(f":is({LIVE}):not(.course-static)").count())

    # ---------------------------------------------------------------------------------------------------- the checks

    def pictures(self) -> list[str]:
        """Every picture and static face that the file holds is on the page, drawn, and has its caption."""
        problems: list[str] = self.page.evaluate(_PICTURES)
        drawn = ".jp-OutputArea-output img, .course-explorer-picture [role=img]:not(img)"  # or HTML, once alive
        seen = self.page.locator(drawn).count()
        outputs = [output.get("data", {}) for cell in self.cells for output in cell.get("outputs", [])]
        pictures = sum("image/png" in data or "<img" in "".join(data.get("text/html", "")) for data in outputs)
        if seen < pictures:
            problems.append(f"{pictures} pictures in the file, {seen} on the page")
        widgets = sum("application/vnd.jupyter.widget-view+json" in data for data in outputs)
        faces = self.page.locator(":is(.course-static, .course-widget):visible").count()
        if faces < widgets:
            problems.append(f"{widgets} widgets in the file, {faces} faces on the page")
        return problems

    def outputs(self) -> list[str]:
        """No error output, nothing on stderr, no widget that failed to show, no console error."""
        places = ", ".join(
            f".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.{kind}']" for kind in ("error", "stderr")
        )
        problems = [f"output: {text[:300]}" for text in self.page.locator(places).all_inner_texts()]
        text = self.page.locator(".jp-Notebook").inner_text()
        for sign in ("Error displaying widget", "Loading widget", "VBox(children"):
            if sign in text:
                problems.append(f"the page says {sign!r}")
        return problems + [f"console: {line}" for line in self.console]

    def predictions(self) -> list[str]:
        """Every live prediction can be locked in by keyboard, and then says what was locked in."""
        problems = []
        for box in self.page.locator(".course-predict:not(.course-static)").all():
            question = box.locator(".course-predict-question").inner_text().replace("\n", " ")[:60]
            for part, key in (("-options input", "Space"), ("-sure button", "Enter"), ("-lock", "Enter")):
                self._press(box.locator(f".course-predict{part}").last, key)
            if "Locked in" not in box.locator(".course-predict-status").inner_text():
                problems.append(f"{question}: cannot be locked in by keyboard")
        return problems

    def explorers(self) -> list[str]:
        """Every control of every live explorer has a label, is moved by keyboard, and its picture answers."""
        problems = []
        live = self.page.locator(".course-explorer:not(.course-static)")
        for number in range(live.count()):
            problems += self._explorer(live.nth(number))
        return problems

    def _explorer(self, box: Any) -> list[str]:
        title = box.locator(".course-explorer-title").first.inner_text()
        problems = []
        if not box.locator(".course-explorer-caption").inner_text().strip():
            problems.append(f"{title}: no caption")
        for more in box.locator(".course-explorer-more").all():
            self._press(more, "Enter")
        reset = box.locator(".course-explorer-presets button").last
        controls = box.locator(".course-control:visible")
        picture = box.locator(".course-explorer-picture")
        first = picture.inner_html()
        moved = 0
        for number in range(controls.count()):
            control = controls.nth(number)
            name = control.evaluate(_NAME)
            if not name:
                problems.append(f"{title}: control {number + 1} has no label")
            if control.evaluate("e => !!e.querySelector(':disabled, [disabled]')"):
                continue
            moved += 1
            if not self._answers(box, control):
                problems.append(f"{title}: the picture does not answer {name or f'control {number + 1}'!r}")
            if control.locator(".noUi-handle").count():
                for key in ("End", "Home"):
                    self._press(control.locator(".noUi-handle"), key)
                    problems += self._errors(box, f"{title}: {name!r} at {key.lower()}")
            problems += self._errors(box, f"{title}: {name!r}")
            self._press(reset, "Enter")
            if not self._until(lambda: picture.inner_html() == first):
                problems.append(f"{title}: reset does not bring the picture back after {name!r}")
        if not moved:
            problems.append(f"{title}: no control that could be moved")
        return problems

    def incidents(self) -> list[str]:
        """In every live incident simulator a check is ordered and a fault is named, all by keyboard."""
        problems = []
        for box in self.page.locator(".course-incident:not(.course-static)").all():
            title = box.locator(".course-incident-title").inner_text()
            notes, score = box.locator(".course-incident-notes"), box.locator(".course-incident-score")
            if not box.locator(".course-incident-picture img").count():
                problems.append(f"{title}: no dashboards")
            before = notes.inner_html()
            self._press(box.locator(".course-incident-check").first, "Enter")
            if not self._until(lambda notes=notes, before=before: notes.inner_html() != before):
                problems.append(f"{title}: a check that is ordered leaves no note")
            faults = box.locator(".course-incident-fault")
            if not faults.evaluate(_NAME):
                problems.append(f"{title}: the list of faults has no label")
            self._press(faults.locator("select"), "ArrowDown")
            self._press(box.locator(".course-incident-go"), "Enter")
            if not self._until(lambda score=score: score.locator("table tr").count() > 10):
                problems.append(f"{title}: no score and trace after the answer")
            problems += [f"{title}: {text}" for text in box.locator("[role=alert]").all_inner_texts()]
        return problems

    def tables(self) -> list[str]:
        """Every live searchable table follows what is typed, letter by letter, and comes back."""
        problems = []
        for box in self.page.locator(".course-diagnosis:not(.course-static)").all():
            title = box.locator(".course-diagnosis-title").inner_text()
            field, rows = box.locator(".course-diagnosis-search input"), box.locator("tbody tr")
            if not box.locator(".course-diagnosis-search").evaluate(_NAME):
                problems.append(f"{title}: the search field has no label")
            first = rows.count()
            for letter in "zqz":
                self._press(field, letter)
            if first < 2 or not self._until(lambda rows=rows: rows.count() == 0):
                problems.append(f"{title}: {first} rows, and {rows.count()} of them with 'zqz'")
            for _ in "zqz":
                self._press(field, "Backspace")
            if not self._until(lambda rows=rows, first=first: rows.count() == first):
                problems.append(f"{title}: {rows.count()} rows with nothing typed, {first} before")
        return problems

    def _press(self, target: Any, key: str) -> None:
        """Press a key on an element and wait until the kernel has answered."""
        target.focus()
        self.page.keyboard.press(key)
        for pause in (60, 30):
            self.page.wait_for_timeout(pause)
            self.page.evaluate(_ANSWERED)  # what the page sent before is answered before

    def _errors(self, box: Any, where: str) -> list[str]:
        return [f"{where}: {text}" for text in box.locator(".course-explorer-error").all_inner_texts()]

    def _answers(self, box: Any, control: Any) -> bool:
        """Try the keys that should move this kind of control, until the picture changes."""
        picture = box.locator(".course-explorer-picture")
        before = picture.inner_html()
        for focus, key in control.evaluate(_KEYS):
            self._press(control.locator(focus).first, key)
            if self._until(lambda: picture.inner_html() != before):
                return True
        return False

    def _until(self, true: Callable[[], bool], timeout_s: float = 15) -> bool:
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                return False
            self.page.wait_for_timeout(30)
        return True


_RUN = """index => {
  window.courseRan = false;
  jupyterapp.shell.currentWidget.content.activeCellIndex = index;
  jupyterapp.commands.execute('notebook:run-cell').finally(() => { window.courseRan = true; });
}"""

_ANSWERED = "async () => { await jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestKernelInfo(); }"

_PICTURES = """() => {
  const problems = [];
  for (const img of document.querySelectorAll('.jp-OutputArea-output img')) {
    const what = (img.alt || img.closest('.jp-Cell').querySelector('.cm-content')?.innerText || '').slice(0, 60);
    const box = img.getBoundingClientRect();
    if (!img.complete || !img.naturalWidth || box.width < 20 || box.height < 20)
      problems.push(`a picture is not drawn: ${what}`);
    const face = img.closest('.course-static, .course-widget');
    const next = img.closest('.jp-OutputArea-child')?.nextElementSibling;
    if (face && !img.alt) problems.push(`a picture without alternative text: ${what}`);
    if (!(face || next)?.querySelector('.course-caption')?.innerText.trim())
      problems.push(`a picture without caption: ${what}`);
  }
  return problems;
}"""

# The label of a control: what a screen reader is told, or else the text that stands before it.
_NAME = """e => {
  const field = e.querySelector('[role=slider], select, input, textarea, [role=group], button');
  const said = field?.getAttribute('aria-label') || [...(field?.labels || [])].map(l => l.innerText).join(' ');
  return (said || e.querySelector('.widget-label')?.innerText || '').trim();
}"""

# Which key moves which kind of control: the one that must have an effect first, then others.
_KEYS = """e => {
  const handle = e.querySelector('.noUi-handle'), select = e.querySelector('select');
  if (handle) {
    const [now, max] = ['aria-valuenow', 'aria-valuemax'].map(name => Number(handle.getAttribute(name)));
    const keys = now < max ? ['ArrowRight', 'ArrowRight', 'End'] : ['ArrowLeft', 'ArrowLeft', 'Home'];
    return keys.map(key => ['.noUi-handle', key]);
  }
  if (select) return [['select', select.selectedIndex < select.options.length - 1 ? 'ArrowDown' : 'ArrowUp']];
  if (e.querySelector('input[type=text], textarea')) return [['input, textarea', 'x'], ['input, textarea', ' ']];
  if (e.querySelector('button')) return [['button:not(.mod-active)', 'Enter']];
  return [['input', 'Space'], ['input', 'ArrowUp'], ['input', 'ArrowDown']];
}"""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()

"""One JupyterLab and one browser for all tests here; both only when a test asks for them."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from labpage import CHROMIUM, LabPage, LabServer, chromium


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def browser():
    missing = "" if Path(CHROMIUM).exists() else f"{CHROMIUM} is not there (apt-get install -y chromium)"
    try:
        import playwright  # noqa: F401
    except ImportError:
        missing = "playwright is not installed (pip install playwright)"
    if missing and os.environ.get("CI") == "true":
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def lab(tmp_path_factory, browser):
    folder = tmp_path_factory.mktemp("lab")
    (folder / "root").mkdir()
    server = LabServer(folder / "root", folder / "home")
    yield server
    server.close()


@pytest.fixture
def open_notebook(browser, lab):
    """open_notebook(path) -> LabPage on a copy of the notebook, which nobody has trusted."""
    opened = []

    def open_(path, name=None):
        name = name or path.name
        (lab.folder / name).write_bytes(path.read_bytes())
        page = browser.new_page(viewport={"width": 1100, "height": 1400})
        opened.append(page)
        return LabPage(page, lab, name)

    yield open_
    for page in opened:
        page.evaluate("async () => { await window.jupyterapp?.shell.currentWidget?.sessionContext.shutdown(); }")
        page.close()

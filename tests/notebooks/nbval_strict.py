"""A pytest plugin on top of `nbval_watch`: also writes down what a cell said on stderr."""

from collections.abc import Generator
from typing import Any

import pytest
from nbval_watch import write


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "call":
        said = [out["text"] for out in item.test_outputs or [] if out.get("name") == "stderr"]
        if said:
            write({"stderr_of": item.cell.id, "text": "".join(said)})
    return report

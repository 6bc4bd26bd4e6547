"""A pytest plugin on top of `course_lib.grading.nbval_plugin`: also writes down what a cell said on stderr."""

from collections.abc import Generator
from typing import Any

import pytest

from course_lib.grading.nbval_plugin import write


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "call":
        said = [out["text"] for out in item.test_outputs or [] if out.get("name") == "stderr"]
        if said:
            write({"stderr_of": item.cell.id, "text": "".join(said)})
    return report

"""A process that answers lines: what it does when the other end is silent, deaf, talks nonsense, or has gone."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from course_lib.errors import CourseError
from course_lib.grading.child import Child

ECHO = (
    "import json, os, sys\nfor line in sys.stdin:\n"
    "    print(json.dumps({'pid': os.getpid(), **json.loads(line)}), flush=True)"
)
GONE = "import sys\nsys.stdin.readline()"
SILENT = "import sys, time\nfor line in sys.stdin:\n    time.sleep(600)"
DEAF = "import time\ntime.sleep(600)"
NONSENSE = "import sys\nfor line in sys.stdin:\n    print('Traceback', flush=True)"
A_LIST = "import sys\nfor line in sys.stdin:\n    print('[1]', flush=True)"
HELD = (
    "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'])\n"
    "for line in sys.stdin:\n    print('{\"a\": 1}', flush=True)"
)


@contextmanager
def child(script: str, **more: Any) -> Iterator[Child]:
    found = Child([sys.executable, "-c", script], **more)
    found.start()
    try:
        yield found
    finally:
        found.stop()
        assert found.pid is None and not found.running


def test_it_answers_and_is_one_process_for_many() -> None:
    me, threads = psutil.Process(), threading.active_count()
    opened = getattr(me, "num_fds", lambda: 0)
    before = opened()
    with child(ECHO) as one:
        first, second = one.ask({"a": "\u00e9\ud800"}, 30), one.insist({"a": "x" * 300_000}, 30)
        assert first == {"pid": one.pid, "a": "\u00e9\ud800"} and second["pid"] == one.pid
    assert one.ask({"a": 1}, 30) == {}, "it is not started by asking"
    assert threading.active_count() == threads and opened() == before


@pytest.mark.parametrize(
    "script", [GONE, SILENT, DEAF, NONSENSE, A_LIST], ids=["gone", "silent", "deaf", "nonsense", "list"]
)
def test_no_answer_is_an_empty_one_in_time_and_none_comes_late(script: str) -> None:
    """Also when the request is larger than what a pipe holds, so that writing it would wait."""
    with child(script) as one:
        start = time.monotonic()
        assert one.ask({"a": "x" * 300_000}, 1) == {} and time.monotonic() - start < 10
        assert one.pid is None, "it was stopped"


def test_one_that_has_gone_is_started_again() -> None:
    with child(ECHO) as one:
        pid = one.pid
        killed = psutil.Process(pid)
        killed.kill()
        killed.wait(10)
        again = one.insist({"a": 1}, 30)
        assert again["a"] == 1 and again["pid"] != pid
    with child(GONE) as one:
        assert one.insist({"a": 1}, 30, tries=2) == {}
    with child(SILENT) as one:
        start = time.monotonic()
        assert one.insist({"a": 1}, 3, tries=3) == {} and time.monotonic() - start < 6, "no second time as long"


def test_one_that_is_not_ready_or_not_there_is_an_error_in_a_line() -> None:
    for words, more in (([sys.executable, "-c", DEAF], {"ready": 0.5}), ([sys.executable, "-c", GONE], {"ready": 0.5})):
        one = Child(words, sorry=lambda: "no luck", **more)
        with pytest.raises(CourseError, match="no luck"):
            one.start()
        assert one.pid is None
    with pytest.raises(CourseError, match="no luck"):
        Child(["there-is-no-such-program"], sorry=lambda: "no luck").start()
    with child("print('{}', flush=True)\n" + ECHO, ready=30.0) as one:
        assert one.ask({"a": 1}, 30)["a"] == 1


def test_it_may_end_by_itself_and_a_pipe_that_another_holds_does_not_block() -> None:
    with child(
        "import sys, time\nsys.stdin.read()\ntime.sleep(0.5)\nsys.stderr.write('bye')", patience_to_end=30
    ) as one:
        start = time.monotonic()
    assert 0.4 < time.monotonic() - start < 20
    with child(HELD) as one:
        assert one.ask({}, 30) == {"a": 1}
        start = time.monotonic()
    assert time.monotonic() - start < 10

"""How learner code is run (fixed seeds, one thread, a time limit), and how its exceptions are told in a few lines."""

import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.checks.packing import PackError
from course_lib.machine import TIME_IS_UP, time_limit

__all__ = ["CASE_SECONDS", "explain", "is_learners", "is_stub", "out_of_time", "short", "steady", "time_limit_paused"]

CASE_SECONDS = 20
"""What one case may take. The slowest reference takes under 1 s."""


def is_stub(error: BaseException) -> bool:
    return type(error) is NotImplementedError and not error.args


def out_of_time(error: BaseException) -> bool:
    """Whether it is our clock that stopped the code."""
    return isinstance(error, TimeoutError) and error.args == (TIME_IS_UP,)


def short(error: BaseException, limit: int = 200) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return text if len(text) <= limit else text[:limit] + " ..."


_OUR_ROOTS = tuple(str(Path(path).resolve()) for path in (Path(__file__).parents[1], Path(os.__file__).parent))


def is_learners(path: str) -> bool:
    """Whether a file of a traceback is the learner's: a cell or a file of their own."""
    if path.startswith("<ipython"):
        return True
    if path.startswith("<"):
        return False
    return "site-packages" not in path and not str(Path(path).resolve()).startswith(_OUR_ROOTS)


def explain(error: BaseException) -> str:
    """One to three lines: the exception, and the learner's own line where it came from."""
    if isinstance(error, PackError):
        return f"your code {error}"
    kind = type(error).__name__
    if out_of_time(error):
        text = f"stopped after {CASE_SECONDS} s: does your loop end for this case?"
    elif isinstance(error, SystemExit):
        text = f"your code ended the program ({kind})"
    else:
        text = f"{kind}: {short(error)}" if short(error) else kind
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_learners(frame.filename)]
    if not frames:
        return f"{text} (in the check: your code cannot be called as the text says, or gave back another kind of thing)"
    last = frames[-1]
    return f"{text}\n    line {last.lineno} of your cell, in {last.name}: {(last.line or '').strip()}"


@contextmanager
def steady(quiet: bool) -> Iterator[None]:
    """Fixed seeds, one thread and CASE_SECONDS; then RNGs, threads, dtype, grad mode and folder as they were."""
    torch: Any = sys.modules.get("torch")
    folder, python_state, numpy_state = os.getcwd(), random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    if torch is not None:
        saved = (torch.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
        torch.manual_seed(0)
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    try:
        with time_limit(CASE_SECONDS), _quick_seeds(torch):
            if quiet:
                with open(os.devnull, "w", encoding="utf-8") as sink, redirect_stdout(sink), redirect_stderr(sink):
                    yield
            else:
                yield
    finally:
        os.chdir(folder)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(saved[0])
            torch.set_num_threads(saved[1])
            torch.set_default_dtype(saved[2])
            torch.set_grad_enabled(saved[3])


@contextmanager
def _quick_seeds(torch: Any) -> Iterator[None]:
    """`torch.manual_seed` also notes the seed for each kind of accelerator that is not there, with the whole stack as
    text: 2 ms a call in a notebook, where a probe makes thousands."""
    names = ("cuda", "xpu", "mtia") if torch is not None else ()
    absent: list[Any] = [room for name in names if not (room := getattr(torch, name)).is_available()]
    usual = [room.manual_seed_all for room in absent]
    for room in absent:
        room.manual_seed_all = lambda seed: None
    try:
        yield
    finally:
        for room, function in zip(absent, usual, strict=True):
            room.manual_seed_all = function


@contextmanager
def time_limit_paused() -> Iterator[None]:
    """Stops the clock of CASE_SECONDS, for work of ours that has a limit of its own."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)

"""What holds before each check of a grading, whatever the exercises before it did to this process.

A line ahead of each check cell calls `restore`. It is no wall: what it cannot set right, the run of that one exercise
in a fresh kernel does.
"""

import contextlib
import os
import sys
from typing import Any

import numpy as np

__all__ = ["DESK", "LINE", "restore"]

DESK = "COURSE_GRADE_DESK"
"""Names the folder that a hand-in is run in."""

LINE = "__import__('course_lib.grading.isolation.restore', fromlist=['restore']).restore()"
"""What stands ahead of a check; it binds no name."""


def restore() -> None:
    """The folder, one thread, and torch's defaults, as they are at the start. `guard.steady` sets the seeds."""
    desk = os.environ.get(DESK)
    if desk:
        with contextlib.suppress(OSError):
            os.makedirs(desk, exist_ok=True)
            os.chdir(desk)
    np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    if torch.get_default_device().type != "cpu":
        torch.set_default_device(None)
    torch.set_grad_enabled(True)
    if torch.are_deterministic_algorithms_enabled():  # to set it loads torch's compiler, which takes seconds
        torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)

"""End all that runs below this process."""

import contextlib
import os
import time

import psutil

__all__ = ["end_below"]


def end_below(rounds: int = 200) -> None:
    """Kill and bury every process below this one, also adopted orphans and what forks meanwhile. Not on Windows."""
    for _ in range(rounds):
        left = psutil.Process().children(recursive=True)
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.005)

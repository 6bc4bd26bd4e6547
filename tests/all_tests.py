"""What `start.py test` runs without options: every test but the large counts, in two parts.

First, side by side, one process on each core, all that needs neither a second core nor a clock; then, alone on the
machine, ranks, browsers and whole chapters. Both parts run whatever the other says.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def calls(cores: int) -> list[list[str]]:
    """The arguments of pytest, part by part."""
    beside = ["-n", str(cores), "--dist", "worksteal"] if cores > 1 else []
    return [["-m", "not stress and not alone", *beside], ["-m", "not stress and alone"]]


def main() -> int:
    sys.path.insert(0, str(ROOT))  # of the checkout, also where another version is installed
    from course_lib.machine import usable_cores

    start, codes = time.monotonic(), []
    for arguments in calls(min(usable_cores(), 4)):
        print("pytest", *arguments, flush=True)
        command = [sys.executable, "-m", "pytest", "--durations=15", *arguments]
        codes.append(subprocess.run(command, cwd=ROOT).returncode)
        if codes[-1] == 2:  # stopped by Ctrl-C
            break
    print(f"all tests: exit status {max(codes)} after {time.monotonic() - start:.0f} s")
    return max(codes)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

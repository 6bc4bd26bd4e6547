"""`python -m course_lib COMMAND` is `course COMMAND`."""

import sys

from course_lib.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())

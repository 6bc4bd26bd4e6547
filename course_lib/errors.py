"""One-line errors: what is wrong, where, and what to do. The CLI prints them and exits 2; anything else is a bug."""

__all__ = ["CheckpointError", "ConfigError", "CourseError", "DataError", "HandInError", "RankError", "ScheduleError"]


class CourseError(Exception):
    """Base of every error that the user can mend. Its text is one line and says what to do."""


class ConfigError(CourseError):
    """A configuration that cannot run; names the field and a value that would do."""


class DataError(CourseError):
    """A text or token file that cannot be trained on; names the file."""


class CheckpointError(CourseError):
    """A checkpoint that is missing, incomplete or of another run; names the folder."""


class HandInError(CourseError):
    """A hand-in that cannot be read; names the notebook."""


class RankError(CourseError):
    """Something went wrong on a rank. The first line says what and where, then comes that rank's traceback."""

    def __init__(self, message: str, *, rank: int | None = None, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rank = rank
        """The rank that failed first; None when no rank could be started."""
        self.ranks = ranks
        """Every rank that failed, died or did not finish."""


class ScheduleError(CourseError):
    """A schedule that cannot run; names the task and what it waits for."""

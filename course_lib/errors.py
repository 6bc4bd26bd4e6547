"""One-line errors: what is wrong, where, and what to do. The CLI prints them and exits 2; anything else is a bug."""

__all__ = ["CheckpointError", "ConfigError", "CourseError", "DataError", "HandInError"]


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

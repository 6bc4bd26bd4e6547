"""Pre-training, Measured: the library behind the course's notebooks. A chapter number leads to its room (see README)."""

__version__ = "0.1.0"

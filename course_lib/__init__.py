"""Pre-training, Measured: the library behind the notebooks. A chapter number leads to its room (see README)."""

__version__ = "0.1.0"

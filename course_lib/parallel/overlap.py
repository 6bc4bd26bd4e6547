"""FSDP's compute and communication as tasks of `timeline`: what prefetching hides."""

__all__: list[str] = []

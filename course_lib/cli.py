"""The terminal entry: `course COMMAND`."""


def main() -> int:
    """Placeholder until the commands are in."""
    return 0

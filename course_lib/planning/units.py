"""Numbers as people read them: three figures and a unit.

count(70_553_706_496), gib(80 * 2**30), gb(2.5e9), duration(5400), days(1378), percent(0.41), flops(6e20)
# "70.6B", "80.0", "2.50", "1.50 h", "57.4 days", "41.0%", "6.00e20"
"""

from math import isfinite

__all__ = ["count", "days", "duration", "figures", "flops", "gb", "gib", "percent", "size"]


def figures(number: float) -> str:
    """Three figures; thousands with commas, from ten millions on with an exponent."""
    if not isfinite(number):
        return "infinite"
    if number == 0:
        return "0"
    large = abs(number)
    if large >= 1e7:
        return flops(number)
    if large >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.1f}" if large >= 9.995 else f"{number:.2f}" if large >= 0.0995 else f"{number:.2g}"


def count(number: float) -> str:
    """Parameters, tokens, hours: "70.6B", "2.00T", "512"."""
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if 0.9995 * unit <= abs(number) < float("inf"):
            return figures(number / unit) + letter
    return f"{number:,.0f}" if isfinite(number) and number == int(number) else figures(number)


def gib(number: float) -> str:
    """Bytes in GiB, with one decimal, or one figure of a small one."""
    number /= 2**30
    return f"{number:,.1f}" if number >= 0.05 or number == 0 else f"{number:.1g}"


def gb(number: float) -> str:
    """Bytes in GB."""
    return figures(number / 1e9)


def size(number: float) -> str:
    """Bytes on a disk: MB, GB or TB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB")):
        if number >= 0.9995 * unit:
            return f"{figures(number / unit)} {name}"
    return f"{figures(number / 1e6)} MB"


def duration(seconds: float) -> str:
    """Milliseconds to years."""
    if not isfinite(seconds):
        return "forever"
    for length, unit in (
        (365 * 86400.0, "years"),
        (2 * 86400.0, "days"),
        (2 * 3600.0, "h"),
        (120.0, "min"),
        (1.0, "s"),
    ):
        if seconds >= length:
            base = {"years": 365 * 86400.0, "days": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}[unit]
            return f"{figures(seconds / base)} {unit}"
    return f"{figures(1000 * seconds)} ms" if seconds else "0 s"


def days(hours: float) -> str:
    """A run's length."""
    return duration(3600 * hours)


def percent(share: float, decimals: int = 1) -> str:
    """A share as percent."""
    return f"{share:.{decimals}%}"


def flops(number: float) -> str:
    """FLOPs of a run, "6.00e20"."""
    digits, _, exponent = f"{number:.2e}".partition("e")
    return f"{digits}e{int(exponent)}"

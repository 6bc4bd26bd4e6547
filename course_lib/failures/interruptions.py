"""What interrupted published training runs: counts as they were printed, their arithmetic, and what grows with scale.

Nothing here is measured by us. Every number has its source beside it; what we computed from the counts is a function.
"""

from dataclasses import dataclass

from course_lib.planning.cadence import independent_hours

__all__ = [
    "LLAMA3",
    "LLAMA3_DAYS",
    "LLAMA3_GPUS",
    "LLAMA3_PLANNED",
    "LLAMA3_SOURCE",
    "RATES",
    "REPORTS",
    "Cause",
    "Rate",
    "Report",
    "hardware",
    "inconsistent",
    "independent_hours",
    "share",
    "unexpected",
]


@dataclass(frozen=True)
class Cause:
    """A row of a failure table."""

    component: str
    category: str
    """As the table has it."""
    count: int
    printed: float
    """The percentage that is printed beside the count."""


LLAMA3_SOURCE = "Llama 3 (arXiv 2407.21783, 2024), table 5"
LLAMA3_DAYS, LLAMA3_GPUS, LLAMA3_PLANNED = 54, 16_384, 47
LLAMA3 = (
    Cause("faulty GPU", "GPU", 148, 30.1),
    Cause("GPU HBM3 memory", "GPU", 72, 17.2),
    Cause("software bug", "dependency", 54, 12.9),
    Cause("network switch or cable", "network", 35, 8.4),
    Cause("host maintenance", "unplanned maintenance", 32, 7.6),
    Cause("GPU SRAM memory", "GPU", 19, 4.5),
    Cause("GPU system processor", "GPU", 17, 4.1),
    Cause("network card", "host", 7, 1.7),
    Cause("NCCL watchdog timeout", "unknown", 7, 1.7),
    Cause("silent data corruption", "GPU", 6, 1.4),
    Cause("GPU thermal interface and sensor", "GPU", 6, 1.4),
    Cause("SSD", "host", 3, 0.7),
    Cause("power supply", "host", 3, 0.7),
    Cause("server chassis", "host", 2, 0.5),
    Cause("IO expansion board", "host", 2, 0.5),
    Cause("dependency", "dependency", 2, 0.5),
    Cause("CPU", "host", 2, 0.5),
    Cause("system memory", "host", 2, 0.5),
)
"""Unexpected interruptions of 54 days of pre-training on 16,384 H100."""


def unexpected() -> int:
    """Unexpected interruptions, summed over the rows."""
    return sum(cause.count for cause in LLAMA3)


def share(cause: Cause) -> float:
    """Of the unexpected interruptions, in percent."""
    return 100 * cause.count / unexpected()


def inconsistent(tolerance: float = 0.06) -> list[Cause]:
    """Rows whose printed percentage is not their count's: further off than rounding to a tenth can be."""
    return [cause for cause in LLAMA3 if abs(share(cause) - cause.printed) > tolerance]


def hardware(strict: bool = False) -> int:
    """Interruptions by hardware, confirmed or suspected: all but software, network and other dependencies.

    This reading, ours, gives the text's "approximately 78%". strict: GPU and host components alone, without the
    maintenance of hosts and the time-outs of unknown cause.
    """
    left_out = {"dependency", "network"} | ({"unplanned maintenance", "unknown"} if strict else set())
    return sum(cause.count for cause in LLAMA3 if cause.category not in left_out)


@dataclass(frozen=True)
class Rate:
    """How long a job of this size runs, on average, until something stops it."""

    devices: int
    hours: float
    how: str
    """measured, counted, or projected."""
    source: str


RATES = (
    Rate(8, 47.7 * 24, "measured", "Kokolis et al. (arXiv 2410.21680, 2024)"),
    Rate(992, 61 * 24 / 105, "counted", "OPT-175B (arXiv 2205.01068, 2022): 35 + 70 restarts in two months, at least"),
    Rate(1_024, 7.9, "measured", "Kokolis et al. (arXiv 2410.21680, 2024)"),
    Rate(16_384, LLAMA3_DAYS * 24 / 419, "counted", "Llama 3 (arXiv 2407.21783, 2024)"),
    Rate(16_384, 1.8, "projected", "Kokolis et al. (arXiv 2410.21680, 2024)"),
    Rate(131_072, 0.23, "projected", "Kokolis et al. (arXiv 2410.21680, 2024)"),
)
"""Mean time between interruptions against devices. OPT's 105 are its 35 manual restarts and its estimate of 70."""


@dataclass(frozen=True)
class Report:
    """What a report of a large run says about one kind of trouble."""

    run: str
    year: int
    devices: int
    kind: str
    """A short name of the kind, the same in every report that has it."""
    seen: bool
    """The report has it as a trouble; False: it says that there was little or none, and that nothing had to be done."""
    says: str
    source: str


_OPT, _PALM = "arXiv 2205.01068, section 2.5", "arXiv 2204.02311, section 5.1"
_LLAMA = "arXiv 2407.21783, sections 3.3.4 and 3.4.1"
REPORTS = (
    Report("OPT-175B", 2022, 992, "hosts and devices fail", True, "over 100 hosts cycled in two months", _OPT),
    Report("OPT-175B", 2022, 992, "loss diverges", True, "with the loss scale at 0 and activations rising", _OPT),
    Report("PaLM 540B", 2022, 6_144, "loss spikes", True, "about 20, not seen in the smaller models", _PALM),
    Report("Llama 3 405B", 2024, 16_384, "hosts and devices fail", True, "419 unexpected stops in 54 days", _LLAMA),
    Report("Llama 3 405B", 2024, 16_384, "loss diverges", False, "no intervention was needed", _LLAMA),
    Report("Llama 3 405B", 2024, 16_384, "loss spikes", False, "few, and no intervention was needed", _LLAMA),
    Report("Llama 3 405B", 2024, 16_384, "silent data corruption", True, "6 of the 419", _LLAMA),
    Report("Llama 3 405B", 2024, 16_384, "stragglers", True, "one slow device slows thousands", _LLAMA),
    Report("Llama 3 405B", 2024, 16_384, "day and night", True, "1 to 2% of throughput with the temperature", _LLAMA),
    Report("Llama 3 405B", 2024, 16_384, "power swings", True, "tens of megawatts when all devices wait", _LLAMA),
)
"""Kinds of trouble by run, as far as these reports mention them. One that is missing may only be unreported."""

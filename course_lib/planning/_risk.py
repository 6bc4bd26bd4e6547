"""A risk, and from where on something is one."""

from dataclasses import dataclass

__all__ = ["LIMITS", "Risk"]

LIMITS = {
    "memory": 0.95,
    "bubble": 0.10,
    "data_traffic": 0.05,
    "tensor_traffic": 0.15,
    "context_traffic": 0.05,
    "expert_traffic": 0.15,
    "sends": 0.05,
    "uneven": 0.03,
    "failures": 0.02,
    "writing": 0.02,
    "days": 365.0,
    "tokens_per_parameter": 18.0,
    "optimism": 1.15,
}
"""From where on something is a risk: shares of the memory or of the time; days; tokens a parameter; an assumed MFU over
the predicted one. What is worth a line is our choice, and the number beside it lets you make your own."""


@dataclass(frozen=True)
class Risk:
    """One thing that can go wrong."""

    key: str
    severity: float
    """1 and more: the run cannot be done like this; below: about the share of the device-hours that it costs."""
    number: float
    """What the text is about: bytes, a share, days."""
    text: str
    """What is wrong, with the number and what it is compared with."""
    remedy: str
    """The smallest change that mends it."""

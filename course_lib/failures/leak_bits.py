"""How many bits a router can carry from the future to the past: what is possible, beside what was found.

An expert that picks c of T tokens has C(T, c) choices. Whoever sees all of its choices learns at most log2 C(T, c) bits
about what they were made from: for E experts, divided by the T tokens, that is a layer's capacity in bits a token.
"""

import math

from course_lib.errors import ConfigError
from course_lib.routers import expert_capacity

__all__ = ["bits_a_token", "bits_found", "bits_published"]


def bits_a_token(tokens: int, n_experts: int, top_k: int) -> float:
    """E log2 C(T, c) / T: most bits a token that one layer's choices can hold; experts choose among `tokens` tokens.

    With T growing this goes to E H(R) with R = top_k / E, H(R) = -R log2 R - (1 - R) log2(1 - R).
    """
    taken = expert_capacity(tokens, n_experts, top_k, 1.0)
    if not 1 <= top_k <= n_experts:
        raise ConfigError(f"top_k={top_k} must be from 1 to n_experts={n_experts}")
    ways = math.lgamma(tokens + 1) - math.lgamma(taken + 1) - math.lgamma(tokens - taken + 1)  # log of C(tokens, taken)
    return n_experts * ways / math.log(2) / tokens


def bits_published(n_experts: int, top_k: int) -> float:
    """K log2((1 - R) / R), R = K / E: the bits a token and layer of Wang et al. 2024 (arXiv 2408.15664).

    E H(R) = K log2((1 - R) / R) - E log2(1 - R): it is the first of two terms, and the second is positive.
    """
    if not 1 <= top_k < n_experts:
        raise ConfigError(f"top_k={top_k} must be from 1 to n_experts - 1 = {n_experts - 1}")
    share = top_k / n_experts
    return top_k * math.log2((1 - share) / share)


def bits_found(honest: float, leaking: float) -> float:
    """Losses in nats a token -> bits a token that the leaking one knew more."""
    return (honest - leaking) / math.log(2)

"""What a router's choices can carry, counted another way."""

import itertools
import math

import pytest

from course_lib.errors import ConfigError
from course_lib.failures.leak_bits import bits_a_token, bits_found, bits_published


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(4, 8, 2), (8, 8, 2), (6, 4, 2), (5, 3, 1)])
def test_bits_count_the_choices_of_all_experts(tokens: int, experts: int, top_k: int) -> None:
    taken = -(-tokens * top_k // experts)
    choices = sum(1 for _ in itertools.combinations(range(tokens), taken))
    found = bits_a_token(tokens, experts, top_k) * tokens
    assert found == pytest.approx(experts * math.log2(choices), rel=1e-12)  # lgamma: a few rounding errors


def test_many_tokens_come_near_the_entropy_of_being_taken() -> None:
    share = 1 / 8
    limit = 16 * (-share * math.log2(share) - (1 - share) * math.log2(1 - share))
    assert bits_a_token(2**20, 16, 2) == pytest.approx(limit, rel=1e-3) and bits_a_token(2**20, 16, 2) < limit


def test_the_published_expression_is_the_first_of_two_terms() -> None:
    assert bits_published(16, 2) == pytest.approx(5.6147, abs=1e-4)
    limit = bits_published(16, 2) - 16 * math.log2(1 - 2 / 16)
    assert bits_a_token(2**20, 16, 2) == pytest.approx(limit, rel=1e-3)


def test_a_nat_is_more_than_a_bit() -> None:
    assert bits_found(2.0 + math.log(2), 2.0) == pytest.approx(1.0)


@pytest.mark.parametrize("call", [lambda: bits_a_token(8, 4, 5), lambda: bits_published(4, 4)])
def test_what_has_no_answer_is_refused(call) -> None:
    with pytest.raises(ConfigError, match="top_k"):
        call()

"""What a rank is told that gloo ended, since another one sent it more than it expected, or that waits for nobody."""

import sys

import pytest
import torch
import torch.distributed as dist

from course_lib.errors import RankError
from course_lib.parallel import _report
from course_lib.parallel._lines import Line
from course_lib.parallel._record import Place
from course_lib.parallel.launch import run_ranks

STRESS_OF = ("course_lib/parallel/_*.py",)  # also what only the ranks import


def send_three_for_one() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(1), 0)


def reduce_many_and_one() -> None:
    dist.all_reduce(torch.ones(1 if dist.get_rank() else 64))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere gloo has another transport, and other last words")
class TestGlooGivesUp:
    def test_a_message_that_is_too_long(self) -> None:
        with pytest.raises(RankError) as caught:
            run_ranks(send_three_for_one, 2, timeout=10)
        text = str(caught.value)
        assert text.startswith("rank 1 of 2 was ended by SIGABRT")
        assert "in send_three_for_one: dist.recv(" in text
        assert "Another rank sent it 12 bytes where it expected 4." in text and _report.SAME_SIZES in text

    def test_collectives_of_other_sizes(self) -> None:
        with pytest.raises(RankError) as caught:
            run_ranks(reduce_many_and_one, 3, timeout=10)
        text = str(caught.value)
        assert "(64,)" in text and _report.SAME_CALLS in text
        assert "used another shape" in text or "The others' last collectives:" in text


def test_a_crash_in_a_send_names_the_ranks_there_are() -> None:
    line = Line("cell 3", 4, "ring", "dist.isend(x, rank - 1)")
    ranks = [_report.Rank(ready=True, death=(0.0, -11), crash=line), _report.Rank(ready=True)]
    assert "There are ranks 0 to 1. To which does it send" in str(_report.of_death(0, ranks, (0,)))


def test_who_waits_for_a_rank_that_does_not_exist_is_named() -> None:
    ranks = [_report.Rank(ready=True, place=Place(None, f"recv from rank {source}")) for source in (1, 2)]
    assert "There are ranks 0 to 1: rank 1 will wait for ever." in str(_report.of_hang(ranks, 1.0))

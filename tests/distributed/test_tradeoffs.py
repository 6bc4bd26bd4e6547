"""Bytes, peak and traffic of every row of the table, against what the ZeRO paper and ring arithmetic say."""

from functools import partial

import pytest

from course_lib.config import preset
from course_lib.parallel import ddp, tradeoffs, zero
from course_lib.parallel.fsdp import FullyShard
from course_lib.parallel.traffic import fake_ranks
from course_lib.planning import communication

WANTED = {  # bytes a parameter on 4 ranks: weights, gradients, optimizer; and elements sent, in P x 3/4
    "one device": (4, 4, 8, 0),
    "data parallel": (4, 4, 8, 2),
    "ZeRO-1": (4, 4, 2, 2),
    "ZeRO-2": (4, 1, 2, 2),
    "FSDP, no reshard": (1, 1, 2, 2),
    "FSDP": (1, 1, 2, 3),
    # rank 0: 2 of 8 blocks and the embedding; 4 x 16 tokens go on, the embedding's gradient goes to the last rank
    "pipeline": (1.226, 1.226, 2.452, (64 * 128 + 1024 * 128) / 1_738_880 / 0.75),
    # 4 x 16 tokens of width 128: each of 34 all-reduces is 2 x 8,192 elements; the loss's three numbers a token
    "tensor": (1.004, 1.004, 2.008, (34 * 2 * 8192 + 2 * 3 * 64) / 1_738_880),
    "tensor, sequence": (1.004, 1.004, 2.008, (34 * 2 * 8192 + 2 * 3 * 64 + 2 * 17 * 128) / 1_738_880),
    "context": (4, 4, 8, 2 + 8 * 3 * 2 * 8192 / 1_738_880),
    # 4.19 million parameters in experts, 0.67 million in all else; the router decides how many rows leave
    "expert": (1.411, 1.411, 2.822, (2 * 665_728 + 8 * 4 * 16 * 2 * 128 + 8 * 8) / 4_860_032),
    "HSDP, 2 replicas": (2, 2, 4, 8 / 3),  # gather, gather, scatter of P over 2, then all-reduce of P/2 over 2
}


@pytest.mark.parametrize("row", tradeoffs.ROWS, ids=lambda row: row.strategy)
def test_a_row(row: tradeoffs.Row) -> None:
    [found] = tradeoffs.measure_rows([row], 1 if row.strategy == "one device" else 4)
    *state, sent = WANTED[row.strategy]
    assert [held / found.parameters for held in found.held.values()] == pytest.approx(state, rel=1e-3)
    assert found.sent == pytest.approx(sent, rel=0.03 if row.strategy == "expert" else 1e-3)
    assert found.peak > sum(found.held.values())
    assert len("\n".join(tradeoffs.lines([(row, found)])).splitlines()) == 4


def test_the_peak_of_fsdp_has_one_or_two_blocks_and_without_reshard_the_whole_model() -> None:
    sharded = tradeoffs.measure(FullyShard, 2)
    kept = tradeoffs.measure(partial(FullyShard, reshard=False), 2)
    weights = 4 * sharded.parameters
    block = 4 * 12 * 128**2
    assert max(moment.whole for moment in sharded.moments) < weights - 5 * block
    assert max(moment.whole for moment in kept.moments) == weights
    assert kept.peak - sharded.peak > 3 * block
    assert {moment.whole for moment in sharded.moments if moment.phase == "update"} == {0}
    phases = [moment.phase for moment in sharded.moments]
    assert phases == sorted(phases, key=["forward", "backward", "update"].index)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"deferred": "none"}, 12),
        ({}, 9),
        ({"reshard": False, "deferred": "none"}, 8),
        ({"reshard": False}, 5),
        ({"keep": True}, 2),
    ],
)
def test_four_micro_batches_of_fully_shard(options: dict, sent: float) -> None:
    """Gathers 2 or 1 a micro-batch, or one in all; scatters 4 or 1: 8+4, 8+1, 4+4, 4+1, 1+1."""
    with fake_ranks(4):
        found = tradeoffs.measure_here(partial(FullyShard, **options), 4, tradeoffs.small(), 16, 16, watch=False)
    assert found.sent == pytest.approx(sent, rel=1e-3)


def test_pytorchs_default_keeps_the_outermost_unit() -> None:
    with fake_ranks(4):
        found = tradeoffs.measure_here(partial(FullyShard, reshard=None), 1, tradeoffs.small(), 4, 16, watch=False)
    assert found.sent == pytest.approx(3 - (1024 * 128 + 128) / found.parameters, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "name", "replicas", "waits"),
    [
        (ddp.DataParallel, "ddp", 1, True),
        (zero.Zero1, "zero1", 1, True),
        (zero.Zero2, "zero2", 1, False),
        (zero.Zero3, "zero3", 1, False),
        (partial(FullyShard, deferred="none"), "fsdp", 1, False),
        (FullyShard, "fsdp", 1, True),
        (partial(FullyShard, reshard=False), "fsdp_no_reshard", 1, True),
        (partial(FullyShard, keep=True), "fsdp_keep", 1, True),
        (partial(FullyShard, replicas=4), "hsdp", 4, True),
        (partial(FullyShard, replicas=4, deferred="all-reduce"), "hsdp", 4, "all-reduce"),
    ],
)
def test_the_formulas_of_planning_are_what_is_counted_and_held(make, name: str, replicas: int, waits: object) -> None:
    with fake_ranks(16):
        found = tradeoffs.measure_here(make, 3, tradeoffs.small(), 48, 16, watch=False)
    formula = communication.sent_by_kind(name, found.parameters, 16, 3, deferred=waits, replicas=replicas)
    for kind, sent in formula.items():
        assert found.traffic.sent(kind=kind) == pytest.approx(sent, rel=1e-3), kind
    assert found.traffic.sent() == pytest.approx(sum(formula.values()), rel=1e-3)
    state = communication.shard_bytes(name, found.parameters, 16, "adamw-fp32", replicas=replicas)
    assert found.held == pytest.approx(state, rel=1e-3)


@pytest.mark.parametrize(("strategy", "sent"), [(zero.Zero1, 2), (zero.Zero2, 5), (zero.Zero3, 12)])
def test_four_micro_batches_of_zero(strategy: type, sent: float) -> None:
    with fake_ranks(4):
        found = tradeoffs.measure_here(strategy, 4, tradeoffs.small(), 16, 16, watch=False)
    assert found.sent == pytest.approx(sent, rel=1e-3)


def test_a_thousand_ranks_pad_a_narrow_model_and_not_a_wide_one() -> None:
    def sent(width: int) -> float:
        shape = preset("mini", n_layers=1, d_model=width, d_ff=2 * width, vocab_size=1024)
        with fake_ranks(1024):
            return tradeoffs.measure_here(FullyShard, 1, shape, 1024, 16, watch=False).sent

    assert sent(1024) == pytest.approx(3, rel=1e-3)
    assert sent(128) > 6  # 128 rows over 1024 ranks become 1024


def test_the_closing_table_says_what_grows_with_the_tokens() -> None:
    rows = [row for row in tradeoffs.ROWS if row.strategy in ("FSDP", "tensor")]
    once, twice = (tradeoffs.measure_rows(rows, 2, length=length, watch=False) for length in (16, 32))
    text = tradeoffs.closing(rows, once, twice)
    sent = [[sum(found.sent_bytes.values()) for found in runs] for runs in (once, twice)]
    assert sent[1][0] == sent[0][0] == pytest.approx(3 * 4 * once[0].parameters / 2, rel=1e-3)
    assert sent[1][1] == pytest.approx(2 * sent[0][1], rel=1e-2)
    assert len(text) == 1 + 5 * len(rows) and any("splits:  heads" in line for line in text)
    assert all(row.splits for row in tradeoffs.ROWS)

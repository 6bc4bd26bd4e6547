"""The ring all-reduce on paper: who sends which chunk to whom in which step. No torch, no processes.

N ranks stand in a ring, and each cuts its buffer into N chunks. In every step each rank sends one chunk to the next
rank and receives one from the rank before it: N - 1 steps of reduce-scatter (what arrives is added), after which rank r
has chunk r complete, then N - 1 steps of all-gather (what arrives replaces). `parallel.collectives` does it for real.
(Patarasuk & Yuan 2009, doi 10.1016/j.jpdc.2008.09.002.)
"""

from dataclasses import dataclass

from course_lib.errors import ConfigError

__all__ = ["ADD", "REPLACE", "Hop", "chunk_sizes", "hop", "ring_states", "sent_by_each"]

ADD, REPLACE = "reduce-scatter", "all-gather"


@dataclass(frozen=True)
class Hop:
    """What one rank does in one step."""

    phase: str
    """"reduce-scatter": what arrives is added; "all-gather": it replaces."""
    sends: int
    """Number of the chunk that goes to the next rank."""
    receives: int
    """Number of the chunk that comes from the rank before."""


def hop(rank: int, ranks: int, step: int) -> Hop:
    """What `rank` of `ranks` does in step 0 .. 2 (ranks - 1) - 1."""
    if not 0 <= step < 2 * (ranks - 1) or not 0 <= rank < ranks:
        raise ConfigError(f"rank {rank}, step {step}: a ring of {ranks} has steps 0 to {2 * (ranks - 1) - 1}")
    adding = step < ranks - 1
    first = rank - 1 if adding else rank  # the chunk it sends first in this phase
    sends = (first - (step if adding else step - (ranks - 1))) % ranks
    return Hop(ADD if adding else REPLACE, sends, (sends - 1) % ranks)


def chunk_sizes(elements: int, ranks: int) -> list[int]:
    """Elements of each chunk: the first `elements % ranks` have one more. Some may be empty."""
    each, more = divmod(elements, ranks)
    return [each + (chunk < more) for chunk in range(ranks)]


def ring_states(ranks: int) -> list[list[list[frozenset[int]]]]:
    """[step][rank][chunk] -> whose numbers are summed in that chunk; step 0 is the start, then one for each step."""
    states = [[[frozenset([rank])] * ranks for rank in range(ranks)]]
    for step in range(2 * (ranks - 1)):
        before, after = states[-1], [list(chunks) for chunks in states[-1]]
        for rank in range(ranks):
            move = hop(rank, ranks, step)
            arrived = before[(rank - 1) % ranks][move.receives]
            after[rank][move.receives] = arrived | before[rank][move.receives] if move.phase == ADD else arrived
        states.append(after)
    return states


def sent_by_each(elements: int, ranks: int) -> list[int]:
    """Elements that each rank sends in a ring all-reduce of `elements`: 2 (N-1)/N of them, to a chunk's rounding."""
    sizes = chunk_sizes(elements, ranks)
    return [sum(sizes[hop(rank, ranks, step).sends] for step in range(2 * (ranks - 1))) for rank in range(ranks)]

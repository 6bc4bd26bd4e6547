"""Which rank sits where when several ways of splitting are combined, and who its partners are in each. No torch.

    grid = RankGrid(dp=4, tp=2, pp=2, ep=2)          # 16 ranks; axes that are left out have size 1
    grid.world                                       # 16
    grid.coordinates(5)                              # {"pp": 0, "dp": 2, "cp": 0, "tp": 1, "edp": 1, "ep": 0}
    grid.group("tp", 5)                              # (4, 5)
    grid.group("ep", 5)                              # (5, 7)
    init_device_mesh("cpu", grid.shape, mesh_dim_names=grid.axes)      # torch's mesh of the same ranks

Ranks are counted with tp innermost: pp, dp, cp, tp. What talks most has neighbours as partners, which share a node.

Expert parallelism has no devices of its own: it divides those that share a batch. Of the dp x cp ranks with the same
pp and tp, each `ep` in a row hold all experts together. So ep divides dp x cp (dp alone, where cp is 1), and the world
is pp x dp x cp x tp whatever ep is. Ranks that hold the same experts are an `edp` group. torch's way to say this is a
second mesh over the same ranks, of `expert_shape` with `expert_axes`.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from course_lib.errors import ConfigError

__all__ = ["AXES", "Axis", "RankGrid"]


class Axis(NamedTuple):
    """One way of splitting."""

    name: str
    splits: str
    """What each rank of a group has its own part of."""
    sends: str
    """What travels inside a group."""


AXES = {
    "tp": Axis("tensor parallel", "every matrix", "activations, all-reduced twice a block in each direction"),
    "cp": Axis("context parallel", "the sequence", "keys and values of every layer, round a ring or gathered"),
    "dp": Axis("data parallel", "the batch", "gradients once a step; with FSDP the weights of every layer too"),
    "pp": Axis("pipeline parallel", "the layers", "activations to the next stage and gradients back, by micro-batch"),
    "ep": Axis("expert parallel", "the experts", "tokens to their experts and back, all-to-all, in every MoE layer"),
    "edp": Axis("expert data parallel", "the tokens of the same experts", "gradients of these experts once a step"),
}
"""Of each axis what it splits and what its groups send."""


@dataclass(frozen=True, kw_only=True)
class RankGrid:
    """Sizes of the axes; `ConfigError` where one is below 1 or ep does not divide dp x cp."""

    dp: int = 1
    """How many parts of the batch."""
    tp: int = 1
    """How many parts of each matrix."""
    pp: int = 1
    """How many pipeline stages."""
    cp: int = 1
    """How many parts of the sequence."""
    ep: int = 1
    """How many parts of the experts; divides dp x cp."""

    def __post_init__(self) -> None:
        for word in ("dp", "tp", "pp", "cp", "ep"):
            size = getattr(self, word)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ConfigError(f"RankGrid: {word}={size!r} must be a whole number, at least 1; try {word}=1")
        shared = self.dp * self.cp
        if shared % self.ep:
            legal = [size for size in range(1, shared + 1) if shared % size == 0]
            far = min(abs(size - self.ep) for size in legal)
            near = " or ".join(f"ep={size}" for size in legal if abs(size - self.ep) == far)
            raise ConfigError(
                f"RankGrid: ep={self.ep} does not divide dp x cp = {self.dp} x {self.cp} = {shared}, whose ranks share "
                f"the experts; the nearest that does: {near}"
            )

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that multiply to the world, outermost first."""
        return ("pp", "dp", "cp", "tp")

    @property
    def shape(self) -> tuple[int, ...]:
        """Their sizes."""
        return (self.pp, self.dp, self.cp, self.tp)

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """The axes over which expert weights are split and copied, outermost first."""
        return ("pp", "edp", "ep", "tp")

    @property
    def expert_shape(self) -> tuple[int, ...]:
        """Their sizes: the same ranks in the same order."""
        return (self.pp, self.edp, self.ep, self.tp)

    @property
    def edp(self) -> int:
        """How many ranks hold the same experts."""
        return self.dp * self.cp // self.ep

    @property
    def world(self) -> int:
        """How many ranks there are: pp x dp x cp x tp."""
        return prod(self.shape)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is on every axis. `ConfigError` where there is no such rank."""
        if not isinstance(rank, int) or isinstance(rank, bool) or rank not in range(self.world):
            raise ConfigError(f"RankGrid: no rank {rank!r}; there are 0 to {self.world - 1}")
        return _unfold(rank, self.axes, self.shape) | _unfold(rank, self.expert_axes, self.expert_shape)

    def rank(self, *, pp: int = 0, dp: int = 0, cp: int = 0, tp: int = 0) -> int:
        """The rank at these coordinates."""
        found = 0
        for word, place, size in zip(self.axes, (pp, dp, cp, tp), self.shape, strict=True):
            if place not in range(size):
                raise ConfigError(f"RankGrid: {word}={place!r} is not on this axis; there are 0 to {size - 1}")
            found = found * size + place
        return found

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """The ranks that differ from this one on `axis` alone, itself included, in order.

        Also "dp_cp": over these the gradients of all weights but the experts' are summed.
        """
        own = self.coordinates(rank)
        axes, shape = (self.expert_axes, self.expert_shape) if axis in ("ep", "edp") else (self.axes, self.shape)
        free = ("dp", "cp") if axis == "dp_cp" else (axis,)
        if not set(free) <= set(axes):
            raise ConfigError(f"RankGrid: no axis {axis!r}; there are {', '.join((*AXES, 'dp_cp'))}")
        ranks = [0]
        for word, size in zip(axes, shape, strict=True):
            places = range(size) if word in free else (own[word],)
            ranks = [found * size + place for found in ranks for place in places]
        return tuple(ranks)

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Every group of an axis; each rank is in exactly one."""
        return tuple(dict.fromkeys(self.group(axis, rank) for rank in range(self.world)))


def _unfold(rank: int, axes: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, int]:
    found = {}
    for word, size in zip(reversed(axes), reversed(shape), strict=True):
        rank, found[word] = divmod(rank, size)
    return {word: found[word] for word in axes}

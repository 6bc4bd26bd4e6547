"""The grid of ranks: against torch's DeviceMesh, by brute force, and what it refuses."""

from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from course_lib.errors import ConfigError
from course_lib.parallel.mesh import AXES, RankGrid
from course_lib.parallel.traffic import fake_ranks

SIZES = ("dp", "tp", "pp", "cp")


@st.composite
def grids(draw):
    sizes = {word: draw(st.integers(1, 4)) for word in SIZES}
    shared = sizes["dp"] * sizes["cp"]
    ep = draw(st.sampled_from([n for n in range(1, shared + 1) if shared % n == 0]))
    return RankGrid(**sizes, ep=ep)


def test_the_example_of_the_docstring():
    grid = RankGrid(dp=4, tp=2, pp=2, ep=2)
    assert grid.world == 16
    assert grid.coordinates(5) == {"pp": 0, "dp": 2, "cp": 0, "tp": 1, "edp": 1, "ep": 0}
    assert grid.group("tp", 5) == (4, 5) and grid.group("ep", 5) == (5, 7)
    assert grid.group("dp", 5) == (1, 3, 5, 7) and grid.group("pp", 5) == (5, 13) and grid.group("edp", 5) == (1, 5)


@pytest.mark.parametrize("sizes", [(2, 2, 1, 1, 2), (4, 2, 2, 1, 2), (2, 2, 2, 2, 4), (3, 2, 2, 2, 3), (2, 1, 1, 2, 4)])
def test_the_groups_are_those_of_torchs_mesh(sizes):
    """torch knows its own rank only, so each rank is played in turn; experts are a second mesh over the same ranks."""
    dp, tp, pp, cp, ep = sizes
    grid = RankGrid(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep)
    for rank in {0, 1, grid.world // 2, grid.world - 1}:
        with fake_ranks(grid.world, rank):
            mesh = init_device_mesh("cpu", grid.shape, mesh_dim_names=grid.axes)
            ranks = torch.arange(grid.world).view(grid.expert_shape)
            experts = DeviceMesh("cpu", ranks, mesh_dim_names=grid.expert_axes)
            for axis in ("pp", "dp", "cp", "tp"):
                assert tuple(mesh[axis].mesh.tolist()) == grid.group(axis, rank)
                assert mesh.get_local_rank(axis) == grid.coordinates(rank)[axis]
            for axis in ("ep", "edp", "tp"):
                assert tuple(experts[axis].mesh.tolist()) == grid.group(axis, rank)
                assert experts.get_local_rank(axis) == grid.coordinates(rank)[axis]
            assert tuple(mesh["dp", "cp"]._flatten().mesh.tolist()) == grid.group("dp_cp", rank)


@given(grids())
def test_groups_by_brute_force(grid):
    """Those that agree on all other axes; every rank once on every axis."""
    where = [grid.coordinates(rank) for rank in range(grid.world)]
    plain, expert = ("pp", "dp", "cp", "tp"), ("pp", "edp", "ep", "tp")
    for axis in (*AXES, "dp_cp"):
        others = [one for one in (expert if axis in ("ep", "edp") else plain) if one not in axis.split("_")]
        for rank in range(0, grid.world, max(1, grid.world // 5)):
            wanted = [r for r in range(grid.world) if all(where[r][o] == where[rank][o] for o in others)]
            assert list(grid.group(axis, rank)) == wanted
        size = grid.dp * grid.cp if axis == "dp_cp" else getattr(grid, axis)
        assert {len(group) for group in grid.groups(axis)} == {size}
        assert sorted(r for group in grid.groups(axis) for r in group) == [*range(grid.world)]
    for rank, place in enumerate(where):
        assert grid.rank(**{one: place[one] for one in plain}) == rank
    assert set(grid.group("ep", 0)) <= set(grid.group("dp_cp", 0))


@given(grids())
def test_experts_take_no_devices_of_their_own(grid):
    assert (
        grid.world
        == prod(grid.shape)
        == prod(grid.expert_shape)
        == RankGrid(**{w: getattr(grid, w) for w in SIZES}).world
    )
    assert grid.edp * grid.ep == grid.dp * grid.cp


def test_tp_partners_are_neighbours():
    grid = RankGrid(dp=2, tp=8, pp=4)
    assert all(group == (*range(group[0], group[0] + 8),) for group in grid.groups("tp"))


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"dp": 4, "ep": 3}, r"ep=3 does not divide dp x cp = 4 x 1 = 4.*nearest that does: ep=2 or ep=4$"),
        ({"dp": 2, "cp": 3, "ep": 5}, "nearest that does: ep=6$"),
        ({"dp": 2, "ep": 100}, "nearest that does: ep=2$"),
        ({"tp": 0}, "tp=0 must be a whole number, at least 1; try tp=1"),
        ({"pp": 2.0}, "pp=2.0 must be"),
        ({"cp": True}, "cp=True must be"),
    ],
)
def test_grids_that_do_not_exist(sizes, told):
    with pytest.raises(ConfigError, match=told) as caught:
        RankGrid(**sizes)
    assert "\n" not in str(caught.value)


def test_ranks_and_axes_that_do_not_exist():
    grid = RankGrid(dp=2, tp=2)
    for rank in (-1, 4, True, 0.5):
        with pytest.raises(ConfigError, match="there are 0 to 3"):
            grid.group("tp", rank)
    with pytest.raises(ConfigError, match="no axis 'sp'; there are tp, cp"):
        grid.group("sp", 0)
    with pytest.raises(ConfigError, match="dp=2 is not on this axis; there are 0 to 1"):
        grid.rank(dp=2)


def test_which_ep_are_legal():
    for dp, cp in product(range(1, 5), repeat=2):
        for ep in range(1, 20):
            if (dp * cp) % ep == 0:
                assert RankGrid(dp=dp, cp=cp, ep=ep).ep == ep
            else:
                with pytest.raises(ConfigError, match="does not divide"):
                    RankGrid(dp=dp, cp=cp, ep=ep)

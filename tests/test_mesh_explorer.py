"""The pictures of the rank grid and its explorer: they say what the grid says, at every corner and in time."""

import itertools
import re
import time

import pytest
from explorer_moves import at
from matplotlib.colors import to_hex

from course_lib.figures.mesh import GROUP_COLORS, group_lines, rank_grid, rank_grid_svg
from course_lib.figures.style import COLORS, png, title_of
from course_lib.parallel.mesh import RankGrid
from course_lib.widgets import mesh, mesh_explorer

BUDGET = 0.1
GRID = RankGrid(dp=4, tp=2, pp=2, cp=2, ep=4)


@pytest.fixture(scope="module")
def made():
    return mesh_explorer()


def partners(grid, rank):
    """By axis the group without the rank itself."""
    return {axis: set(grid.group(axis, rank)) - {rank} for axis in ("tp", "cp", "dp", "pp")}


# --------------------------------------------------------------------------------------------------------- the pictures


@pytest.mark.parametrize("rank", [0, 13, 31])
def test_every_partner_has_the_colour_of_its_axis(rank):
    ax = rank_grid(GRID, rank, title="t").axes[0]
    cells, frames = ax.collections[0], ax.collections[1]
    colors = [to_hex(color).upper() for color in cells.get_facecolors()]
    assert len(colors) == 32 and colors[rank] == COLORS["ink"]
    for axis, group in partners(GRID, rank).items():
        assert {one for one, color in enumerate(colors) if color == GROUP_COLORS[axis]} == group
    middles = [path.get_extents().get_points().mean(0).round(3).tolist() for path in cells.get_paths()]
    framed = [path.get_extents().get_points().mean(0).round(3).tolist() for path in frames.get_paths()]
    assert sorted(middles.index(one) for one in framed) == list(GRID.group("ep", rank))
    assert len({tuple(middle) for middle in middles}) == 32


def test_the_live_picture_has_the_same_cells():
    picture = rank_grid_svg(GRID, 13, title="a < b", subtitle="s")
    found = re.findall(r'fill="([^"]+)"[^>]*><title>rank (\d+):', picture)
    fills = {int(number): fill for fill, number in found}
    assert len(fills) == 32 and "a &lt; b" in picture
    for axis, group in partners(GRID, 13).items():
        assert {one for one, fill in fills.items() if fill == GROUP_COLORS[axis]} == group
    assert "rank 13: pp 0, dp 3, cp 0, tp 1, ep 2" in picture
    assert picture.count(f'stroke="{GROUP_COLORS["ep"]}"') == GRID.ep


def test_the_groups_in_words():
    lines = {axis: rest for axis, *rest in group_lines(GRID, 13, node=8)}
    assert lines["tp"][:2] == ["12, 13", "in one node"] and lines["pp"][:2] == ["13, 29", "over 2 nodes"]
    assert lines["dp"] == ["1, 5, 9, 13", "over 2 nodes", lines["dp"][2]] and "dp x cp (8 ranks)" in lines["dp"][2]
    assert lines["ep"][0] == "9, 11, 13, 15" and lines["edp"][0] == "5, 13"
    alone = {axis: rest for axis, *rest in group_lines(RankGrid(dp=20), 3, node=4)}
    assert alone["tp"] == ["3", "alone", "nothing"] and "edp" not in alone
    assert alone["dp"][:2] == ["0, 1, 2, 3, 4, 5, … 19", "over 5 nodes"]


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (8, 8, 4, 4, 32), (1, 8, 4, 1, 1), (8, 1, 1, 4, 1)])
def test_the_edges_are_drawn(sizes):
    dp, tp, pp, cp, ep = sizes
    grid = RankGrid(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep)
    figure = rank_grid(grid, grid.world - 1, title="t", node=3)
    assert png(figure, scale=1).data and len(figure.axes[0].collections[0].get_paths()) == grid.world
    picture = rank_grid_svg(grid, 0, title="t", subtitle="s", node=3)
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', picture)
    height = float(re.search(r'viewBox="0 0 768 (\d+)"', picture)[1])
    assert all(float(x) + float(w) <= 768.1 and float(y) + float(h) <= height for x, y, w, h in boxes)


def test_tp_partners_stand_side_by_side_and_stages_apart():
    picture = rank_grid_svg(GRID, 0, title="t", subtitle="s")
    cells = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)"[^>]*><title>rank (\d+):', picture)
    where = {int(rank): (float(x), float(y)) for x, y, rank in cells}
    wide = where[1][0] - where[0][0]
    for rank, (x, y) in where.items():
        place = GRID.coordinates(rank)
        assert y == where[rank - place["tp"]][1] and x == pytest.approx(
            where[rank - place["tp"]][0] + place["tp"] * wide
        )
        assert y == where[rank % 16][1] and (x - where[rank % 16][0] > 2 * wide) == (place["pp"] == 1)
        assert (y - where[0][1]) / 30 == pytest.approx(2 * place["dp"] + place["cp"])


@pytest.mark.parametrize(
    ("sizes", "node", "lines"),
    [
        ({"dp": 4, "tp": 2}, 8, 0),
        ({"dp": 4, "tp": 2}, 4, 2),  # below both cells of the second row
        ({"tp": 4}, 2, 1),
        ({"dp": 2, "tp": 3}, 2, 2 + 3),  # one in each row, and one below each of three
    ],
)
def test_lines_part_nodes_and_nothing_else(sizes, node, lines):
    picture = rank_grid_svg(RankGrid(**sizes), 0, title="t", subtitle="s", node=node)
    assert picture.count("<path") == lines


# ----------------------------------------------------------------------------------------------------------- the widget


def test_what_it_opens_with(made):
    view = at(made)
    assert view.alt.startswith("PP 2 x DP 4 x TP 2 = 16 ranks; EP 2 divides DP and adds none. Rank 5 is at pp 0, dp 2,")
    assert "EP: ranks 5, 7, in one node; tokens to their experts and back" in view.alt
    assert [value for value, _ in view.numbers] == ["16", "4", "8"]
    assert [control.name for control in made.controls if not control.more] == ["rank", "dp", "tp"]
    assert title_of(mesh._still(**made.defaults)) in view.alt and "course-static" in made._face


def test_where_ep_does_not_fit_the_rest_is_drawn(made):
    view = at(made, dp=3)
    assert "EP 2 does not fit" in view.alt and view.data["grid"] == RankGrid(dp=3, tp=2, pp=2)
    assert view.message == (
        "EP 2 does not divide DP x CP = 3 x 1 = 3, whose ranks share the experts; the nearest that does: "
        "EP 1 or EP 3. Drawn without expert parallelism."
    )
    assert "EP 2 divides DP x CP" in at(made, dp=3, cp=2).alt
    assert at(made, dp=3, cp=2, ep=4).data["grid"] == RankGrid(dp=3, tp=2, pp=2, cp=2)


def test_a_rank_beyond_the_last_is_the_last(made):
    assert at(made, rank=1023).data["rank"] == 15
    assert at(made, rank=1023, dp=8, tp=8, pp=4, cp=4).data["rank"] == 1023


@pytest.mark.parametrize(
    ("number", "values"),
    [
        (0, {"dp": 8, "tp": 8, "pp": 1, "ep": 1}),
        (0, {"dp": 4, "tp": 4, "cp": 4, "pp": 1, "ep": 1, "node": 16, "rank": 0}),
        (1, {"dp": 8, "tp": 1, "pp": 1, "ep": 8}),
        (1, {"dp": 2, "cp": 4, "tp": 1, "pp": 1, "ep": 8}),
        (2, {"tp": 3, "rank": 6}),
    ],
)
def test_goals_can_be_reached(number, values):
    fresh = mesh_explorer()
    at(fresh, **values)
    assert fresh.reached == {number}


@pytest.mark.parametrize(
    "values",
    [
        {"dp": 8, "tp": 8, "pp": 1, "ep": 1, "node": 4},
        {"dp": 8, "tp": 8, "pp": 1, "ep": 1, "node": 12},
        {"dp": 8, "tp": 2, "ep": 8},
        {"tp": 3, "rank": 3},
        {"tp": 8, "node": 4},
    ],
)
def test_goals_are_not_reached_nearby(values):
    fresh = mesh_explorer()
    at(fresh, **values)
    assert not fresh.reached


def test_no_preset_reaches_a_goal_or_fails(made):
    fresh = mesh_explorer()
    for preset in fresh.presets:
        view = at(fresh, **preset.values)
        assert not view.message
    assert not fresh.reached


EXTREMES = {"rank": (0, 1023), "dp": (1, 8), "tp": (1, 8), "pp": (1, 4), "cp": (1, 4), "ep": (1, 32), "node": (1, 16)}


def test_no_extreme_raises_and_all_are_in_time(made):
    limits = {control.name: (control.min, control.max) for control in made.controls}
    assert limits == EXTREMES
    slowest = 0.0
    for values in itertools.product(*EXTREMES.values()):
        begin = time.process_time()
        view = at(made, **dict(zip(EXTREMES, values, strict=True)))
        took = time.process_time() - begin
        slowest = max(slowest, took if took < BUDGET else min(took, redraw(made)))
        assert not re.search(r"\b(nan|inf)\b", view.picture + view.alt)
    assert slowest < BUDGET


def redraw(made):
    begin = time.process_time()
    made.set(**made.values)
    return time.process_time() - begin

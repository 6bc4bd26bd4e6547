"""The explorer of the rank grid: which ranks are a rank's partners when several ways of splitting are combined."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

from course_lib.errors import ConfigError
from course_lib.figures.mesh import group_lines, rank_grid, rank_grid_svg
from course_lib.parallel.mesh import AXES, RankGrid
from course_lib.widgets.controls import IntControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["mesh_explorer"]

_SIZES = ("dp", "tp", "pp", "cp", "ep")


def _asked(values: Mapping[str, Any]) -> tuple[RankGrid, int, int, str]:
    """The grid, the rank (at most the last one), ranks in a node; where ep does not fit, ep=1 and a line on it."""
    sizes, told = {word: values[word] for word in _SIZES}, ""
    try:
        grid = RankGrid(**sizes)
    except ConfigError as error:
        told = str(error).removeprefix("RankGrid: ").replace("ep=", "EP ").replace("dp x cp", "DP x CP")
        grid = RankGrid(**{**sizes, "ep": 1})
    return grid, min(values["rank"], grid.world - 1), values["node"], told


def _words(values: Mapping[str, Any]) -> tuple[str, str]:
    """Title and subtitle."""
    grid, rank, node, told = _asked(values)
    product = " x ".join(f"{word.upper()} {size}" for word, size in zip(grid.axes, grid.shape, strict=True) if size > 1)
    title = f"{product} = {grid.world:,} ranks" if product else "One rank"
    title += f"; EP {grid.ep} divides {'DP x CP' if grid.cp > 1 else 'DP'} and adds none" * (grid.ep > 1)
    title += f"; EP {values['ep']} does not fit" * bool(told)
    where = ", ".join(f"{axis} {place}" for axis, place in grid.coordinates(rank).items() if axis != "edp")
    lines = ", parted by lines" * (grid.dp * grid.cp * grid.tp > node)
    return title, f"Rank {rank:,} is at {where}; it is in every group below. Nodes of {node}{lines}."


def _draw(**values: Any) -> View:
    grid, rank, node, told = _asked(values)
    title, subtitle = _words(values)
    said = " ".join(
        f"{axis.upper()}: ranks {group}, {where}; {sends}."
        for axis, group, where, sends in group_lines(grid, rank, node)
    )
    row = [
        (f"{grid.world:,}", "ranks = PP x DP x CP x TP"),
        (str(grid.pp * grid.tp), "parts of the weights, PP x TP (before FSDP)"),
    ]
    if grid.ep > 1:
        row.append((f"{grid.pp * grid.tp * grid.ep}", "parts of the experts, PP x TP x EP"))
    return View(
        rank_grid_svg(grid, rank, title=title, subtitle=subtitle, node=node),
        alt=f"{title}. {subtitle} {said}",
        numbers=row,
        message=f"{told}. Drawn without expert parallelism." if told else "",
        data={"grid": grid, "rank": rank, "nodes": {axis: _nodes(grid, axis, rank, node) for axis in AXES}},
    )


def _nodes(grid: RankGrid, axis: str, rank: int, node: int) -> int:
    return len({one // node for one in grid.group(axis, rank)})


def _still(**values: Any) -> Figure:
    grid, rank, node, _ = _asked(values)
    title, subtitle = _words(values)
    return rank_grid(grid, rank, title=title, subtitle=subtitle, node=node)


def _tp_stays(values: Mapping[str, Any], view: View) -> bool:
    """64 ranks, TP inside the nodes everywhere, and some other group over all of them."""
    grid, node = view.data["grid"], values["node"]
    inside = all(len({one // node for one in group}) == 1 for group in grid.groups("tp"))
    return bool(
        grid.world == 64 and grid.tp >= 4 and inside and max(view.data["nodes"].values()) == ceil(64 / node) > 1
    )


def _many_parts(values: Mapping[str, Any], view: View) -> bool:
    grid = view.data["grid"]
    return bool(grid.ep == 8 and grid.world <= 8)


def _torn(values: Mapping[str, Any], view: View) -> bool:
    """A TP group over two nodes, though it has no more ranks than a node."""
    return bool(view.data["nodes"]["tp"] > 1 and view.data["grid"].tp <= values["node"])


def _size(name: str, label: str, high: int, default: int, **more: Any) -> IntControl:
    return IntControl(name=name, label=label, min=1, max=high, default=default, **more)


def mesh_explorer() -> Explorer:
    """Display the explorer of chapter 11: a grid of up to 1,024 ranks, and one rank's group on every axis.

    It opens with 16 ranks: two stages, four shares of the batch, matrices in two parts, experts in two.
    """
    return explorer(
        _draw,
        [
            IntControl(name="rank", label="rank", min=0, max=1023, default=5),
            _size("dp", "data parallel, DP", 8, 4),
            _size("tp", "tensor parallel, TP", 8, 2),
            _size("pp", "pipeline stages, PP", 4, 2, more=True),
            _size("cp", "context parallel, CP", 4, 1, more=True),
            _size("ep", "expert parallel, EP", 32, 2, more=True),
            _size("node", "ranks in a node", 16, 8, more=True),
        ],
        presets=[
            Preset("FSDP x TP, 2 x 2", {"dp": 2, "tp": 2, "pp": 1, "ep": 1, "rank": 0}),
            Preset("TP fills a node", {"tp": 8, "ep": 1}),
            Preset("a long context", {"cp": 4, "dp": 2, "pp": 1, "ep": 1}),
            Preset("experts over all of DP", {"dp": 8, "pp": 1, "ep": 8}),
        ],
        goals=[
            Goal("64 ranks in nodes: TP of 4 or more inside a node everywhere, another axis over all nodes", _tp_stays),
            Goal("Experts in eight parts, on no more than eight ranks", _many_parts),
            Goal("A TP group that fits into a node, and lies on two", _torn),
        ],
        still=_still,
        title="Who are a rank's partners, and what do they send each other?",
        caption=(
            "A block is a stage, a row a share of the batch (and sequence), a column a part of every matrix. Ranks "
            "are counted with TP innermost, then CP, DP, PP. Filled: partners on one axis. Frames: together they hold "
            "all experts; EP has no ranks of its own, it divides DP x CP."
        ),
    )

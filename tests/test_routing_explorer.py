"""The routing explorer and its pictures: they say what the routers say, at every corner and in time."""

import itertools
import re
import time

import numpy as np
import pytest
from explorer_moves import at
from matplotlib.colors import to_hex

from course_lib.figures.routing_svg import GAINED, LOST, TAKEN, Routed, routing_still, routing_svg
from course_lib.figures.style import COLORS, png, title_of
from course_lib.widgets import routing, routing_explorer

BUDGET = 0.1
RULES = list(routing.RULES)
(CHOOSE, FIRST_OF_SEQUENCE, FIRST_OF_BATCH, BEST_OF_SEQUENCE, BEST_OF_BATCH) = RULES[:5]
(EXPERTS, EXPERTS_IN_CHUNKS, EXPERTS_IN_BATCH, THRESHOLD) = RULES[5:]


@pytest.fixture(scope="module")
def made():
    return routing_explorer()


def example() -> Routed:
    """Of one token: taken, gained, lost, dropped and free, among three experts and two sequences."""
    taken, before, dropped = (np.zeros((2, 2, 3), bool) for _ in range(3))
    taken[0, 0, 0] = before[0, 0, 0] = taken[0, 1, 1] = before[0, 1, 2] = dropped[1, 0, 0] = True
    scores = np.arange(12).reshape(2, 2, 3) / 20
    return Routed([["a", "<b>"], ["c", "d"]], scores, taken, dropped, before, moved=1)


# --------------------------------------------------------------------------------------------------------- the pictures


def test_every_cell_says_its_state():
    routed = example()
    picture = routing_svg(routed, title="a < b", subtitle="s")
    cells = re.findall(r"<g><title>([^<]*)</title><rect ([^>]*)/>", picture)
    assert len(cells) == 12 and "a &lt; b" in picture and "&lt;b&gt;" in picture
    looks = {told: look for told, look in cells}
    for place, told, colors in (
        ("“a” scores .00 with expert A", "which takes it", [TAKEN]),
        ("“&lt;b&gt;” scores .20 with expert B", "which takes it now", [TAKEN, GAINED]),
        ("“&lt;b&gt;” scores .25 with expert C", "which took it, and does no more", [LOST]),
        ("“c” scores .30 with expert A", "which was chosen, and is full", ["stroke-dasharray"]),
        ("“d” scores .55 with expert C", "which does not take it", []),
    ):
        look = looks[f"{place}, {told}"]
        assert [word for word in (TAKEN, GAINED, LOST, "stroke-dasharray") if word in look] == colors


def test_the_still_picture_has_the_same_states():
    ax = routing_still(example(), title="t").axes[0]
    boxes = ax.collections[0]
    faces = [to_hex(color).upper() for color in boxes.get_facecolors()]
    edges = [to_hex(color).upper() if color[3] else "" for color in boxes.get_edgecolors()]
    assert len(boxes.get_paths()) == 12 + 1  # and the frame around the token that moved
    assert faces.count(TAKEN) == 2 and edges.count(LOST) == edges.count(GAINED) == 1
    assert edges.count(COLORS["grey"]) == edges.count(COLORS["ink"]) == 1
    assert png(routing_still(example(), title="t"), scale=1).data


# ----------------------------------------------------------------------------------------------------------- the widget


def test_what_it_opens_with(made):
    view = at(made)
    assert view.alt == "Move the score of “purred” with expert A. Experts choose in a sequence."
    assert [value for value, _ in view.numbers] == ["0", "0", "0"]
    assert [control.name for control in made.controls if not control.more] == ["rule", "token", "score"]
    assert title_of(routing._still(**made.defaults)) in view.alt and "course-static" in made._face


def test_the_scores_are_a_softmax_of_which_one_moves(made):
    one, two = (at(made, score=score, token=3).data["routed"].scores for score in (0.2, 0.9))
    np.testing.assert_allclose(one.sum(2), 1)
    np.testing.assert_allclose(two.sum(2), 1)
    same = np.ones((2, 8), bool)
    same[0, 2] = False
    np.testing.assert_array_equal(one[same], two[same])
    assert one[0, 2, 0] == 0.2 and two[0, 2, 0] == 0.9
    assert one[0, 2, 1] / one[0, 2, 2] == pytest.approx(two[0, 2, 1] / two[0, 2, 2])


KNOWS = {  # of later tokens, of the other sequence
    CHOOSE: (False, False),
    FIRST_OF_SEQUENCE: (False, False),
    FIRST_OF_BATCH: (False, True),
    BEST_OF_SEQUENCE: (True, False),
    BEST_OF_BATCH: (True, True),
    EXPERTS: (True, False),
    EXPERTS_IN_CHUNKS: (True, False),
    EXPERTS_IN_BATCH: (True, True),
    THRESHOLD: (False, False),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_moves_what_it_may_and_no_other(made, rule):
    """Over all tokens and some scores: whether earlier tokens, and the other sequence, are ever moved."""
    earlier = other = False
    for token, score, factor in itertools.product(range(1, 9), (0.02, 0.3, 0.6, 0.98), (0.5, 1.0)):
        view = at(made, rule=rule, token=token, score=score, factor=factor)
        earlier |= bool(view.data["earlier"])
        other |= bool(view.data["other"])
    assert (earlier, other) == KNOWS[rule]


def test_a_lost_expert_is_named(made):
    view = at(made, rule=EXPERTS, score=0.7)
    assert view.data["earlier"] == ["and"] and view.data["lost"] == 1
    assert view.alt.startswith("“purred” comes later, and changes the experts of “and” before it.")
    assert view.alt.endswith("Taken away: “and” from expert A.")
    assert view.picture.count(f'stroke="{LOST}"') == int(
        (view.data["routed"].before & ~view.data["routed"].taken).sum()
    )


def test_a_limit_is_said_for_what_it_counts_in(made):
    assert "An expert takes 6 of the 16 visits of a batch." in at(made, rule=FIRST_OF_BATCH).alt
    assert "An expert takes 3 of the 8 visits of a sequence." in at(made, rule=BEST_OF_SEQUENCE).alt
    assert "An expert takes" not in at(made, rule=EXPERTS).alt
    field = made._fields["factor"]
    at(made, rule=EXPERTS)
    assert field.disabled
    at(made, rule=BEST_OF_BATCH)
    assert not field.disabled


def test_a_token_beyond_the_last_is_the_last(made):
    view = at(made, tokens=5, token=12, rule=EXPERTS, score=0.9)
    assert view.data["routed"].moved == 4 and view.message == "There are 5 tokens: the last one moves."


GOALS = [
    (0, {"rule": EXPERTS, "score": 0.6}),
    (0, {"rule": BEST_OF_SEQUENCE, "score": 0.6}),
    (0, {"rule": EXPERTS_IN_CHUNKS, "score": 0.6}),
    (1, {"rule": FIRST_OF_BATCH, "score": 0.6}),
    (1, {"rule": BEST_OF_BATCH, "score": 0.7}),
    (2, {"rule": FIRST_OF_SEQUENCE, "score": 0.98, "token": 1, "factor": 0.5}),
]


@pytest.mark.parametrize(("number", "values"), GOALS)
def test_goals_can_be_reached(number, values):
    fresh = routing_explorer()
    at(fresh, **values)
    assert number in fresh.reached


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"rule": CHOOSE, "score": 0.98},
        {"rule": THRESHOLD, "score": 0.98, "token": 1},
        {"rule": FIRST_OF_SEQUENCE, "score": 0.98},  # the last token has no later ones
        {"rule": EXPERTS, "token": 1, "score": 0.04},
    ],
)
def test_goals_are_not_reached_nearby(values):
    fresh = routing_explorer()
    at(fresh, **values)
    assert not fresh.reached


def test_no_preset_reaches_a_goal_or_fails():
    fresh = routing_explorer()
    for preset in fresh.presets:
        assert not at(fresh, **preset.values).message
    assert not fresh.reached


EXTREMES = {"token": (1, 12), "score": (0.02, 0.98), "factor": (0.25, 2), "experts": (2, 4), "top_k": (1, 2)}
EXTREMES["tokens"] = (4, 12)


def test_no_extreme_raises_and_all_are_in_time(made):
    limits = {control.name: (control.min, control.max) for control in made.controls if control.name != "rule"}
    assert limits == EXTREMES
    slowest = 0.0
    for rule, *values in itertools.product(RULES, *EXTREMES.values()):
        begin = time.process_time()
        view = at(made, rule=rule, **dict(zip(EXTREMES, values, strict=True)))
        took = time.process_time() - begin
        slowest = max(slowest, took if took < BUDGET else min(took, redraw(made)))
        assert not re.search(r"\b(nan|inf)\b", view.picture + view.alt)
    assert slowest < BUDGET


def redraw(made):
    begin = time.process_time()
    made.set(**made.values)
    return time.process_time() - begin

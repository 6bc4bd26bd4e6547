"""Which lines count as an answer's: those that it uses, and no others."""

import pytest

from course_lib.grading.reach import reachable, spoken_of

ANSWER = "def my(values):\n    x = len(values)\n    return x\n"
CHEATING = "def my(values):\n    return CHEAT\n"
SEARCHED = "SECRET"
"""Stands for a forbidden name."""


def counts(answer: str, *cells: str) -> bool:
    return any(SEARCHED in source for source in reachable([answer], {"my"}, cells))


@pytest.mark.parametrize(
    "cells",
    [
        ["from library import SECRET"],
        ["from library import SECRET as other"],
        ["from library import SECRET\nprint(SECRET['fp16'])"],
        ["x = library.SECRET(3)"],  # the answer's x is its own
        ["for name in library.SECRET:\n    print(name)"],
        ["values = []\nprint(len(values), library.SECRET)"],
        ["def tried():\n    return library.SECRET"],
        ["%time library.SECRET(3)"],
        ["print(sorted(globals()))", "tried = library.SECRET"],
        ["list(model.modules())", "tried = library.SECRET"],
        ['"""my values"""\nlibrary.SECRET'],
        ["class Tried:\n    kept = library.SECRET"],
    ],
)
def test_what_is_tried_beside_an_answer_is_no_part_of_it(cells: list[str]) -> None:
    assert not counts(ANSWER, *cells)


@pytest.mark.parametrize(
    "cells",
    [
        ["CHEAT = library.SECRET"],
        ["from library import SECRET as CHEAT"],
        ["from library import SECRET as a", "b = a", "CHEAT = b"],
        ["for CHEAT in library.SECRET:\n    pass"],
        ["if True:\n    CHEAT = library.SECRET"],
        ["import builtins", "builtins.CHEAT = library.SECRET"],
        ["import builtins", "setattr(builtins, 'CHEAT', library.SECRET)"],
        ["globals()['CHEAT'] = library.SECRET"],
        ["def fill():\n    global CHEAT\n    CHEAT = library.SECRET", "fill()"],
        ["CHEAT = []", "CHEAT.append(library.SECRET)"],
        ["CHEAT = {}", "CHEAT['x'] = library.SECRET"],
        ["CHEAT = []\ndef fill(what):\n    what.append(library.SECRET)", "fill(CHEAT)"],
        ["class CHEAT:\n    kept = library.SECRET"],
        ["class CHEAT:\n    pass", "CHEAT.kept = library.SECRET"],
        ["CHEAT = lambda: library.SECRET"],
        ["with library.SECRET as CHEAT:\n    pass"],
        ["print(CHEAT := library.SECRET)"],
    ],
)
def test_what_an_answer_uses_is_part_of_it(cells: list[str]) -> None:
    assert counts(CHEATING, *cells)
    assert counts("def my(values):\n    return helper()\n", "def helper():\n    return CHEAT", *cells)


def test_names_reached_by_a_text_or_an_attribute_count() -> None:
    assert counts("def my(values):\n    return getattr(K, 'kept')\n", "class K:\n    kept = library.SECRET")
    assert counts("def my(values):\n    return globals()['ke' + 'pt']\n", "kept = library.SECRET")
    assert counts("import __main__\ndef my(values):\n    return __main__.kept\n", "kept = library.SECRET")


def test_a_function_beside_the_answer_counts_when_it_is_called() -> None:
    beside = "\n\ndef tried():\n    return library.SECRET\n"
    assert not counts(ANSWER + beside)
    assert counts(ANSWER.replace("return x", "return tried()") + beside)
    assert counts(ANSWER + "\nlibrary.SECRET\n")  # a line of the answer's own cell


def test_cells_that_an_exercise_speaks_of() -> None:
    """A cell binds a name that is used, or what such a cell uses; damage to what is there anyway is no help."""
    cells = ["scale = 3", "def helper(x):\n    return x * scale", "list = 3", "import torch\ntorch.seed = None"]
    cells += ["from tools import *", "exec('y = 1')", "get_ipython().user_ns.clear()", "other = 4"]
    spoken = spoken_of(["def my(x):\n    return list(helper(x))"], cells, {"list", "torch"})
    assert spoken == {0, 1, 4, 5}


def test_what_does_not_parse_stays_whole() -> None:
    assert counts(ANSWER, "library.SECRET(")
    assert counts("def my(:\n    library.SECRET")

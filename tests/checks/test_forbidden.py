"""What an answer may not call is found under every name it can be given, and nothing else is."""

import importlib
import sys
from importlib import import_module as load
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import cross_entropy as ce
from torch.nn.utils import clip_grad_norm_

from course_lib.checks.core import forbidden_in_answer, forbidden_in_source
from course_lib.checks.forbidden import way_round
from course_lib.precision import FORMATS

LOSS = ("torch.nn.functional.cross_entropy", "torch.nn.CrossEntropyLoss")
CLIP = ("torch.nn.utils.clip_grad_norm_",)


def by_module(x: Any, y: Any) -> Any:
    return F.cross_entropy(x, y)


def by_full_name(x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(x, y)


def by_alias(x: Any, y: Any) -> Any:
    return ce(x, y)


def by_reference(x: Any, y: Any) -> Any:
    loss = F.cross_entropy
    return loss(x, y)


def by_class(x: Any, y: Any) -> Any:
    return torch.nn.CrossEntropyLoss()(x, y)


def by_local_import(x: Any, y: Any) -> Any:
    from torch.nn import functional as anything

    return anything.cross_entropy(x, y)


def by_local_from_import(x: Any, y: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(x, y)


def by_getattr(x: Any, y: Any) -> Any:
    return getattr(F, "cross_entropy")(x, y)  # noqa: B009


def by_helper(x: Any, y: Any) -> Any:
    return _helper(x, y)


def _helper(x: Any, y: Any) -> Any:
    return [by_module(a, b) for a, b in zip(x, y, strict=True)]


def by_inner(x: Any, y: Any) -> Any:
    def inner() -> Any:
        return F.cross_entropy(x, y)

    return inner()


by_lambda = lambda x, y: F.cross_entropy(x, y)


class ByMethod(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return F.cross_entropy(x, y)


ANSWERS: list[Any] = [
    by_module, by_full_name, by_alias, by_reference, by_class, by_local_import, by_local_from_import, by_getattr,
    by_helper, by_inner, by_lambda, ByMethod, {"loss": by_module},
]  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_found(answer: Any) -> None:
    assert forbidden_in_answer(answer, LOSS) in LOSS


def by_import_module() -> Any:
    return importlib.import_module("course_lib" + ".precision")


def by_imported_name() -> Any:
    return load("course_lib" + ".precision")


def by_loaded_modules() -> Any:
    return sys.modules["course_lib.precision"]


def by_modules_under_another_name() -> Any:
    from sys import modules as loaded

    return loaded["course_lib.precision"]


def by_dunder_import() -> Any:
    return __import__("course_lib.precision")


def by_eval() -> Any:
    return eval("course_lib" + ".precision")


def by_helper_of_that_kind() -> Any:
    return by_eval()


@pytest.mark.parametrize(
    "answer",
    [
        by_import_module, by_imported_name, by_loaded_modules, by_modules_under_another_name, by_dunder_import,
        by_eval, by_helper_of_that_kind,
    ],
)  # fmt: skip
def test_a_module_by_its_text_is_a_way_round(answer: Any) -> None:
    assert way_round(answer)


def test_torchs_own_words_are_no_way_round() -> None:
    def answer(model: torch.nn.Module) -> Any:
        model.eval()
        return [module for module in model.modules()], torch.compile

    without_source: dict[str, Any] = {}
    exec("def answer(model):\n    model.eval()\n    return list(model.modules())", without_source)
    assert way_round(answer) is None and way_round(without_source["answer"]) is None


def clean(x: Any, y: Any) -> Any:
    """Not F.cross_entropy, only its name in a docstring and a string: cross_entropy."""
    names = ["cross_entropy"]
    return np.log(x[y]), names, cross_entropy(x)


def cross_entropy(x: Any) -> Any:
    return x.log()


def clip(x: Any) -> Any:
    return clip_grad_norm_(x, 1.0)


def test_a_name_in_a_text_and_an_own_function_of_that_name_are_fine() -> None:
    assert forbidden_in_answer(clean, (*LOSS, "cross_entropy")) is None
    assert forbidden_in_answer(5, LOSS) is None and forbidden_in_answer(np.log, LOSS) is None


half = 0.5
FP16 = torch.float16
TABLE = {"fp16": torch.float16}


def local_half(x: Any) -> Any:
    half = 0.5
    return x * half + sum(half * part for part in x)


def parameter_half(x: Any, half: float = 0.5) -> Any:
    return (lambda y: y * half)(x)


def target_half(x: Any) -> Any:
    return [half for half in x]


def global_half(x: Any) -> Any:
    return x * half


def helper_half(x: Any) -> Any:
    return local_half(x) + global_half(x)


def method_half(x: Any) -> Any:
    return x.half()


def renamed_half(x: Any) -> Any:
    half = x.half
    return half()


def default_half(x: Any, half: Any = torch.half) -> Any:
    return x.to(half)


def declared_global(x: Any) -> Any:
    global TABLE
    TABLE = TABLE["fp16"]
    return x.to(TABLE)


def constant_half(x: Any) -> Any:
    return x.to(FP16)


def listed_half(x: Any) -> Any:
    return x.to(TABLE["fp16"])


@pytest.mark.parametrize("answer", [local_half, parameter_half, target_half, global_half, helper_half])
def test_a_variable_of_that_name_is_fine(answer: Any) -> None:
    assert forbidden_in_answer(answer, ("half", "float16")) is None


@pytest.mark.parametrize(
    "answer", [method_half, renamed_half, default_half, constant_half, listed_half, declared_global]
)
def test_what_hides_behind_a_variable_is_found(answer: Any) -> None:
    assert forbidden_in_answer(answer, ("half", "float16")) in ("half", "float16")


def test_a_variable_of_that_name_is_fine_in_source() -> None:
    assert forbidden_in_source(["half = 0.5\ndef f(x):\n    return x * half"], ("half",)) is None
    assert forbidden_in_source(["def f(x):\n    half = 0.5\n    return x * half"], ("half",)) is None
    assert forbidden_in_source(["def f(x):\n    half = 1\ndef g(x):\n    return half(x)"], ("half",)) == "half"
    assert forbidden_in_source(["def f(x, half=half):\n    return half(x)"], ("half",)) == "half"


def by_imported_class(x: Any) -> Any:
    from course_lib.precision import Format

    return Format("a", "a", 5, 10).round(x)


def by_table(x: Any) -> Any:
    return FORMATS["fp16"].round(x)


def by_type(x: Any) -> Any:
    return type(ROUNDERS[0])("a", "a", 5, 10).round(x)


ROUNDERS = [FORMATS["fp16"]]


@pytest.mark.parametrize("answer", [by_imported_class, by_table, by_type])
def test_a_module_stands_for_what_is_in_it(answer: Any) -> None:
    assert forbidden_in_answer(answer, ("course_lib.precision",)) == "course_lib.precision"


def test_what_is_imported_from_a_module_counts_in_source() -> None:
    cells = ["from course_lib.precision import Format as G\ndef f(x):\n    return G('a', 'a', 5, 10).round(x)"]
    assert forbidden_in_source(cells, ("course_lib.precision",)) == "course_lib.precision"


def given(x: Any) -> Any:
    return x


alias = given


def calls_what_is_given(x: Any) -> Any:
    return [given(one) for one in x]


def calls_it_under_another_name(x: Any) -> Any:
    return _calls_alias(x)


def _calls_alias(x: Any) -> Any:
    return alias(x)


def test_a_function_of_the_notebook_can_be_forbidden() -> None:
    for answer in (calls_what_is_given, calls_it_under_another_name):
        assert forbidden_in_answer(answer, ("__main__.given",)) == "given"
        assert forbidden_in_answer(answer, ("given",)) is None, "a bare name spares what the learner wrote"
    assert forbidden_in_answer(by_helper, ("__main__.given",)) is None
    cells = ["def f(x):\n    return [given(one) for one in x]"]
    assert forbidden_in_source(cells, ("__main__.given",), "def given(x):\n    return x") == "given"


def test_the_same_function_from_another_module_counts() -> None:
    assert forbidden_in_answer(clip, CLIP) == CLIP[0]
    assert forbidden_in_answer(clip, ("torch.nn.utils.clip_grad.clip_grad_norm_",)) is not None


def test_bare_names_match_methods_and_dotted_ones_do_not() -> None:
    def answer(loss: Any) -> None:
        loss.backward()

    assert forbidden_in_answer(answer, ("backward",)) == "backward"
    assert forbidden_in_answer(answer, ("torch.autograd.backward",)) is None


@pytest.mark.parametrize(
    "source",
    [
        "import torch.nn.functional as X\ndef f(x, y):\n    return X.cross_entropy(x, y)",
        "from torch.nn.functional import cross_entropy as z\ndef f(x, y):\n    return z(x, y)",
        "def f(x, y):\n    return F.cross_entropy(x, y)",
        "def f(x, y):\n    return torch.nn.functional.cross_entropy(x, y)",
    ],
)
def test_found_in_source_alone(source: str) -> None:
    assert forbidden_in_source([source], LOSS, "import torch\nimport torch.nn.functional as F") == LOSS[0]


def test_source_that_does_not_parse_or_defines_its_own_is_fine() -> None:
    assert forbidden_in_source(["def f(:"], LOSS) is None
    assert (
        forbidden_in_source(["def cross_entropy(x):\n    return x\ny = cross_entropy(1)"], ("cross_entropy",)) is None
    )


def test_a_chapters_oracle_may_not_be_called() -> None:
    assert forbidden_in_source(["from course_lib.checks.ch01 import _oracle\n_oracle(1)"], ())
    assert forbidden_in_source(["import course_lib.checks.ch01 as c\nc.EXERCISES[0].judge"], ())
    assert forbidden_in_source(["from course_lib.checks.ch01 import check\ncheck('x', 1)"], ()) is None

"""What an answer may not call is found under every name it can be given, and nothing else is."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import cross_entropy as ce
from torch.nn.utils import clip_grad_norm_

from course_lib.checks.core import forbidden_in_answer, forbidden_in_source

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

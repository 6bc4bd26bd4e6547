"""Kept results are of the code that is here."""

import sys

import pytest

from course_lib.errors import ConfigError
from course_lib.failures import records


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="a digest is of one Python's syntax tree")
@pytest.mark.parametrize("name", list(records.RECORDS))
def test_result_is_of_this_code(name: str) -> None:
    assert not records.stale(name), f"make it again: python -m course_lib.failures.records {name}"


def test_comments_and_docstrings_are_no_code(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(records, "PACKAGE", tmp_path)
    monkeypatch.setitem(records.RECORDS, "one", records.Record("a:b", ("a.py",)))
    found = []
    for text in (
        '"""Doc."""\ndef f():\n    """Doc."""\n    return 1  # one\n',
        "def f():\n  return 1\n",
        "def f():\n  return 2\n",
    ):
        (tmp_path / "a.py").write_text(text, encoding="utf-8")
        found.append(records.digest("one"))
    assert found[0] == found[1] != found[2]


def test_made_and_loaded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setitem(records.RECORDS, "one", records.Record("platform:python_implementation", ("errors.py",)))
    assert records.stale("one")
    records.make("one")
    assert records.load("one") and not records.stale("one")
    with pytest.raises(ConfigError, match="there is no result 'two'"):
        records.load("two")

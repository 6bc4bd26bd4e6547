"""The record of the large counts knows which code it is of."""

from pathlib import Path

import pytest
import stress_record


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "course_lib" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "sub").mkdir(parents=True)
    for name, text in {
        "course_lib/__init__.py": "",
        "course_lib/a.py": "def f():\n    from course_lib.deep import b\n",
        "course_lib/deep/__init__.py": "",
        "course_lib/deep/b.py": "import os\n",
        "course_lib/other.py": "",
        "tests/sub/helper.py": "",
        "tests/sub/test_x.py": "import helper\nimport course_lib.a\nSTRESS_OF = ('notebooks/*.txt',)\n",
        "notebooks.txt": "",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(stress_record, "ROOT", tmp_path)
    monkeypatch.setattr(stress_record, "RECORD", tmp_path / "tests" / "stress.json")
    return tmp_path


def test_what_is_behind_a_test(checkout: Path) -> None:
    (checkout / "notebooks").mkdir()
    (checkout / "notebooks" / "n.txt").write_text("1", encoding="utf-8")
    found = set(stress_record.digests(checkout / "tests" / "sub" / "test_x.py"))
    assert found == {
        "tests/sub/test_x.py",
        "tests/sub/helper.py",
        "course_lib/a.py",
        "course_lib/deep/__init__.py",
        "course_lib/deep/b.py",
        "notebooks/n.txt",
    }


def test_a_change_makes_a_result_stale(checkout: Path) -> None:
    node = "tests/sub/test_x.py::test_many[3]"
    stress_record.write({node: {"outcome": "passed", "seconds": 1.0}})
    assert stress_record.stale() == []
    (checkout / "course_lib" / "other.py").write_text("x = 1\n", encoding="utf-8")
    assert stress_record.stale() == []
    (checkout / "course_lib" / "deep" / "b.py").write_text("x = 1\n", encoding="utf-8")
    (line,) = stress_record.stale()
    assert "course_lib/deep/b.py" in line and "tests/sub/test_x.py" in line
    stress_record.write({node: {"outcome": "failed", "seconds": 1.0}})
    (line,) = stress_record.stale()
    assert "test_many[3] failed" in line
    (checkout / "tests" / "sub" / "test_x.py").unlink()
    stress_record.write({})
    assert stress_record.load() == {}

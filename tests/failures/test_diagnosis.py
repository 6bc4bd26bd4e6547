"""The diagnosis table: whole, in order, reproduced, and refused in one line when it is not well formed."""

import pytest

from course_lib.errors import ConfigError
from course_lib.failures.diagnosis import rows, rows_of, search, table
from course_lib.failures.incidents import CATEGORIES, INCIDENTS

CLAIMED = (  # claim 24's list, and a word that finds each
    "nan",
    "spike",
    "plateau",
    "too good",
    "held-out",
    "gradient norm",
    "throughput",
    "out of memory",
    "hangs",
    "ranks diverge",
    "resume",
)
ROW = """
[[row]]
symptom = "a"
look = "b"
data = ["c"]
check = "d"
checks = ["targets"]
fix = "e"
never = "f"
incidents = ["label_shift"]
"""


def test_the_table_is_whole() -> None:
    assert len(table()) >= 15
    assert {name for row in table() for name in row.incidents} == set(INCIDENTS)
    for row in table():
        order = [CATEGORIES.index(cause.category) for cause in row.causes]
        assert order == sorted(order) and row.checks and row.fix and row.never
        for name in row.incidents:
            assert set(INCIDENTS[name].checks) & set(row.checks), (row.symptom, name)
            assert INCIDENTS[name].category in {cause.category for cause in row.causes}, (row.symptom, name)
    for words in CLAIMED:
        assert any(words in row.symptom.lower() for row in table()), words


def test_searching() -> None:
    assert search("") == table()
    assert [row.incidents for row in search("BARRIER")] == [("hang",)]
    assert search("mask probe") == rows_of("mask_leak")
    assert search("nothing that is there") == ()
    assert [row.incidents for row in search("hang")] == [("hang",)]  # and not those that hold "change"
    assert len(search("chang")) > 1


def test_a_row_is_read() -> None:
    (row,) = rows(ROW)
    assert (
        row.causes[0].category == "data and mask" and row.checks == ("targets",) and row.incidents == ("label_shift",)
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('symptom = "a"', "symptom = 1", "symptom has to be a text"),
        ('look = "b"', 'looks = "b"', "no field 'looks'; did you mean 'look'"),
        ('fix = "e"', "", "fix has to be a text"),
        ('data = ["c"]', 'data = "c"', "data has to be a list of texts"),
        ('data = ["c"]', "", "has no cause"),
        ('"label_shift"', '"label_shfit"', "'label_shfit', which does not exist; did you mean 'label_shift'"),
        ('incidents = ["label_shift"]', "incidents = []", "incidents is empty"),
        ('"targets"', '"target"', "did you mean 'targets'"),
        ("[[row]]", "[[row]", "is no TOML"),
        ("[[row]]", "other = 1\n[[row]]", "and nothing else"),
    ],
)
def test_what_is_wrong_is_one_line(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        rows(ROW.replace(old, new))
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="two rows"):
        rows(ROW + ROW)

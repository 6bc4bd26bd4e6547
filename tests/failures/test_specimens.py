"""The probe on every specimen: each leak is found and named, and no honest model is accused."""

from datetime import date

import pytest

from course_lib.failures.causality import LeakReport, probe
from course_lib.failures.specimens import HONEST, LEAKING, Specimen

ALL = {**HONEST, **LEAKING}
SEEDS = 50


def report_of(one: Specimen, seed: int) -> LeakReport:
    return probe(one.forward, one.tokens, one.vocab_size, seed=seed, documents=one.documents, predicts=one.predicts)


def check(name: str, seed: int) -> None:
    one = ALL[name](seed)
    report = report_of(one, seed)
    told = f"{name}, seed {seed}: {report.text()}"
    assert report.leaks == one.leaks, told
    assert report.leaks_across_batch == one.leaks_across_batch, told
    assert report.leaks_across_documents == (None if one.documents is None else one.leaks_across_documents), told
    assert report.clean == (name in HONEST), told
    assert (report.worst is not None) == one.leaks == (report.fraction > 0), told
    if report.worst is not None:
        assert report.worst.saw >= report.worst.at + one.predicts and report.worst.size > report.bar, told


def test_there_are_enough() -> None:
    assert len(HONEST) >= 12 and len(LEAKING) >= 15 and not set(HONEST) & set(LEAKING)


@pytest.mark.parametrize("name", ALL)
def test_specimen(name: str) -> None:
    """Two of the fifty seeds, others tomorrow."""
    for seed in (date.today().toordinal() % SEEDS, (date.today().toordinal() * 7 + 3) % SEEDS):
        check(name, seed)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ALL)
def test_specimen_with_fifty_seeds(name: str) -> None:
    for seed in range(SEEDS):
        check(name, seed)


def test_a_specimen_is_made_by_its_seed_alone() -> None:
    for name in ("gpt", "noisy_experts", "causal_conv"):
        one, same, other = (report_of(ALL[name](seed), 0).spread for seed in (0, 0, 1))
        assert one == same != other

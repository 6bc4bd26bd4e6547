"""pyproject.toml, constraints.txt and environment.yml say the same of versions, and it is what runs here."""

import importlib.metadata
import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What a package of ours is called on conda-forge, where it has another name.
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base", "ml-dtypes": "ml_dtypes"}


def needs(*extras: str) -> list[Requirement]:
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in lines if not line.startswith("#")]
    assert all(pairs), "every line of constraints.txt is name==version"
    found = [(canonicalize_name(pair[1]), pair[2]) for pair in pairs if pair]
    assert len(found) == len(dict(found)), "a name stands twice in constraints.txt"
    return dict(found)


def closure() -> set[str]:
    """Every distribution that the course needs on this machine, through all that its dependencies need."""
    done: set[tuple[str, str]] = set()
    todo = [(need.name, "") for need in needs("dev", "classroom")]
    todo += [(need.name, extra) for need in needs("dev", "classroom") for extra in need.extras]
    while todo:
        name, extra = todo.pop()
        if (canonicalize_name(name), extra) in done:
            continue
        done.add((canonicalize_name(name), extra))
        for line in importlib.metadata.distribution(name).requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({**default_environment(), "extra": extra}):
                todo += [(need.name, other) for other in ("", *need.extras)]
    return {name for name, _ in done}


def test_conda_agrees_with_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge", "nodefaults"], (
        "PyTorch's own channel is dead; defaults is not free"
    )
    *listed, pip, last = environment["dependencies"]
    assert (pip, last) == ("pip", {"pip": ["-e ."]})
    wanted = {"python": PROJECT["requires-python"]}
    wanted |= {CONDA.get(need.name, need.name): str(need.specifier) for need in needs()}
    got = {Requirement(line).name: str(Requirement(line).specifier) for line in listed}
    assert got == wanted


def test_every_range_admits_its_pin():
    pinned = pins()
    for need in needs("dev", "classroom"):
        assert pinned[canonicalize_name(need.name)] in need.specifier, f"{need} against constraints.txt"


def test_the_torch_pin_names_no_build():
    """torch is pinned without a local part (`+cpu`), so that pip takes the build of the index that it is given."""
    assert pins()["torch"] == "2.13.0"
    assert all(need.specifier for need in needs("dev", "classroom")), "every dependency has a bound"


def test_what_runs_here_is_what_is_pinned():
    """In CI, every package that the course needs, also indirectly, has the version of constraints.txt."""
    pinned = pins()
    missing = sorted(closure() - set(pinned))
    assert not missing, f"needed and not in constraints.txt: {missing}"
    here = {name: Version(importlib.metadata.version(name)).public for name in closure()}
    other = {name: (here[name], pinned[name]) for name in here if here[name] != pinned[name]}
    if other and os.environ.get("CI") != "true":
        pytest.skip(f"this environment has other versions (here, pinned): {other}")
    assert not other, f"other versions than the tested ones (here, pinned): {other}"


def test_every_pin_runs_on_the_first_python_that_is_supported():
    """A distribution of Debian has 3.11.2 for years: a pin that wants 3.11.5 would end its set-up."""
    first = str(Version(PROJECT["requires-python"].removeprefix(">="))) + ".0"
    refused = []
    for name in sorted(pins()):
        try:
            wants = importlib.metadata.metadata(name).get("Requires-Python")
        except importlib.metadata.PackageNotFoundError:  # of another platform
            continue
        if wants and not SpecifierSet(wants).contains(first):
            refused.append(f"{name} {wants}")
    assert refused == [], f"constraints.txt pins what Python {first} cannot install"

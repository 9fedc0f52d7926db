"""Everything that a plain installation brings has a permissive license; none is copyleft for who uses it."""

import importlib.metadata as metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

requirements = pytest.importorskip("packaging.requirements", reason="needs packaging")

ROOT = Path(__file__).parents[1]
# Weak copyleft on the files themselves, which fedweave does not change: Mozilla's list of certificates, progress bars,
# and the patterns of files of mkdocs (and mypy), which only builds the documentation.
FILES_ALONE = {"certifi", "tqdm", "pathspec"}
# Silent on licenses: fedweave itself as older tools install it, and NVIDIA's package that only names its others, which
# PyTorch's builds for GPUs need.
SILENT = {"fedweave", "cuda-toolkit"}
COPYLEFT = re.compile(r"\b[AL]?GPL|General Public|MPL|Mozilla|EUPL|CDDL|\bCC-BY-SA|Eclipse", re.IGNORECASE)


def installed(name: str, extras: tuple[str, ...], found: dict[str, metadata.Distribution]) -> None:
    """Add the package and all that it needs here."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in found:
        return
    try:
        found[name] = metadata.distribution(name)
    except metadata.PackageNotFoundError:  # of an extra that is not installed
        return
    for line in found[name].requires or []:
        needed = requirements.Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            installed(needed.name, tuple(needed.extras), found)


def stated(package: metadata.Distribution) -> Iterator[str]:
    """What the package's metadata says of its license, without the text of the license itself."""
    about = package.metadata
    yield from filter(None, [about.get("License-Expression")])
    yield from (about.get("License") or "").strip().splitlines()[:1]
    yield from (line for line in about.get_all("Classifier") or [] if line.startswith("License"))


def test_nothing_copyleft_is_installed() -> None:
    found: dict[str, metadata.Distribution] = {}
    installed("fedweave", ("flare", "docs", "onnx", "browser", "metis", "molecules", "figures", "serve"), found)
    assert {"torch", "numpy", "typer"} <= set(found)
    copyleft = {name for name, package in found.items() if COPYLEFT.search(" ".join(stated(package)))}
    assert copyleft <= FILES_ALONE
    assert metadata.metadata("fedweave").get("License-Expression") in ("Apache-2.0", None)
    assert {name for name, package in found.items() if not any(stated(package))} <= SILENT


def test_torch_is_asked_for_in_the_range_that_is_tested() -> None:
    """From its first to its last version; the one that constraints.txt has is among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [torch] = [one for line in project["dependencies"] if (one := requirements.Requirement(line)).name == "torch"]
    assert sorted(one.operator for one in torch.specifier) == ["<", ">="]
    [tested] = re.findall(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch.specifier.contains(tested)
    [last] = [one.version for one in torch.specifier if one.operator == "<"]
    minor = [int(part) for part in tested.split(".")[:2]]
    assert last == f"{minor[0]}.{minor[1] + 1}"


def test_the_oldest_versions_that_are_asked_for_are_tried() -> None:
    """`make test-lowest` installs of every library the first release that pyproject.toml allows."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    asked = [requirements.Requirement(line) for line in lines]
    first = {one.name: version.version for one in asked for version in one.specifier if version.operator == ">="}
    tried = re.findall(r"^([a-z0-9-]+)==(.+)$", (ROOT / "constraints-lowest.txt").read_text(), re.MULTILINE)
    assert {name: version.removesuffix(".*") for name, version in tried} == first

"""Everything that a plain installation brings has a permissive licence; none is copyleft for who uses it."""

import importlib.metadata as metadata
import re
from collections.abc import Iterator

import pytest

requirements = pytest.importorskip("packaging.requirements", reason="needs packaging")

# Weak copyleft on the files themselves, which fedweave does not change: Mozilla's list of certificates, progress bars,
# and the patterns of files of mkdocs (and mypy), which only builds the documentation.
FILES_ALONE = {"certifi", "tqdm", "pathspec"}
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
    """What the package's metadata says of its licence, without the text of the licence itself."""
    about = package.metadata
    yield from filter(None, [about.get("License-Expression")])
    yield from (about.get("License") or "").strip().splitlines()[:1]
    yield from (line for line in about.get_all("Classifier") or [] if line.startswith("License"))


def test_nothing_copyleft_is_installed() -> None:
    found: dict[str, metadata.Distribution] = {}
    installed("fedweave", ("flare", "docs"), found)
    assert {"torch", "numpy", "typer"} <= set(found)
    copyleft = {name for name, package in found.items() if COPYLEFT.search(" ".join(stated(package)))}
    assert copyleft <= FILES_ALONE
    assert metadata.metadata("fedweave").get("License-Expression") in ("Apache-2.0", None)
    silent = [name for name, package in found.items() if not any(stated(package)) and name != "fedweave"]
    assert silent == []

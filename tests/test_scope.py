"""The page on what there is and what there is not says what the program has."""

import re
from pathlib import Path
from typing import get_args

import pytest
import typer

from fedweave.cli import COMMANDS, app
from fedweave.cli.export import Format
from fedweave.experiment import config
from fedweave.experiment.config.sections import Metric, SimulationEngine
from fedweave.learn import OPTIMIZERS
from fedweave.reports.tracking import TRACKERS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/scope.md").read_text(encoding="utf-8")
POOLING = {name for name, kind in config.registry("model").items() if "pool" in config.parameters("model", kind)}
# What people search the site for, and a name that something of the kind would have here.
SOUGHT = {
    "temporal": r"tgn|snapshot|memory",
    "heterogeneous": r"hetero|hgt|han$",
    "mixed precision": r"bfloat|float16|amp$",
    "UMAP": r"umap",
}


def names(text: str) -> set[str]:
    """What stands in code."""
    return set(re.findall(r"`([^`]+)`", text))


def row(heading: str, first: str) -> set[str]:
    """The names in the second column of the row that begins so, below a heading."""
    found = re.search(rf"^\| {re.escape(first)} \| (.*?) \|$", below(heading), re.MULTILINE)
    assert found is not None, first
    return names(found[1].split(" | ")[0])


def below(heading: str) -> str:
    """The text below a heading."""
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def sentence(begins: str) -> set[str]:
    """The names in the paragraph that begins so, without those in its links."""
    found = re.search(rf"^{re.escape(begins)}.*?(?=\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, begins
    return names(re.sub(r"\[[^\]]*\]\([^)]*\)", "", found[0].split(". ")[0]))


def column(heading: str, number: int) -> set[str]:
    """The names in a column of the table below a heading."""
    rows = [line.strip("| ").split(" | ") for line in below(heading).splitlines() if line.startswith("| ")]
    return {name for cells in rows[2:] if len(cells) > number for name in names(cells[number])}


def test_lists_of_models_partitions_and_engines_are_those_of_the_registries() -> None:
    assert column("Models", 1) == set(config.registry("model"))
    assert sentence("Small graphs need") == POOLING
    assert sentence("A data set is cut") == set(config.registry("partition"))
    assert column("Deployment", 0) == set(config.registry("engine"))


def test_choices_that_are_listed_are_those_of_the_settings() -> None:
    assert row("Training", "optimizers of clients") == set(OPTIMIZERS)
    assert row("Training", "numbers") == set(get_args(SimulationEngine.__annotations__["dtype"]))
    assert sentence("Models are selected") - {"[evaluation]"} == set(get_args(Metric))
    assert names(re.split(r"\. ", below("Deployment"))[0].split("\n\n")[-1]) == {one.value for one in Format}
    assert names(re.search(r"tracked by (.*?)\n", PAGE)[1]) == set(TRACKERS)  # type: ignore[index]
    parts = set(config.registry("part"))
    assert row("Training", "mini-batches") <= parts
    assert {"median", "trimmed_mean", "krum", "norm_bound"} <= parts & names(below("Privacy"))
    said = re.search(r"more than (\d+); `fedweave list", PAGE)
    assert said is not None
    assert int(said[1]) < len(config.registry("algorithm"))


@pytest.mark.parametrize("term", SOUGHT)
def test_what_is_not_there_is_found_by_its_name_and_is_not_there(term: str) -> None:
    """By every name of a plug-in, a setting, an option, an optimizer and a tracker."""
    absent = [line for line in below("What is not there").splitlines() if term.lower() in line.lower()]
    assert absent, "the page does not have it"
    assert "not there" in absent[0]
    known = {*OPTIMIZERS, *TRACKERS, *config.field_parameters(config.General), *get_args(Metric), *options()}
    for section in ("data", "model", "algorithm", "part", "engine"):
        for name, kind in config.registry(section).items():
            known |= {name, *config.parameters(section, kind)}
    assert not [name for name in known if re.search(SOUGHT[term], name)], "it is there now; say so on the page"


def test_what_is_there_is_not_listed_as_absent() -> None:
    """The commands and the algorithm of what people search for most."""
    absent = below("What is not there").lower()
    for term, name, known in [
        ("explanation", "explain", COMMANDS),
        ("unlearning", "forget", COMMANDS),
        ("drift", "drift", COMMANDS),
        ("asynchronous", "fedbuff", config.registry("algorithm")),
    ]:
        assert name in known
        assert term not in absent
        assert f"`{name}`" in PAGE
    assert column("After training", 1) <= set(COMMANDS)


def test_the_number_of_public_data_sets_is_theirs() -> None:
    """All but those that are generated or read from the user's own files."""
    of_users = {"digits", "synthetic", "transfers", "folder", "graphs", "tu", "parties", "members", "domains"}
    of_users |= {"npz", "shards"}
    public = set(config.registry("data")) - of_users - {"triples"}
    features = (ROOT / "docs/features.md").read_text(encoding="utf-8")
    assert f"{len(public)} public graphs" in features


def options() -> set[str]:
    """The names of all options of the commands that train."""
    group = typer.main.get_command(app)
    return {
        param.name or ""
        for name in ("run", "sweep", "predict", "export")
        for param in group.get_command(None, name).params  # type: ignore[attr-defined]
    }


def test_readers_get_to_the_page() -> None:
    assert "scope.md" in (ROOT / "mkdocs.yml").read_text()
    assert "(docs/scope.md)" in (ROOT / "README.md").read_text()

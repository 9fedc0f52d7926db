"""What clients share, from a run to its folder, its page and the terminal."""

from pathlib import Path

import numpy as np
import pytest

from fedweave.accounts.compliance import disclose
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.runs.files import PAIRS, read_pairs
from fedweave.experiment.runs.reading import Run, read_run
from fedweave.reports import figures
from fedweave.reports.html import render
from tests import commands
from tests.refusals import check_facts, refusal

SMALL = """
rounds = 2
[data]
name = "digits"
[partition]
name = "overlap"
clients = 6
overlap = 0.2
[model]
hidden = 8
[algorithm]
name = "fairgfl"
encoder = "random"
code_size = 60
local_steps = 1
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A run, and what it printed."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "small.toml").write_text(SMALL)
    printed = commands.run("run", folder / "small.toml", "--out", folder / "run")
    return read_run(folder / "run"), printed


def test_the_folder_keeps_the_true_and_the_estimated_matrices(finished: tuple[Run, str]) -> None:
    run, _ = finished
    built = build(config.read(run.directory / "config.toml", [], None)[0])
    assert set(run.pairs) == {"nodes", "links", "nodes_estimated", "links_estimated"}
    assert np.array_equal(run.pairs["nodes"], built.partition.pairs["nodes"])
    true, estimated = run.pairs["nodes"], run.pairs["nodes_estimated"]
    assert np.corrcoef(true.sum(1), estimated.sum(1))[0, 1] > 0.9


def test_measures_are_kept_for_every_round(finished: tuple[Run, str]) -> None:
    run, _ = finished
    rows = [row for row in run.metrics.to_pylist() if row["split"] == "server"]
    names = {"overlap_true", "overlap_estimated", "weight", "loss"}
    assert {(row["round"], row["metric"]) for row in rows} == {(n, name) for n in (1, 2) for name in names}


def test_the_page_draws_them_and_says_what_remains(finished: tuple[Run, str]) -> None:
    run, _ = finished
    drawn = figures.pairs(run)
    assert [panel.title for panel in drawn.panels] == [
        "links, true", "links, estimated", "nodes, true", "nodes, estimated"
    ]  # fmt: skip
    assert np.array_equal(drawn.panels[2].values, run.pairs["nodes"])
    page = render([run])
    assert 'id="figure-pairs-0"' in page
    said = " ".join(disclose(run).sentences)
    check_facts(said, "per node: ε = 180")
    check_facts(said, "per pair of nodes: ε = 1")
    check_facts(said, "99.5%", "27")


def test_the_terminal_lists_what_is_shared(finished: tuple[Run, str]) -> None:
    run, printed = finished
    check_facts(printed, f"{run.pairs['nodes'].sum(1).mean() / 5:.3f}")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert read_pairs(tmp_path) == {}
    (tmp_path / PAIRS).write_bytes(b"PK nonsense")
    with refusal("file.damaged", "pairs.npz"):
        read_pairs(tmp_path)

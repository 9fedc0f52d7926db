"""Pictures of embeddings: scikit-learn's places, a color and a symbol for each class, and what cannot be drawn."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.decomposition import PCA

import fedweave
from fedweave.experiment.runs.files import write_table
from fedweave.experiment.runs.reading import Run, read_run
from fedweave.reports import drawing, panels
from fedweave.reports.embeddings import MAX_EXAMPLES, picture
from tests.refusals import check_facts, refusal

DOCUMENT: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "synthetic", "nodes": 120, "classes": 3, "features": 6},
    "partition": {"clients": 3},
    "model": {"hidden": 4},
    "algorithm": {"name": "fedavg", "local_steps": 1},
    "engine": {"threads": 1},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(fedweave.run(DOCUMENT, out=tmp_path_factory.mktemp("runs") / "run").directory)


def clouds(run: Run, way: str) -> tuple[panels.Cloud, ...]:
    figure = picture(run, way)
    [panel] = figure.panels
    assert [key.name for key in figure.legend] == [mark.name for mark in panel.marks]
    return panel.marks


def test_test_examples_stand_where_scikit_learn_puts_them(directory: Path) -> None:
    table = fedweave.load_run(directory).embeddings()
    tested = table.filter(pa.compute.equal(table["split"], "test"))
    rows = np.stack([tested[f"e_{at}"].to_numpy() for at in range(4)], 1)
    wanted = {tuple(place) for place in PCA(2).fit_transform(rows).astype(float).round(4).tolist()}
    marks = clouds(read_run(directory), "pca")
    places = {(round(x, 4), round(y, 4)) for mark in marks for x, y in zip(mark.x, mark.y, strict=True)}
    signs = [{(a * x, b * y) for x, y in places} for a in (1, -1) for b in (1, -1)]  # an axis has no direction
    assert wanted in signs
    counts = {f"class {name}": tested["true"].to_pylist().count(name) for name in range(3)}
    assert {mark.name: len(mark.x) for mark in marks} == counts
    assert len({mark.symbol for mark in marks}) == len({mark.tone for mark in marks}) == 3


def test_the_page_has_the_picture_where_it_is_asked_for(directory: Path) -> None:
    plain, drawn = fedweave.report(directory), fedweave.report(directory, embeddings="tsne")
    assert set(drawn.figures) - set(plain.figures) == {"embeddings"}
    check_facts(drawn.figures["embeddings"].html, "t-SNE")
    assert fedweave.report(directory, embeddings="tsne").page == drawn.page  # no draw of its own


def test_a_table_of_embeddings_is_used_and_many_are_thinned(directory: Path) -> None:
    run = replace(read_run(directory), directory=directory.parent)
    many = 3 * MAX_EXAMPLES
    rows = np.random.default_rng(0).normal(size=(many, 3)).astype(np.float32)
    about = {"client": ["a"] * many, "node": [*range(many)], "split": ["test"] * many}
    about |= {"true": ["0", "1", None] * MAX_EXAMPLES} | {f"e_{at}": rows[:, at] for at in range(3)}
    write_table(directory.parent / "embeddings.parquet", pa.table(about))
    marks = clouds(run, "pca")
    assert sum(len(mark.x) for mark in marks) == MAX_EXAMPLES
    assert [mark.name for mark in marks] == ["class 0", "class 1", "unknown"]
    drawn = drawing.panel_svg(panels.Panel("t", marks))
    assert len(drawn) < 60_000
    assert len(re.findall("<title>", drawn)) == 3


@pytest.mark.parametrize(("way", "code"), [("tnse", "user.embeddings"), ("umap", "user.embeddings")])
def test_other_pictures_are_refused(directory: Path, way: str, code: str) -> None:
    with refusal(code):
        fedweave.report(directory, embeddings=way)

"""Pictures of embeddings: the last layer's input for a run's examples, in two dimensions, colored by class."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.settings import nearest
from fedweave.core.text import counted
from fedweave.errors import UserError
from fedweave.experiment.runs.files import EMBEDDINGS, read_table
from fedweave.experiment.runs.reading import Run
from fedweave.reports import colors, drawing
from fedweave.reports.panels import Cloud, Figure, Panel, legend_of

MOST = 1000  # examples that are drawn
_SYMBOLS = tuple(drawing.CLOUD_SYMBOLS)


def tsne(rows: np.ndarray) -> np.ndarray:
    """Places [e, 2] that keep neighbors of rows [e, width] close (van der Maaten and Hinton 2008)."""
    from sklearn.manifold import TSNE  # slow to import

    perplexity = min(30.0, (len(rows) - 1) / 3)
    placed: np.ndarray = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(rows)
    return placed


def pca(rows: np.ndarray) -> np.ndarray:
    """Rows [e, width] on their two axes of largest variance, [e, 2]."""
    from sklearn.decomposition import PCA  # slow to import

    placed: np.ndarray = PCA(2, random_state=0).fit_transform(rows)
    return placed


WAYS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {"tsne": ("t-SNE", tsne), "pca": ("PCA", pca)}


def check(way: str) -> None:
    """Reject an unknown way to draw embeddings.

    Raises:
        UserError: there is no such way; the message lists all.
    """
    if way not in WAYS:
        raise UserError(
            f"embeddings = {way!r}: no such picture.{nearest(way, WAYS)} Choose {' or '.join(WAYS)}.",
            code="user.embeddings",
        )


def picture(run: Run, way: str) -> Figure | None:
    """The embeddings of the run's test examples, or of all examples if none is for testing, by `way` of `WAYS`.

    At most `MOST` examples are drawn. The embeddings come from embeddings.parquet if `fedweave predict --embeddings`
    wrote it, else from the models that clients use. Returns None for fewer than four examples.

    Raises:
        UserError: the run has no embeddings (`experiment.runs.predictions.embeddings_of_run`).
    """
    check(way)
    if (run.directory / EMBEDDINGS).is_file():
        table = read_table(run.directory, EMBEDDINGS)
    else:
        from fedweave.apply.predictions import embeddings_of_run  # with models, which other pages do without

        table = embeddings_of_run(run.directory)
    if "split" in table.column_names and len(tested := table.filter(pc.field("split") == "test")):
        table = tested
    table = table.take(np.linspace(0, len(table) - 1, min(len(table), MOST)).round().astype(int))
    if len(table) < 4:
        return None
    columns = [name for name in table.column_names if name.startswith("e_")]
    rows = np.stack([table[name].to_numpy() for name in columns], 1)
    rows = rows if rows.shape[1] > 1 else np.repeat(rows, 2, 1)
    name, place = WAYS[way]
    clouds = _clouds(table, place(rows), run.classes)
    title = f"{name} of {counted(len(table), 'example' if 'split' in table.column_names else 'node')}"
    blank = {0.0: ""}  # places have no unit
    return Figure((Panel(title, clouds, form=lambda value: "", ticks=blank),), legend_of(clouds))


def _clouds(table: pa.Table, places: np.ndarray, names: Sequence[str]) -> tuple[Cloud, ...]:
    """A cloud for each class in its order, with a color and a symbol; one for all where no class is known."""
    if "true" not in table.column_names:
        x, y = places.T.tolist()
        return (Cloud("examples" if "split" in table.column_names else "nodes", x, y, colors.run_tone(0)),)
    true = ["" if value is None else str(value) for value in table["true"].to_pylist()]
    known = [name for name in names if name in true] or sorted({*true} - {""}, key=lambda name: (len(name), name))
    tones = dict(zip(known, colors.class_tones(len(known)), strict=True))
    clouds = []
    for at, name in enumerate(known + [""] * ("" in true)):
        x, y = places[np.array([one == name for one in true])].T.tolist()
        tone, symbol = tones.get(name, colors.tone("#8A8A8A")), _SYMBOLS[at % len(_SYMBOLS)]
        clouds.append(Cloud((name if names else f"class {name}") if name else "unknown", x, y, tone, symbol))
    return tuple(clouds)

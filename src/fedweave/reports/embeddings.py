"""Pictures of embeddings: the last layer's input for a run's examples, in two dimensions, colored by class."""

import numpy as np
import pyarrow.compute as pc

from fedweave.core.settings import nearest
from fedweave.core.text import counted
from fedweave.errors import UserError
from fedweave.experiment.runs.files import EMBEDDINGS, read_table
from fedweave.experiment.runs.reading import Run
from fedweave.reports import colors, drawing
from fedweave.reports.panels import Cloud, Figure, Panel, legend_of

MAX_EXAMPLES = 1000
_SYMBOLS = tuple(drawing.CLOUD_SYMBOLS)


WAYS = {"tsne": "t-SNE", "pca": "PCA"}


def check(way: str) -> None:
    """Reject an unknown way to draw embeddings."""
    if way not in WAYS:
        raise UserError(
            f"embeddings = {way!r}: no such picture.{nearest(way, WAYS)} Choose {' or '.join(WAYS)}.",
            code="user.embeddings",
        )


def picture(run: Run, way: str) -> Figure | None:
    """The embeddings of the run's test examples, or of all examples if none is for testing, by `way` of `WAYS`.

    "tsne" keeps neighbors close (van der Maaten and Hinton 2008); "pca" shows the two axes of largest variance. At most
    `MAX_EXAMPLES` are drawn. The embeddings come from embeddings.parquet if `fedweave embed` wrote it,
    else from the models that clients use. Returns None for fewer than four examples.
    """
    check(way)
    if (run.directory / EMBEDDINGS).is_file():
        table = read_table(run.directory, EMBEDDINGS)
    else:
        from fedweave.apply.embeddings import embeddings  # with models, which other pages do without

        table = embeddings(run.directory).table
    of_examples = "split" in table.column_names  # otherwise a row is a node
    if of_examples:
        tested = table.filter(pc.field("split") == "test")
        table = tested if len(tested) else table
    table = table.take(np.linspace(0, len(table) - 1, min(len(table), MAX_EXAMPLES)).round().astype(int))
    if len(table) < 4:
        return None

    # 1. A place for each example.
    columns = [name for name in table.column_names if name.startswith("e_")]
    rows = np.stack([table[name].to_numpy() for name in columns], 1)  # [examples, width]
    rows = rows if rows.shape[1] > 1 else np.repeat(rows, 2, 1)
    if way == "tsne":
        from sklearn.manifold import TSNE  # slow to import

        reduction = TSNE(2, perplexity=min(30.0, (len(rows) - 1) / 3), init="pca", random_state=0)
    else:
        from sklearn.decomposition import PCA  # slow to import

        reduction = PCA(2, random_state=0)
    places = reduction.fit_transform(rows)  # [examples, 2]

    # 2. A cloud for each class in its order, with a color and a symbol; one for all where no class is known.
    clouds = []
    if "true" not in table.column_names:
        x, y = places.T.tolist()
        clouds.append(Cloud("examples" if of_examples else "nodes", x, y, colors.run_tone(0)))
    else:
        true = np.array(["" if value is None else str(value) for value in table["true"].to_pylist()])
        names = [name for name in run.classes if name in true]
        names = names or sorted({*true.tolist()} - {""}, key=lambda name: (len(name), name))
        tones = dict(zip(names, colors.class_tones(len(names)), strict=True))
        for index, name in enumerate([*names, ""] if "" in true else names):
            x, y = places[true == name].T.tolist()
            title = name if run.classes else f"class {name}"
            tone, symbol = tones.get(name, colors.tone("#8A8A8A")), _SYMBOLS[index % len(_SYMBOLS)]
            clouds.append(Cloud(title if name else "unknown", x, y, tone, symbol))
    title = f"{WAYS[way]} of {counted(len(table), 'example' if of_examples else 'node')}"
    blank = {0.0: ""}  # places have no unit
    panel = Panel(title, tuple(clouds), form=lambda value: "", ticks=blank)
    return Figure((panel,), legend_of(clouds))

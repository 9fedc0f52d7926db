"""The model card: what the model is, what data it wants, how good it was, and what left whom to make it."""

import re
from collections.abc import Iterable, Sequence

from fedweave.core.records import Record
from fedweave.core.text import counted, printable
from fedweave.experiment.runs.form import Form
from fedweave.export.source import AT_SITES, HANDED_OUT, Source
from fedweave.metrics.judging import of_best
from fedweave.report.disclosure import disclose
from fedweave.report.groups import GAPS, NOTES
from fedweave.report.notes import notes
from fedweave.report.reading import Run

_SHOWN = (
    ("pooled/average_precision", "average precision, all members' test examples together"),
    ("pooled/recall_at_1", "share of the positive test examples among the hundredth with the highest scores"),
    ("pooled/recall", "share of the positive test examples that are flagged from the threshold on"),
    ("pooled/precision", "share of positives among the test examples that are flagged"),
    ("pooled/brier", "Brier score of the probabilities"),
    ("pooled/calibration_error", "expected calibration error of the probabilities, 15 bins"),
    ("global/macro_f1", "macro F1"),
    ("global/accuracy", "test accuracy of the global model, or of all clients' test examples together"),
    ("local/accuracy", "mean over clients of the accuracy on their own test examples, of the models that they use"),
    ("trained/accuracy", "the same of the models right after their own training"),
    ("global/loss", "test loss, of the examples of the global accuracy"),
    ("pooled/auc", "area under the ROC curve, all members' test examples compared with each other"),
    ("within/auc", "area under the ROC curve over pairs of test examples of the same member, of {members}"),
    ("global/auc", "area under the ROC curve on the global test set or, without one, within members"),
    *(
        (f"groups/global/{gap}", f"{name}: {NOTES[gap]} between the two groups, of the examples of the global accuracy")
        for gap, name in GAPS.items()
    ),
)
_EXAMPLES = {
    "edge": "; an example is one edge, such as a transfer, and the model gives logits for each row of edge_index"
}
_NUMBERS = ": (x - shift) / divisor, 0 where that is null, with the numbers in model.json"
_SCALED = {
    "none": "as they are",
    AT_SITES: "as in the sites' own data after what each one's site.toml says of it (normalise, categories)",
    HANDED_OUT: "as `sites init --split` handed them out: if its configuration has a normalise other than none, scaled "
    "with numbers of the whole data set that no site has",
    "binary": "1 where not 0",
    "row": "each row divided by the sum of its absolute values",
    "scale": f"each column divided by its standard deviation over the run's nodes{_NUMBERS}",
    "standard": f"each column to mean 0 and standard deviation 1 over the run's nodes{_NUMBERS}",
    "auto": f"columns that measure something to mean 0 and standard deviation 1 at each client, with the client's own "
    f"numbers, for the global model a typical client's{_NUMBERS}",
    "minmax": f"each column to [-1, 1] over the run's nodes{_NUMBERS}",
}


def card(run: Run, source: Source, client: str | None, usage: str) -> str:
    """Markdown. client: whose model it is, if not the server's; usage: how its files are used."""
    algorithm, dataset, metrics = run.summary["algorithm"], run.summary["dataset"], run.summary["metrics"]
    best, rounds = source.when == "best", counted(run.summary["rounds"], "round")
    after = f"round {metrics['best_val/round']:g}, of {rounds} the best on validation examples," if best else rounds
    metrics = of_best(metrics) if best else metrics
    whose = "the server's global model" if source.which == "global" else f"the {source.which} model of {client}"
    own = (leaf for name, leaf in source.weights.items() if not name.endswith(".eps"))  # PyG's GIN has it, always 0
    weights = sum(leaf.numel() for leaf in own)
    parts = [
        f"# {plain(f'{algorithm} on {dataset}')}",
        f"This is {plain(whose)} after {after} with "
        f"{counted(run.summary['clients'], 'client')} (seed {source.config.general.seed}), exported by fedweave.",
        usage,
        "## Architecture",
        _listed([*_settings(source.config.model.plain()), f"weights: {weights:,} numbers, float32"]),
        "## Data form",
        _listed(_form(source.form)),
        "## Metrics",
        f"Of the whole run, after {'that round' if best else 'its last evaluation'}; this model's own share in them is "
        "not told apart.",
        *([plain(said)] if (said := _judged(run)) else []),
        *([_flagged(source)] if source.flagging is not None else []),
        _listed(f"{about}: {metrics[name]:.4f}" for name, about in _shown(metrics)),
        "## What left whom",
        _listed(disclose(run).sentences),
        "A model can reveal something of the data that it was trained on. Whoever gets these files gets that, too.",
    ]
    return "\n\n".join(parts) + "\n"


def _judged(run: Run) -> str:
    """Why not accuracy judges; "" where it does."""
    found = notes(run.summary["metrics"])
    return found.get("rare") or found.get("judged") or ""


def _flagged(source: Source) -> str:
    """From which probability on an example is flagged."""
    positive, threshold = source.flagging or (0, 0.0)
    name = source.form.labels[positive] if source.form.labels else f"class {positive}"
    return f"An example is flagged as {plain(str(name))} from the probability {threshold:.4g} on (model.json)."


def _shown(found: Record) -> list[tuple[str, str]]:
    """Metrics and what they are; the "global" AUC only where it is not that within members."""
    members = counted(int(found.get("within/members") or 0), "member")
    same = found.get("within/auc") is not None and found["within/auc"] == found.get("global/auc")
    return [
        (name, about.format(members=members))
        for name, about in _SHOWN
        if found.get(name) is not None and not (same and name == "global/auc")
    ]


def _settings(section: Record) -> list[str]:
    return [f"{key}: {value}" for key, value in section.items()]


def _form(form: Form) -> list[str]:
    """The features, their scaling, the classes and the edges that the model wants."""
    named = f": {_several(form.columns)}" if form.columns else ", in the order of the data set's"
    classes = _several(form.labels) if form.labels else f"0 to {form.classes - 1}"
    return [
        f"examples: {form.example}s{_EXAMPLES.get(form.example, '')}",
        f"features: {counted(form.features, 'column')}, float32{named}",
        f"scaling: {_SCALED[form.scaling['how']]}",
        f"classes, in the order of the logits: {classes}",
        *(
            _edges(form.edges)
            if form.edges
            else ["edges: undirected, each in both directions, without self loops and weights"]
        ),
    ]


def _edges(edges: Record) -> list[str]:
    """What edges are given as, and their features."""
    kind = "directed, from source to target" if edges["directed"] else "undirected"
    listed = [f"edges: {kind}, each once, in rows of edge_index; parallel ones and loops are kept"]
    if not edges["features"]:
        return listed
    names = f": {_several(edges['columns'])}" if edges.get("columns") else ", in the order of the data set's"
    scaling = _SCALED[edges.get("scaling", {"how": AT_SITES})["how"]].replace("nodes", "edges")
    return [
        *listed,
        f"features of edges, edge_attr: {counted(edges['features'], 'column')}, float32{names}",
        f"scaling of these: {scaling}",
    ]


def _several(names: Sequence[str], most: int = 200) -> str:
    more = f" and {len(names) - most} more (see model.json)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _listed(items: Iterable[object]) -> str:
    return "\n".join(f"- {plain(str(item))}" for item in items)


def plain(words: str) -> str:
    """Words of others on one line, without what Markdown or HTML would make of them."""
    return re.sub(r"([\\`*\[\]<>#|]|(?<!\w)_|_(?!\w))", r"\\\1", printable(" ".join(words.split())))

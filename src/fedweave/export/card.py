"""The model card: what a model is and is for, the data that it needs, how good it was, and the data flow of its
training, as its owner says and as the run shows."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import pyarrow.compute as pc
from pydantic import Field

from fedweave.accounts.compliance import disclose
from fedweave.accounts.ledger import period
from fedweave.core.text import counted, printable
from fedweave.core.tree import leaves
from fedweave.core.types import Record
from fedweave.experiment.config import config_hash, field_parameters, load
from fedweave.experiment.config.choices import check_values
from fedweave.experiment.config.toml import check_keys
from fedweave.experiment.runs.data_form import DataForm
from fedweave.experiment.runs.reading import Run
from fedweave.export.source import AT_SITES, HANDED_OUT, Source
from fedweave.metrics.selection import lower, of_best, of_members, sample_words, selection_metric_of, title_of
from fedweave.privacy.accountant import bounds, remarks
from fedweave.reports.notes import RunFacts, notes
from fedweave.reports.result_names import GAPS
from fedweave.reports.verdict import verdict_of

Words = Annotated[str, Field(max_length=10_000)]


@dataclass(frozen=True)
class CardSettings:
    """What only the owner of a model knows: the file that `--card` names.

    intended_use: what the model is for, and by whom.
    limits:       what it is not for, and where it fails.
    data_period:  from when the training data is.
    contact:      who answers questions about the model.
    """

    intended_use: Words = ""
    limits: Words = ""
    data_period: Words = ""
    contact: Words = ""


def read_card(path: Path | None) -> CardSettings:
    """The settings in a TOML file; empty without a file.

    Raises:
        ConfigError: it cannot be read, or has other keys or values.
    """
    if path is None:
        return CardSettings()
    fields, table = field_parameters(CardSettings), load(path)
    check_keys("card", table, list(fields))
    return CardSettings(**check_values("card.", table, fields))


NO_SETTINGS = CardSettings()
_PLACES = {"global": "on {test}", "local": "mean over clients on their own test examples, of the models that they use"}
_OF_NUMBERS = {
    "rmse": "root mean squared error in the data's units",
    "mae": "mean absolute error in the data's units",
    "r2": "R²",
    "rmse_of_mean": "root mean squared error of predicting the mean of the training examples",
}
_SHOWN = {}  # {metric: its description}, in the card's order
for _metric, _name in _OF_NUMBERS.items():
    for _place, _of in _PLACES.items():
        _SHOWN[f"{_place}/{_metric}"] = f"{_name}, {_of}"
_SHOWN |= {
    "pooled/average_precision": "average precision, all members' test examples together",
    "pooled/recall_at_1": "share of the positive test examples among the hundredth with the highest scores",
    "pooled/recall": "share of the positive test examples that are flagged from the threshold on",
    "pooled/precision": "share of positives among the test examples that are flagged",
    "pooled/brier": "Brier score of the probabilities",
    "pooled/calibration_error": "expected calibration error of the probabilities, 15 bins",
    "global/macro_f1": "macro F1",
    "global/accuracy": "accuracy on {test}",
    "local/accuracy": "mean over clients of the accuracy on their own test examples, of the models that they use",
    "trained/accuracy": "mean over clients of the accuracy on their own test examples, of each model right after local "
    "training",
    "global/loss": "test loss, of the examples of the global accuracy",
    "pooled/auc": "area under the ROC curve, all members' test examples compared with each other",
    "within/auc": "area under the ROC curve over pairs of test examples of the same member, of {members}",
    "global/auc": "area under the ROC curve on the global test set or, without one, within members",
}
_EXAMPLES = {
    "edge": "; an example is one edge, such as a transfer, and the model gives logits for each row of edge_index"
}
_NUMBERS = (
    ": (x - shift) / divisor, 0 where that is null, and asinh(x) instead of x where asinh is true, with the numbers in "
    "model.json"
)
_SCALED = {
    "none": "as they are",
    AT_SITES: "as in the sites' own data, after the conversions in each site.toml (normalize, categories)",
    HANDED_OUT: "as `sites init --split` handed them out: if its configuration has a normalize other than none, scaled "
    "with numbers of the whole data set that no site has",
    "binary": "1 where not 0",
    "row": "each row divided by the sum of its absolute values",
    "scale": f"each column divided by its standard deviation over the run's nodes{_NUMBERS}",
    "standard": f"each column to mean 0 and standard deviation 1 over the run's nodes{_NUMBERS}",
    "auto": f"columns that measure something to mean 0 and standard deviation 1 at each client, with the client's own "
    f"numbers, for the global model a typical client's{_NUMBERS}",
    "minmax": f"each column to [-1, 1] over the run's nodes{_NUMBERS}",
}


def card(run: Run, source: Source, client: str | None, usage: str, settings: CardSettings = NO_SETTINGS) -> str:
    """The model card as Markdown. client: the owner of the model, if not the server; usage: how to use its files;
    settings: what only its owner knows."""
    metrics, config = run.summary["metrics"], run.config
    best, rounds = source.when == "best", counted(run.summary["rounds"], "round")
    after = f"round {metrics['best_val/round']:g}, of {rounds} the best on validation examples," if best else rounds
    metrics = of_best(metrics) if best else run.last_metrics or metrics
    sampled = run.ranks_sampled(run.result_round if best else run.last_evaluation)
    whose = "the server's global model" if source.which == "global" else f"the {source.which} model of {client}"

    # 1. which model it is, from when, whom to ask, and what it is for
    origin = [] if source.scorer is None else [f"model: {source.scorer.name}, the digits that scores have"]
    origin += [
        f"run: SHA-256 {config_hash(config)} of its configuration",
        f"trained: {period(run.ledger)}",
        f"exported: {datetime.now(UTC):%Y-%m-%d}",
        f"contact: {settings.contact or 'not stated (contact in the file of --card)'}",
    ]
    use = [settings.intended_use] if settings.intended_use else []
    if config.get("purpose"):
        use.append(f"purpose of the run: {config['purpose']}")
    if config.get("requester"):
        use.append(f"the run was asked for by: {config['requester']}")

    # 2. the data that it was trained on, and its weights
    data = [f"period: {settings.data_period or 'not stated (data_period in the file of --card)'}"]
    if run.partition is not None:
        counts = [pc.sum(run.partition[split]).as_py() for split in ("train", "val", "test")]
        if None not in counts:
            words = "{:,} for training, {:,} for validation, {:,} for the test".format(*counts)
            data.append(f"examples of all {counted(run.members, 'member')}: {words}")
    architecture = [f"{key}: {value}" for key, value in source.config.model.plain().items()]
    weights = sum(leaf.numel() for _, leaf in leaves(source.weights))
    architecture.append(f"weights: {weights:,} numbers, float32")

    # 3. its metrics, and why accuracy is not the selection metric
    facts = RunFacts.of_summary(run.summary, run.config)
    texts = notes(run.summary["metrics"], facts)
    caveat = texts.get("rare") or texts.get("judged")
    remarks_on_metrics = [plain(caveat)] if caveat else []
    if source.flagging is not None:
        positive, threshold = source.flagging
        name = source.form.labels[positive] if source.form.labels else f"class {positive}"
        remarks_on_metrics.append(
            f"An example is flagged as {plain(str(name))} from the probability {threshold:.4g} on (model.json)."
        )
    group_gaps = gaps(metrics)

    # 4. the ε of what members sent
    spent = bounds(run.ledger)
    privacy = ["No differential privacy: members added no noise whose ε is known."]
    if spent:
        privacy = [*map(str, spent), *remarks(spent)]
        if not run.between_sites:
            privacy.append("This was a simulation, whose noise protects nobody.")
    title = f"{run.summary['algorithm']} on {run.summary['dataset']}"
    parts = [
        f"# {plain(title)}",
        f"This is {plain(whose)} after {after} with "
        f"{counted(run.summary['clients'], 'client')} (seed {source.config.general.seed}), exported by fedweave.",
        usage,
        _bullets(origin),
        "## Intended use",
        _bullets(use or ["Its owner states no intended use (intended_use in the file of --card)."]),
        "## Limits",
        _bullets(_limits(run, metrics, sampled, settings)),
        "## Training data",
        _bullets(data),
        "## Architecture",
        _bullets(architecture),
        "## Data form",
        _bullets(_form(source.form) if source.config.links is None else _form_of_pairs(source.form)),
        "## Metrics",
        f"Of the whole run, after {'that round' if best else 'its last evaluation'}; they do not "
        "show this model separately.",
        *remarks_on_metrics,
        _bullets(f"{about}: {metrics[name]:.4f}" for name, about in _card_metrics(metrics, sampled, facts.test)),
        *(["## Groups of people", *group_gaps] if group_gaps else []),
        "## Privacy",
        _bullets(privacy),
        "## Data flow",
        _bullets(disclose(run).sentences),
        "A model can reveal something of the data that it was trained on. Recipients of these files get that, too.",
    ]
    return "\n\n".join(parts) + "\n"


def _limits(run: Run, metrics: Record, sampled: bool, settings: CardSettings) -> list[str]:
    """Where the model ends: as its owner says, and what follows from the run."""
    lines = [settings.limits] if settings.limits else []
    lines += [
        "It takes data of the form below. The command fedweave drift says whether new data still looks like it.",
        f"It was trained once, with seed {run.config.get('seed', 0)}: another seed gives other numbers.",
    ]
    metric = of_members(selection_metric_of(metrics))
    worst, best = (metrics.get(f"fairness/{end}_{metric}") for end in ("worst", "best"))
    if worst is not None and best is not None:
        low, high = sorted([float(worst), float(best)])
        lines.append(
            f"Members differ: their {title_of(metric)} is {low:.4f} to {high:.4f} on their own test "
            f"examples{sample_words(metric, sampled)}; the "
            f"{'highest' if lower(metric) else 'lowest'} is the worst."
        )
    verdict = verdict_of(run.summary, run.metrics)
    if verdict is not None:
        lines.append(verdict.sentence)
    return lines


def gaps(metrics: Record) -> list[str]:
    """A table of the gaps between groups of people, each with what chance gives; [] without groups."""
    rows = []
    for gap, about in GAPS.items():
        value, floor = (metrics.get(f"groups/global/{gap}{end}") for end in ("", "_floor"))
        if value is not None:
            rows.append(f"| {about.title}: {about.note} | {value:.4f} | {'-' if floor is None else f'{floor:.4f}'} |")
    if not rows:
        return []
    head = ["| gap between the two groups | value | by chance |", "| --- | ---: | ---: |"]
    return [
        "\n".join([*head, *rows]),
        "By chance is the gap that a model which ignores groups is expected to show here.",
    ]


def _card_metrics(metrics: Record, sampled: bool, test: str) -> list[tuple[str, str]]:
    """The card's metrics and their descriptions, with the run's selection metric.

    The "global" AUC is left out where it is the same as the AUC within members. sampled: whether ranks are of
    a sample. test: the examples of "global" metrics.
    """
    members = counted(int(metrics.get("within/members") or 0), "member")
    same = metrics.get("within/auc") is not None and metrics["within/auc"] == metrics.get("global/auc")
    descriptions, metric = dict(_SHOWN), selection_metric_of(metrics)
    if all(name.rpartition("/")[2] != metric for name in descriptions):
        descriptions |= {f"{place}/{metric}": f"{title_of(metric)}, {of}" for place, of in _PLACES.items()}
    rows = []
    for name, about in descriptions.items():
        if metrics.get(name) is not None and not (same and name == "global/auc"):
            words = sample_words(name.rpartition("/")[2], sampled)
            rows.append((name, about.format(members=members, test=test) + words))
    return rows


def _form(form: DataForm) -> list[str]:
    """The features, their scaling, the classes and the edges that the model needs."""
    column_names = f": {_several(form.columns)}" if form.columns else ", in the order of the data set's"
    lines = [
        f"examples: {form.example}s{_EXAMPLES.get(form.example, '')}",
        f"features: {counted(form.features, 'column')}, float32{column_names}",
        f"scaling: {_SCALED[form.scaling['how']]}",
        _outputs(form),
    ]
    if form.graph_columns is not None:
        count = counted(form.graph_columns["width"], "column")
        lines.append(
            f"the last {count} are of whole graphs: in the row of each graph's first node, 0 at its other nodes"
        )
    edges = form.edges
    if not edges:
        return [*lines, "edges: undirected, each in both directions, without self loops and weights"]
    kind = "directed, from source to target" if edges["directed"] else "undirected"
    lines.append(f"edges: {kind}, each once, in rows of edge_index; parallel ones and loops are kept")
    if edges["features"]:
        names = f": {_several(edges['columns'])}" if edges.get("columns") else ", in the order of the data set's"
        scaling = _SCALED[edges.get("scaling", {"how": AT_SITES})["how"]].replace("nodes", "edges")
        lines.append(f"features of edges, edge_attr: {counted(edges['features'], 'column')}, float32{names}")
        lines.append(f"scaling of these: {scaling}")
    return lines


def _form_of_pairs(form: DataForm) -> list[str]:
    """The form of data for a model that scores pairs of nodes."""
    relations = (form.edges or {}).get("relations", 0)
    return [
        "examples: pairs of nodes; the model gives a score for each column of pairs, whose sigmoid is the probability "
        "of a link",
        *_form(replace(form, example="node", edges=None))[1:3],
        "edges: the links that carry messages, each in both directions",
        *([f"relation: of each pair, a number from 0 to {relations - 1}"] if relations > 1 else []),
    ]


def _outputs(form: DataForm) -> str:
    """The outputs of the model for each example."""
    if form.targets is None:
        classes = _several(form.labels) if form.labels else f"0 to {form.classes - 1}"
        return f"classes, in the order of the logits: {classes}"
    names = _several(form.targets["names"] or [*map(str, range(form.outputs))])
    if form.target_scale is None:
        return f"labels, in the order of the logits, whose probabilities are 1 / (1 + exp(-logit)): {names}"
    return f"numbers, in the data's units (the scale is part of the module): {names}"


def _several(names: Sequence[str], limit: int = 200) -> str:
    more = f" and {len(names) - limit} more (see model.json)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _bullets(items: Iterable[object]) -> str:
    return "\n".join(f"- {plain(str(item))}" for item in items)


def plain(words: str) -> str:
    """Words from outside on one line, with the characters escaped that have a meaning in Markdown or HTML."""
    return re.sub(r"([\\`*\[\]<>#|]|(?<!\w)_|_(?!\w))", r"\\\1", printable(" ".join(words.split())))

"""The page about what a run forgot: what it cost, what the models still show, and their distance to the exact one."""

from rich.filesize import decimal

from fedweave.accounts.document import Document, Section, grid
from fedweave.apply.forgetting_record import EXACT, RECORD
from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.errors import listed
from fedweave.metrics.selection import lower, title_of
from fedweave.reports.cells import NONE


def headline(record: Record) -> str:
    """What was forgotten, in a sentence."""
    about = record["forgotten"]
    names = about["clients"]
    if "site" in record and not names:
        names = [record["site"]]
    whose = f" of {listed(names)}" if names else ""
    return (
        f"{record['run']} without {counted(about['examples'], about['kind'])}{whose}, {about['training']:,} of them "
        f"training examples, of {about['of']:,} in all."
    )


def verdict(record: Record) -> list[str]:
    """What membership inference says, a sentence for each model."""
    sentences = []
    for name, model in record["models"].items():
        attack = model["attack"]
        if attack is not None:
            side = "above" if attack["advantage"] > attack["by_chance"] else "not above"
            sentences.append(
                f"{name.capitalize()}: the advantage of {attack['advantage']:.3f} is {side} {attack['by_chance']:.3f}, "
                "which chance exceeds in 5 % of cases."
            )
    return sentences


def quality(record: Record) -> list[dict[str, str]]:
    """A row for each model: its metric, its cost, and its distance to the exact model."""
    metric = record["metric"]
    head = f"{title_of(metric)}{' (lower is better)' if lower(metric) else ''}"
    rows = []
    for name, model in record["models"].items():
        row = {"model": name, head: f"{model['metric']:.4f}", "rounds": f"{model['rounds']:,}"}
        row["seconds"] = NONE if model["seconds"] is None else f"{model['seconds']:.3g}"
        row["traffic"] = NONE if model["bytes"] is None else decimal(model["bytes"])
        row["weights apart"] = row["predictions apart"] = row["other class"] = NONE
        if name != EXACT:
            row["weights apart"] = f"{model['parameters']:.3f}"
            row["predictions apart"] = f"{model['predictions']:.4f}"
            row["other class"] = NONE if model["disagree"] is None else f"{model['disagree']:.1%}"
        rows.append(row)
    return rows


def inference(record: Record) -> list[dict[str, str]]:
    """A row for each model: what membership inference finds."""
    rows = []
    for name, model in record["models"].items():
        row = {"model": name}
        for key, head in (("auc", "AUC"), ("advantage", "advantage"), ("by_chance", "by chance")):
            row[head] = f"{model['attack'][key]:.3f}" if model["attack"] else NONE
        rows.append(row)
    return rows


def document(record: Record) -> Document:
    """The page."""
    site = (("site", record["site"]),) if "site" in record else ()
    facts = (*site, ("run", record["run"]), ("written", record["written"].replace("T", " ").replace("+00:00", " UTC")))
    hashes = []
    if record["forgotten"].get("list") is not None:
        hashes.append(f"{record['forgotten']['list']}  the ids, each as a hash keyed with the site's secret")
    hashes.append(f"{record['configuration']}  configuration, before")
    hashes += [f"{digest}  configuration, {name}" for name, digest in record["configurations"].items()]
    hashes += [f"{model['weights']}  weights, {name}" for name, model in record["models"].items()]
    hashes.append(f"{record['digest']}  the record, {RECORD}")
    compared = (
        "Before: the run's model. Exact: trained again without what left. Fast: trained on from the run's model.",
        f"The metric is {'of this site alone' if site else 'of the selection of the run'}, over the test examples that "
        "are left, with all models on the same graphs.",
        "Weights apart: the norm of the difference to the exact model's weights over their norm. Predictions apart: "
        "the mean total variation distance of class probabilities; of labels and numbers, the mean difference, of "
        "numbers in deviations. Other class: examples with another predicted class.",
    )
    attacked = (
        "Each model's loss on the training examples that left is compared with its loss on test examples of the same "
        "clients, which no model saw. AUC .5 and advantage 0 mean that nobody can tell them apart by loss.",
        "The advantage is the true positive rate minus the false positive rate at the best threshold. Without any "
        "difference it exceeds the last column in 5 % of cases.",
        "The exact model never saw what left: what the attack finds there is no memory, but a difference between the "
        "two groups. A weak attack proves no absence of memory.",
    )
    return Document(
        "Forgetting",
        facts,
        (headline(record),),
        tuple(record["notes"]),
        (
            Section("Quality and distance", compared, grid=grid(quality(record), ("model",))),
            Section("Membership inference", (*attacked, *verdict(record)), grid=grid(inference(record), ("model",))),
            Section("SHA-256", code=tuple(hashes)),
        ),
        number=f"FG-{record['digest'][:12].upper()}",
    )

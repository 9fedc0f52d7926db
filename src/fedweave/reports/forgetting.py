"""The page about what a run forgot: what it cost, what the models still show, and their distance to the exact one."""

from rich.filesize import decimal

from fedweave.accounts.document import Document, Section, grid
from fedweave.apply.forgetting import EXACT, RECORD
from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.errors import listed
from fedweave.metrics.selection import lower, title_of
from fedweave.reports.cells import NONE


def headline(record: Record) -> str:
    """What was forgotten, in a sentence."""
    about = record["forgotten"]
    names = about["clients"] or [record["site"]] if "site" in record else about["clients"]
    whose = f" of {listed(names)}" if names else ""
    return (
        f"{record['run']} without {counted(about['examples'], about['kind'])}{whose}, {about['training']:,} of them "
        f"training examples, of {about['of']:,} in all."
    )


def verdict(record: Record) -> list[str]:
    """What membership inference says, a sentence for each model."""
    sentences = []
    for name, one in record["models"].items():
        if (attack := one["attack"]) is None:
            continue
        above = attack["advantage"] > attack["by_chance"]
        sentences.append(
            f"{name.capitalize()}: the advantage of {attack['advantage']:.3f} is {'above' if above else 'not above'} "
            f"{attack['by_chance']:.3f}, which chance exceeds in 5 % of cases."
        )
    return sentences


def quality(record: Record) -> list[dict[str, str]]:
    """A row for each model: its metric, its cost, and its distance to the exact model."""
    metric = record["metric"]
    head = f"{title_of(metric)}{' (lower is better)' if lower(metric) else ''}"
    rows = []
    for name, one in record["models"].items():
        apart = NONE if one["disagree"] is None else f"{one['disagree']:.1%}"
        far = (NONE, NONE, NONE) if name == EXACT else (f"{one['parameters']:.3f}", f"{one['predictions']:.4f}", apart)
        rows.append(
            {"model": name, head: f"{one['metric']:.4f}", "rounds": f"{one['rounds']:,}"}
            | {"seconds": NONE if one["seconds"] is None else f"{one['seconds']:.3g}"}
            | {"traffic": NONE if one["bytes"] is None else decimal(one["bytes"])}
            | dict(zip(("weights apart", "predictions apart", "other class"), far, strict=True))
        )
    return rows


def inference(record: Record) -> list[dict[str, str]]:
    """A row for each model: what membership inference finds."""
    rows = []
    for name, one in record["models"].items():
        attack = one["attack"] or {}
        cells = {
            head: f"{attack[key]:.3f}" if attack else NONE
            for key, head in (("auc", "AUC"), ("advantage", "advantage"), ("by_chance", "by chance"))
        }
        rows.append({"model": name, **cells})
    return rows


def document(record: Record) -> Document:
    """The page."""
    site = (("site", record["site"]),) if "site" in record else ()
    facts = (*site, ("run", record["run"]), ("written", record["written"].replace("T", " ").replace("+00:00", " UTC")))
    listed_ids = record["forgotten"].get("list")
    hashes = (
        *(() if listed_ids is None else (f"{listed_ids}  the ids, each as a hash keyed with the site's secret",)),
        f"{record['configuration']}  configuration, before",
        *(f"{one}  configuration, {name}" for name, one in record["configurations"].items()),
        *(f"{one['weights']}  weights, {name}" for name, one in record["models"].items()),
        f"{record['digest']}  the record, {RECORD}",
    )
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
            Section("SHA-256", code=hashes),
        ),
        number=f"FG-{record['digest'][:12].upper()}",
    )

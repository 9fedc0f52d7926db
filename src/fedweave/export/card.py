"""Parts of the model card: what it is for and where it ends, as its owner says and as the run shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import pyarrow.compute as pc
from pydantic import Field

from fedweave.accounts.ledger import period
from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.experiment.config import config_hash, field_parameters, load
from fedweave.experiment.config.choices import check_values
from fedweave.experiment.config.toml import check_keys
from fedweave.experiment.runs.reading import Run
from fedweave.metrics.selection import lower, of_members, selection_metric_of, title_of
from fedweave.privacy.accountant import bounds, remarks
from fedweave.reports.result_names import GAPS

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


def origin(run: Run, model: str | None, settings: CardSettings) -> list[str]:
    """Which model it is, from when, and whom to ask."""
    return [
        *([] if model is None else [f"model: {model}, the digits that scores have"]),
        f"run: SHA-256 {config_hash(run.config)} of its configuration",
        f"trained: {period(run.ledger)}",
        f"exported: {datetime.now(UTC):%Y-%m-%d}",
        f"contact: {settings.contact or 'not stated (contact in the file of --card)'}",
    ]


def use(run: Run, settings: CardSettings) -> list[str]:
    """What the model is for."""
    purpose, requester = (run.config.get(key) or "" for key in ("purpose", "requester"))
    stated = [settings.intended_use] if settings.intended_use else []
    stated += [f"purpose of the run: {purpose}"] if purpose else []
    stated += [f"the run was asked for by: {requester}"] if requester else []
    return stated or ["Its owner states no intended use (intended_use in the file of --card)."]


def limits(run: Run, metrics: Record, settings: CardSettings) -> list[str]:
    """Where the model ends: as its owner says, and what follows from the run."""
    stated = [settings.limits] if settings.limits else []
    return [*stated, *_measured_limits(run, metrics)]


def _measured_limits(run: Run, metrics: Record) -> list[str]:
    metric = of_members(selection_metric_of(metrics))
    ends = [metrics.get(f"fairness/{end}_{metric}") for end in ("worst", "best")]
    lines = [
        "It takes data of the form below. The command fedweave drift says whether new data still looks like it.",
        f"It was trained once, with seed {run.config.get('seed', 0)}: another seed gives other numbers.",
    ]
    known = sorted(float(end) for end in ends if end is not None)
    if len(known) == 2:
        low, high = known
        worst = "highest" if lower(metric) else "lowest"
        lines.append(
            f"Members differ: their {title_of(metric)} on their own test examples is {low:.4f} to {high:.4f}; the "
            f"{worst} is the worst."
        )
    if (without := metrics.get(f"features/local/{selection_metric_of(metrics)}")) is not None:
        name = title_of(selection_metric_of(metrics))
        lines.append(f"A logistic regression without the graph, mean over clients: {name} {without:.4f}.")
    return lines


def data(run: Run, settings: CardSettings) -> list[str]:
    """What the model was trained on."""
    lines = [f"period: {settings.data_period or 'not stated (data_period in the file of --card)'}"]
    if run.partition is not None:
        counts = {split: pc.sum(run.partition[split]).as_py() for split in ("train", "val", "test")}
        if None not in counts.values():
            words = (
                f"{counts['train']:,} for training, {counts['val']:,} for validation, {counts['test']:,} for the test"
            )
            lines.append(f"examples of all {counted(run.members, 'member')}: {words}")
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


def privacy(run: Run) -> Sequence[str]:
    """The ε of what members sent."""
    spent = bounds(run.ledger)
    if not spent:
        return ["No differential privacy: members added no noise whose ε is known."]
    simulated = [] if run.between_sites else ["This was a simulation, whose noise protects nobody."]
    return [*map(str, spent), *remarks(spent), *simulated]

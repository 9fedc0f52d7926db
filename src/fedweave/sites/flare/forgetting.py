"""A site's report on what its runs forgot: models of its own folder compared on its own data. Nothing leaves."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
from torch import Tensor

from fedweave.apply.forgetting import (
    BEFORE,
    EXACT,
    FAST,
    KIND,
    Forgetting,
    Outcome,
    compared,
    losses,
    new_folder,
    outputs_of,
    separated,
)
from fedweave.apply.scorer import Scorer, scorer_file
from fedweave.core.graph import TEST, TRAIN, Graph
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.target import CLASS
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.external import REFUSE
from fedweave.errors import UserError
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.files import SCORER
from fedweave.metrics.selection import AUTO, PLAIN, RARE_OF_TWO
from fedweave.models.edge_settings import add_ports, has_ports
from fedweave.partition.forgetting import names_of
from fedweave.privacy.attacks import Separation
from fedweave.sites.flare.accounts import DATA, Accounts, Exclusion
from fedweave.sites.flare.folder import SITE_FILE, private_folder
from fedweave.sites.flare.holdings import Forgotten, exclusion_of
from fedweave.sites.flare.journal import journals, read_journal
from fedweave.sites.flare.participation import RUNS
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.site_data import common_test, training_graph


@dataclass(frozen=True)
class RunHere:
    """A run that left its model at the site. excluded: marks of what it left out (`holdings.exclusion_of`).
    sites: those of the run. init_from: the number of the run that it began from, or ""."""

    name: str
    began: str
    sites: tuple[str, ...]
    excluded: frozenset[str]
    init_from: str
    scorer: Scorer


def runs_here(folder: Path) -> list[RunHere]:
    """The runs that left their models in a site's folder, the earliest first."""
    result = list[RunHere]()
    for path in journals(folder):
        notes = read_journal(path).notes
        joined = next((note for note in notes if note["note"] == "joined" and not note.get("predict")), None)
        file = folder / RUNS / path.stem / SCORER
        if joined is None or not file.is_file():
            continue
        data = next((note for note in reversed(notes) if note["note"] == DATA), None)
        out = frozenset[str]() if data is None else Exclusion.of_note(data).examples
        start = "" if data is None else str(data.get("init_from", ""))
        sites = tuple(map(str, joined.get("sites", ())))
        result.append(RunHere(path.stem, str(joined["at"]), sites, out, start, Scorer.load(file)))
    return sorted(result, key=lambda run: (run.began, (folder / RUNS / run.name / SCORER).stat().st_mtime_ns))


def report(folder: Path, before: str = "", exact: str = "", fast: str = "") -> Forgetting:
    """Compare the models of a site's runs before and after what it forgot, on its own data, and write the record.

    before, exact, fast: numbers of the site's runs, or files or folders with a scorer. By default `exact` is the last
    run of the same configuration as an earlier one, `before`, that left out what site.toml lists, or another site; and
    `fast` is the last run that began from `before`. If `exact` is no run of this site and site.toml lists nothing, the
    whole site has left: all of its training examples are forgotten.

    Raises:
        UserError: there is no such run, it left out others than site.toml lists, or the site has columns from edges to
            other sites' nodes.
    """
    about, _ = read_checked(folder / SITE_FILE)
    if about.external != REFUSE:
        raise UserError(
            f"forget: with data.external = {about.external!r} columns depend on other sites' nodes, and no report is "
            "possible at this site alone.",
            code="forget.scaling",
        )
    forgotten, here = Forgotten.of(about, folder), runs_here(folder)
    ids, accounts = () if forgotten is None else forgotten.ids, Accounts(folder)
    with accounts.open():
        out = exclusion_of(about, folder, forgotten, accounts)
    marks = out.examples
    chosen = _choose_models(folder, here, marks, {BEFORE: before, EXACT: exact, FAST: fast})
    site_leaves = forgotten is None and EXACT not in chosen.runs
    rest = training_graph(about, folder)
    whole = rest if forgotten is None else training_graph(replace(about, forget=None), folder)
    gone = np.isin(names_of(whole), list(ids)) | site_leaves
    forgotten_training, remaining_rows = gone & np.asarray(whole.public)[TRAIN], ~gone | site_leaves
    notes = [] if forgotten is None or not forgotten.absent else [_absent(forgotten.absent)]
    if not forgotten_training.any():
        notes.append("None of them was a training example of this site, so that there is nothing to infer.")
    notes.extend(chosen.notes)
    scorer = chosen.models[EXACT]
    test = common_test(about, folder, rest.features, DTYPES[scorer.dtype], has_ports(scorer.net))
    outcomes = dict[str, Outcome]()
    for name, model in chosen.models.items():
        attack = _attack(model, whole, forgotten_training, remaining_rows, test)
        outcomes[name] = Outcome({"": model.weights}, _outputs(model, rest, test), attack, rounds=model.round)
    metric, positive = _metric(chosen.models[BEFORE], rest)
    record: Record = {
        "kind": KIND,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "fedweave": version("fedweave"),
        "run": chosen.runs.get(BEFORE, before),
        "site": folder.resolve().name,
        "configuration": chosen.models[BEFORE].run,
        "forgotten": {
            "clients": [folder.resolve().name] if site_leaves else [],
            "examples": int(gone.sum()),
            "training": int(forgotten_training.sum()),
            "of": whole.examples,
            "kind": whole.example,
            "list": None if forgotten is None else _commitment(forgotten, folder, out.data),
        },
        "metric": metric,
        "models": compared(outcomes, metric, positive),
        "configurations": {name: model.run for name, model in chosen.models.items() if name != BEFORE},
        "notes": notes,
    }
    place = new_folder(folder)
    private_folder(place.parent)
    return Forgetting.save(private_folder(place), record)


@dataclass(frozen=True)
class _Chosen:
    """The models to compare. runs: {model: the number of the site's run}, without those of other files."""

    models: dict[str, Scorer]
    runs: dict[str, str]
    notes: tuple[str, ...]


def _choose_models(folder: Path, here: Sequence[RunHere], marks: frozenset[str], named: dict[str, str]) -> _Chosen:
    known = {run.name: run for run in here}
    runs = {name: known[word] for name, word in named.items() if word in known}
    files = {name: Scorer.load(scorer_file(Path(word))) for name, word in named.items() if word and word not in known}

    def differs(one: RunHere, other: RunHere) -> bool:
        """Whether they are the same run but for what they leave out."""
        return one.scorer.run == other.scorer.run and (one.excluded != other.excluded or one.sites != other.sites)

    if not named[EXACT]:
        after = [run for run in here if run.excluded == marks and any(differs(run, one) for one in _earlier(here, run))]
        runs |= {EXACT: after[-1]} if after else {}
    if not named[BEFORE]:
        last = _earlier(here, runs[EXACT]) if EXACT in runs else list(here)
        same = [run for run in last if EXACT not in runs or differs(runs[EXACT], run)]
        runs |= {BEFORE: same[-1]} if same else {}
    if not named[FAST] and BEFORE in runs:
        on = [run for run in here if run.init_from == runs[BEFORE].name and run.excluded == marks]
        runs |= {FAST: on[-1]} if on else {}
    models = {name: run.scorer for name, run in runs.items()} | files
    for name in (EXACT, FAST):
        if name in runs and runs[name].excluded != marks:
            raise UserError(
                f"--{name} {runs[name].name}: this run did not leave out what site.toml lists (data.forget). Name one "
                "that did.",
                code="forget.other-list",
            )
    for name in (EXACT, BEFORE):
        if name not in models:
            which = "left out what site.toml lists (data.forget)" if name == EXACT else "the same run has with it"
            raise UserError(
                f"forget: {folder} has no model of a run that {which}. Have the administrator start `fedweave sites "
                f"forget RUN`, or name a model: --{name} NUMBER|FILE.",
                code="forget.no-run",
            )
    missing_sites = sorted({*runs[BEFORE].sites} - {*runs[EXACT].sites}) if {BEFORE, EXACT} <= runs.keys() else []
    notes = [f"The exact run has no {', '.join(missing_sites)}."] if missing_sites else []
    notes.extend(f"The {name} model is a file: no journal here shows what it was trained on." for name in files)
    ordered = {name: models[name] for name in (BEFORE, EXACT, FAST) if name in models}
    return _Chosen(ordered, {name: run.name for name, run in runs.items()}, tuple(notes))


def _commitment(forgotten: Forgotten, folder: Path, data: str) -> str:
    """A hash that binds the owner to the list, by whole hashes: of the short marks in journals, two lists with the same
    ones could be found."""
    whole = forgotten.marks(forgotten.ids, folder, data, size=32)
    return hashlib.sha256(",".join(sorted(whole)).encode()).hexdigest()


def _earlier(here: Sequence[RunHere], run: RunHere) -> list[RunHere]:
    return list(here[: here.index(run)])


def _absent(count: int) -> str:
    return f"The data has no example with {count:,} of the ids in the list."


def _graph(model: Scorer, data: Dataset) -> Graph:
    data = add_ports(data, has_ports(model.net))
    return graph_of(data, data.features, DTYPES[model.dtype])


def _outputs(model: Scorer, rest: Dataset, test: Graph | None) -> list[tuple[Tensor, Graph]]:
    """The outputs for the site's own test examples that are left, or for the global test if it has none."""
    graph = _graph(model, rest)
    if not bool(graph.masks[TEST].any()):
        if test is None:
            raise UserError(
                "forget: the site has no test example to compare the models on. Give some in the column split.",
                code="forget.no-test",
            )
        graph = test
    return [(outputs_of(model.net, model.weights, graph), graph)]


def _attack(
    model: Scorer, whole: Dataset, forgotten_training: np.ndarray, remaining_rows: np.ndarray, test: Graph | None
) -> Separation | None:
    """Membership inference by loss on the training examples bool [e] that leave, against test examples that stay."""
    if not forgotten_training.any():
        return None
    loss, public = losses(model.net, model.weights, _graph(model, whole)), np.asarray(whole.public)
    reference = [-loss[: whole.examples][public[TEST] & remaining_rows]]
    if not len(reference[0]) and test is not None:
        reference = [-losses(model.net, model.weights, test)[test.masks[TEST].cpu().numpy()]]
    return separated([-loss[: whole.examples][forgotten_training]], reference)


def _metric(model: Scorer, rest: Dataset) -> tuple[str, int | None]:
    """The metric of the report, and its class: average precision where the site flags a class and tests on some of it,
    else the one that runs choose for such targets."""
    if rest.target != CLASS:
        return AUTO[rest.target], None
    if model.flagging is None or not (rest.y[np.asarray(rest.public)[TEST]] == model.flagging.positive).any():
        return PLAIN, None
    return RARE_OF_TWO, model.flagging.positive

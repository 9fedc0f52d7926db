"""A site's report on what its runs forgot: models of its own folder compared on its own data. Nothing leaves."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
from torch import Tensor

from fedweave.apply.forgetting_record import BEFORE, EXACT, FAST, KIND, Forgetting, new_folder
from fedweave.apply.model_comparison import Outcome, compare_models, losses, separation_of
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
from fedweave.experiment.runs.outputs import outputs_of
from fedweave.metrics.selection import AUTO, PLAIN, RARE_OF_TWO
from fedweave.models.edge_settings import add_ports, fit_to_edges, has_ports
from fedweave.partition.forgetting import names_of
from fedweave.privacy.attacks import Separation
from fedweave.sites.flare.accounts import DATA, Accounts, Exclusion
from fedweave.sites.flare.folder import RUNS, SITE_FILE, private_folder
from fedweave.sites.flare.holdings import Forgotten, exclusion_of
from fedweave.sites.flare.journal import journals, read_journal
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

    def is_comparable(self, other: "RunHere") -> bool:
        """Whether they are the same run but for what they leave out."""
        return self.scorer.run == other.scorer.run and (self.excluded, self.sites) != (other.excluded, other.sites)


def runs_here(folder: Path) -> list[RunHere]:
    """The runs that left their models in a site's folder, the earliest first."""
    runs = list[RunHere]()
    for path in journals(folder):
        notes = read_journal(path).notes
        joined = [note for note in notes if note["note"] == "joined" and not note.get("predict")]
        data = [note for note in notes if note["note"] == DATA]
        file = folder / RUNS / path.stem / SCORER
        if not joined or not file.is_file():
            continue
        excluded, start = frozenset[str](), ""
        if data:
            excluded, start = Exclusion.of_note(data[-1]).examples, str(data[-1].get("init_from", ""))
        sites = tuple(map(str, joined[0].get("sites", ())))
        runs.append(RunHere(path.stem, str(joined[0]["at"]), sites, excluded, start, Scorer.load(file)))
    return sorted(runs, key=lambda run: (run.began, (folder / RUNS / run.name / SCORER).stat().st_mtime_ns))


def report(folder: Path, before: str = "", exact: str = "", fast: str = "") -> Forgetting:
    """Compare the models of a site's runs before and after what it forgot, on its own data, and write the record.

    before, exact, fast: numbers of the site's runs, or files or folders with a scorer. By default `exact` is the last
    run of the same configuration as an earlier one, `before`, that left out what site.toml lists, or another site; and
    `fast` is the last run that began from `before`. Of several earlier ones `before` is the last from which a fast run
    began, else the last of the same sites. If `exact` is not a run of this site and site.toml lists nothing,
    the whole site has left: all of its training examples are forgotten.
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
    notes, commitment = list[str](), None
    if forgotten is not None:
        if forgotten.absent:
            notes.append(f"The data has no example with {forgotten.absent:,} of the ids in the list.")
        # This hash binds the owner to the list, by whole hashes: of the short marks in journals, two lists with the
        # same ones could be found.
        whole_marks = forgotten.marks(forgotten.ids, folder, out.data, size=32)
        commitment = hashlib.sha256(",".join(sorted(whole_marks)).encode()).hexdigest()
    if not forgotten_training.any():
        notes.append("None of them was a training example of this site, so that there is nothing to infer.")
    notes.extend(chosen.notes)
    scorer = chosen.models[EXACT]
    test = common_test(about, folder, rest.features, DTYPES[scorer.dtype], has_ports(scorer.architecture))
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
            "list": commitment,
        },
        "metric": metric,
        "models": compare_models(outcomes, metric, positive),
        "configurations": {name: model.run for name, model in chosen.models.items() if name != BEFORE},
        "notes": notes,
    }
    place = new_folder(folder)
    private_folder(place.parent)
    return Forgetting.save(private_folder(place), record)


def run_before(here: Sequence[RunHere], exact: RunHere | None, marks: frozenset[str]) -> RunHere | None:
    """The run that was trained with what is forgotten: of those like `exact` before it, the last one from which a fast
    run began that left out what `marks` say, else the last of the same sites, else the last; None if there is none."""
    if exact is None:
        return here[-1] if here else None
    earlier = [run for run in here[: here.index(exact)] if run.is_comparable(exact)]
    begun_from = {run.init_from for run in here if run.excluded == marks}
    best = [run for run in earlier if run.name in begun_from]
    best = best or [run for run in earlier if {*run.sites} == {*exact.sites}] or earlier
    return best[-1] if best else None


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

    if not named[EXACT]:  # the last run that left out what is listed, after a run like it that did not
        for at, run in enumerate(here):
            if run.excluded == marks and any(run.is_comparable(earlier) for earlier in here[:at]):
                runs[EXACT] = run
    if not named[BEFORE]:
        before = run_before(here, runs.get(EXACT), marks)
        runs |= {BEFORE: before} if before is not None else {}
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


def _graph(model: Scorer, data: Dataset) -> Graph:
    data = add_ports(data, fit_to_edges(model.architecture, data.edge_attrs))
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
    return separation_of([-loss[: whole.examples][forgotten_training]], reference)


def _metric(model: Scorer, rest: Dataset) -> tuple[str, int | None]:
    """The metric of the report, and its class: average precision where the site flags a class and tests on some of it,
    else the one that runs choose for such targets."""
    if rest.target != CLASS:
        return AUTO[rest.target], None
    if model.flagging is None or not (rest.y[np.asarray(rest.public)[TEST]] == model.flagging.positive).any():
        return PLAIN, None
    return RARE_OF_TWO, model.flagging.positive

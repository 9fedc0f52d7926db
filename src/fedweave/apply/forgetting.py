"""A finished run without a client or without examples: trained again (exact), or on from its model (fast), and what the
models still show of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedweave.apply.forgetting_record import BEFORE, EXACT, FAST, KIND, Forgetting, new_folder
from fedweave.apply.model_comparison import Outcome, compare_models, losses, separation_of
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import TEST, TRAIN, Graph
from fedweave.core.types import Record
from fedweave.errors import UserError, option
from fedweave.experiment.config import Config, config_hash, load
from fedweave.experiment.config.choices import MemberModels
from fedweave.experiment.requirements import check
from fedweave.experiment.runs import run as runs
from fedweave.experiment.runs.files import CONFIG, SUMMARY, read_summary
from fedweave.experiment.runs.outputs import outputs_of
from fedweave.experiment.runs.trained import Trained, finished_config, load_trained
from fedweave.experiment.stages import Configured
from fedweave.metrics.selection import JUDGES, OF_RANKS, positive_of, selection_metric_of
from fedweave.partition.base import client_ids
from fedweave.partition.forgetting import Forget, places
from fedweave.privacy.attacks import Separation

SHARE = 10  # the fast way takes this part of the run's rounds
_INSTEAD = (
    "Each member removes the rows from its own tables, or leaves (`fedweave sites remove`); then run again with "
    "`fedweave sites run`. With init_from it goes on from the earlier model."
)


def forget(
    directory: Path,
    clients: Sequence[str] = (),
    ids: Sequence[str] = (),
    rounds: int | None = None,
    out: Path | None = None,
    watch: Callable[[], runs.RunObserver] | None = None,
) -> Forgetting:
    """Train the finished run in `directory` without clients or examples, and compare the models.

    clients, ids: see `partition.forgetting.Forget`. rounds: of the fast way; 0 leaves it out, None takes a tenth of the
    run's. out: a new folder for the runs and the record; by default the next number in the run's folder `FORGOTTEN`.
    watch: makes an observer for each run.

    Raises:
        UserError: the run is not finished, was made between sites, is vertical or on links; there is no such client or
            example; or `out` is used.
    """
    # 1. What leaves, and the experiment without it.
    config = finished_config(directory)
    rest = _without(config, directory, clients, ids)
    before = load_trained(directory, config, _INSTEAD)
    evaluation = replace(rest.evaluation, alone=False)  # the models are compared with each other
    rest = replace(rest, member_models=_models_of(config.member_models, before, clients), evaluation=evaluation)
    removed = _removed(before, clients, ids)
    folder = new_folder(directory, out)
    summary = read_summary(directory / SUMMARY)

    # 2. Training again, and on from the earlier model.
    notes, configs = [], {EXACT: rest}
    count = max(1, config.general.rounds // SHARE) if rounds is None else rounds
    if count:
        general = replace(rest.general, init_from=str(directory.resolve()), rounds=count)
        configs[FAST] = replace(rest, general=general)
    for name, experiment in configs.items():
        try:
            runs.run(experiment, folder / name, (watch or runs.Quiet)())
        except UserError as error:
            if name == EXACT or not error.code.startswith("init."):
                raise
            notes.append(f"There is no fast model: {error}")
    trainings = {BEFORE: before}
    for name in configs:
        if (folder / name / SUMMARY).exists():
            trainings[name] = load_trained(folder / name, finished_config(folder / name), _INSTEAD)

    # 3. The models compared.
    metric = selection_metric_of(summary["metrics"])
    record: Record = {
        "kind": KIND,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "fedweave": version("fedweave"),
        "run": directory.resolve().name,
        "configuration": config_hash(load(directory / CONFIG)),
        "forgotten": {"clients": list(clients), **removed.counts},
        "metric": metric,
        "models": compare_models(_outcomes(trainings, removed, metric), metric, positive_of(summary["metrics"])),
        "configurations": {name: config_hash(load(folder / name / CONFIG)) for name in trainings if name != BEFORE},
        "notes": [*notes, *removed.notes],
    }
    return Forgetting.save(folder, record)


def _without(config: Config, directory: Path, clients: Sequence[str], ids: Sequence[str]) -> Config:
    """The configuration of the run without clients and examples, checked as far as that needs no data.

    Raises:
        UserError: it cannot be trained without them.
    """
    if not clients and not ids:
        raise UserError(f"forget: name a client or ids: {option('client')} or {option('ids')}.", code="forget.nothing")
    if config.links is not None or config.learned:
        raise UserError(
            "forget: the run predicts links, or learns a vector for each node. Remove the rows from its tables and "
            "run again.",
            code="forget.links",
        )
    earlier = config.forget or Forget()
    all_clients, all_ids = dict.fromkeys([*earlier.clients, *clients]), dict.fromkeys([*earlier.ids, *ids])
    names = {name: label for name, label in config.pay.names.items() if name not in clients}
    forgotten = Forget(tuple(all_clients), tuple(all_ids))
    result = replace(config, forget=forgotten, pay=replace(config.pay, names=names))
    if config.between_sites:
        raise UserError(
            f"forget: {directory} was trained between sites, where the data is. {_INSTEAD}", code="forget.sites"
        )
    check(Configured.of(result))
    return result


def _models_of(member_models: MemberModels, run: Trained, clients: Sequence[str]) -> MemberModels:
    """The models of the members that stay, each by its name: places change when others leave."""
    names = client_ids(len(run.built.partition.parts), run.built.partition.names)
    chosen = {}
    for at, name in enumerate(names):
        model = member_models.of(name, at) if member_models and name not in clients else None
        if model is not None:
            chosen[name] = model
    return MemberModels((), chosen)


class Removed(NamedTuple):
    """What leaves a run.

    rows: {client that had some: (which of its examples were trained on and leave, and which are its test examples),
    bool [e] each}.
    """

    rows: Mapping[str, tuple[np.ndarray, np.ndarray]]
    counts: Record
    notes: tuple[str, ...]


def _removed(run: Trained, clients: Sequence[str], ids: Sequence[str]) -> Removed:
    """What leaves the run."""
    partition, data = run.built.partition, run.built.data
    names = client_ids(len(partition.parts), partition.names)
    Forget(tuple(clients), tuple(ids)).apply(data, partition)  # refuses what there is not
    is_named = np.zeros(data.examples, bool)
    is_named[places(data, ids)] = True
    rows, is_removed, training = dict[str, tuple[np.ndarray, np.ndarray]](), np.zeros(data.examples, bool), 0
    for name, part in zip(names, partition.parts, strict=True):
        leaves = np.ones(len(part.examples), bool) if name in clients else is_named[part.examples]
        if leaves.any():
            is_removed[part.examples[leaves]] = True
            training += int((leaves & part.masks[TRAIN]).sum())
            rows[name] = leaves & part.masks[TRAIN], part.masks[TEST]
    notes, without_client = [], int((is_named & ~is_removed).sum())
    if without_client:
        notes.append(f"{without_client:,} of the examples are with no client of the run.")
    if not training:
        notes.append("None of them was a training example, so that there is nothing to infer.")
    counts = {"examples": int(is_removed.sum()), "training": training, "of": data.examples, "kind": data.example}
    return Removed(rows, counts, tuple(notes))


def _outcomes(trainings: Mapping[str, Trained], removed: Removed, metric: str) -> dict[str, Outcome]:
    """{model: what it does on the exact run's graphs, and on what is forgotten}."""
    if metric in OF_RANKS or metric not in JUDGES:
        raise UserError(f"forget: the run's metric {metric!r} is of ranks.", code="forget.links")
    outcomes = dict[str, Outcome]()
    for name, run in trainings.items():
        summary, w = read_summary(run.directory / SUMMARY), run.algorithm.global_model(run.state)
        outcomes[name] = Outcome(
            weights=dict(run.models("personal")) if w is None else {"": w},
            outputs=_outputs(run, trainings[EXACT]),
            attack=_attack(run, trainings[BEFORE], removed),
            rounds=summary["rounds"],
            seconds=round(summary["seconds"], 2),
            bytes=summary["bytes_up"] + summary["bytes_down"] + summary.get("bytes_peer", 0),
        )
    return outcomes


def _outputs(run: Trained, exact: Trained) -> list[tuple[Tensor, Graph]]:
    """The outputs of a run's models, and the graphs of the `exact` run whose test examples they are for."""
    test, w = exact.built.fed.test, run.algorithm.global_model(run.state)
    if test is not None and w is not None:
        return [(outputs_of(run.algorithm.test_net, w, test), test.to("cpu"))]
    result, weights = [], run.models("personal")
    for client, graph in graphs_of(exact.built.fed).items():
        if bool(graph.masks[TEST].any()):
            result.append((outputs_of(run.net_of(client), weights[client], graph), graph.to("cpu")))
    if not result:
        raise UserError(
            "forget: no test example is left to compare the models on. Give [partition] test a share.",
            code="forget.no-test",
        )
    return result


def _attack(run: Trained, before: Trained, removed: Removed) -> Separation | None:
    """Membership inference by loss (Yeom et al., CSF 2018) on the training examples that leave against test examples of
    the same clients, with the data as it was before; None where no model or no example is left."""
    global_model = run.algorithm.global_model(run.state)
    personal = {} if global_model is not None else run.models("personal")
    fed, partition, graphs = before.built.fed, before.built.partition, graphs_of(before.built.fed)
    fed_parts = dict(zip(fed.clients, before.visible_partition.parts, strict=True))  # one part where all data is pooled
    parts = dict(zip(client_ids(len(partition.parts), partition.names), partition.parts, strict=True))
    members, references = list[np.ndarray](), list[np.ndarray]()
    for client, (trained_rows, test) in removed.rows.items():
        holder = client if client in fed_parts else next(iter(fed_parts))
        w = global_model if global_model is not None else personal.get(holder)
        if w is None:
            continue
        net = run.algorithm.test_net if global_model is not None else run.net_of(holder)
        loss = losses(net, w, graphs[holder])
        place = np.searchsorted(fed_parts[holder].examples, parts[client].examples)
        members.append(-loss[place[trained_rows]])
        references.append(-loss[place[test]])
        if not test.any() and fed.test is not None:
            references.append(-losses(net, w, fed.test)[fed.test.masks[TEST].cpu().numpy()])
    return separation_of(members, references)

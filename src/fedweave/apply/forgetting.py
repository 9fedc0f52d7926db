"""A finished run without a client or without examples: trained again (exact), or on from its model (fast), and what the
models still show of them."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedweave.apply.predictions import from_outputs
from fedweave.core import model as models
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import TEST, TRAIN, Graph
from fedweave.core.shown import Shown, page
from fedweave.core.target import CLASS, LABELS
from fedweave.core.tree import Tree, device_of, encode, norm, sub
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.experiment.config import Config, config_hash, load
from fedweave.experiment.config.choices import MemberModels
from fedweave.experiment.requirements import check
from fedweave.experiment.runs import run as runs
from fedweave.experiment.runs.files import CONFIG, FORGOTTEN, SUMMARY, read_summary, write
from fedweave.experiment.runs.trained import Trained, finished, trained
from fedweave.experiment.stages import Configured
from fedweave.metrics.kinds import pairs_of, test_value
from fedweave.metrics.selection import JUDGES, OF_RANKS, positive_of, selection_metric_of
from fedweave.partition.base import client_ids
from fedweave.partition.forgetting import Forget, places
from fedweave.privacy.attacks import Separation, separation

RECORD = "forgetting.json"
BEFORE, EXACT, FAST = "before", "exact", "fast"
KIND = "fedweave forgetting 1"
SHARE = 10  # the fast way takes this part of the run's rounds
_INSTEAD = (
    "Each member removes the rows from its own tables, or leaves (`fedweave sites remove`); then run again with "
    "`fedweave sites run`. With init_from it goes on from the earlier model."
)


class Outcome(NamedTuple):
    """A model, and what it does on given data.

    weights: {client: its model}; {"": the global model} where there is one. outputs: on graphs whose test examples are
    left, the same graphs for all models. attack: see `Compared`; so are rounds, seconds and bytes.
    """

    weights: Mapping[str, Tree]
    outputs: Sequence[tuple[Tensor, Graph]]
    attack: Separation | None
    rounds: int
    seconds: float | None = None
    bytes: int | None = None


class Compared(NamedTuple):
    """What is known of one model.

    rounds, seconds, bytes: what it cost; bytes as clients sent and received; None where that is unknown. metric: the
    run's selection metric on the test examples that are left. parameters: ‖w − w_exact‖ / ‖w_exact‖. predictions: the
    mean distance of its predictions from the exact model's on these examples: total variation of class probabilities,
    mean absolute difference of label probabilities, or of numbers in deviations. disagree: the share of examples with
    another predicted class. attack: membership inference; None where it is not defined.
    """

    rounds: int
    seconds: float | None
    bytes: int | None
    metric: float
    parameters: float
    predictions: float
    disagree: float | None
    attack: Separation | None
    weights: str


@dataclass(frozen=True, repr=False)
class Forgetting(Shown):
    """What a run forgot and how well. models: {"before", "exact", "fast": what is known of it}; without "fast" where
    that was not asked for, or is not possible. record: all of it, as the file `RECORD` has it."""

    directory: Path
    record: Record

    @classmethod
    def save(cls, folder: Path, record: Record) -> "Forgetting":
        """Write a record with its digest into the folder."""
        record["digest"] = digest(record)
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write(folder / RECORD, lambda file: file.write(text.encode()))
        return cls(folder, record)

    @property
    def exact(self) -> Path:
        """The directory of the run without what is forgotten."""
        return self.directory / EXACT

    @property
    def fast(self) -> Path | None:
        """The directory of the run that went on from the earlier model, if there is one."""
        return self.directory / FAST if FAST in self.record["models"] else None

    @property
    def table(self) -> pa.Table:
        """A row for each model."""
        rows = [{"model": name, **_flat(one)} for name, one in self.record["models"].items()]
        return pa.Table.from_pylist(rows)

    def facts(self) -> dict[str, object]:
        """How many examples are forgotten, and the metric of each model."""
        about = self.record["forgotten"]
        metrics = {f"{name} {self.record['metric']}": one["metric"] for name, one in self.record["models"].items()}
        return {"examples": about["examples"], **metrics, "directory": str(self.directory)}

    def _repr_html_(self) -> str:
        table = self.table
        return page(repr(self), [list(row.values()) for row in table.to_pylist()], table.column_names)


def _flat(one: Record) -> Record:
    attack = one["attack"] or {}
    names = ("auc", "advantage", "by_chance")
    return {key: value for key, value in one.items() if key not in ("attack", "weights")} | {
        name: attack.get(name) for name in names
    }


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
    config = finished(directory)
    again = _without(config, directory, clients, ids)
    before = trained(directory, config, _INSTEAD)
    again = replace(again, member_models=_models_of(config.member_models, before, clients))
    lost = _lost(before, clients, ids)
    folder = new_folder(directory, out)
    summary = read_summary(directory / SUMMARY)
    count = max(1, config.general.rounds // SHARE) if rounds is None else rounds
    quiet, notes, configs = watch or _Quiet, list[str](), {EXACT: again}
    if count:
        earlier = str(directory.resolve())
        general = replace(again.general, init_from=earlier, rounds=count)
        configs[FAST] = replace(again, general=general)
    for name, one in configs.items():
        try:
            runs.run(one, folder / name, quiet())
        except UserError as error:
            if name == EXACT or not error.code.startswith("init."):
                raise
            notes.append(f"There is no fast model: {error}")
    trainings = {BEFORE: before} | {
        name: trained(folder / name, finished(folder / name), _INSTEAD)
        for name in configs
        if (folder / name / SUMMARY).exists()
    }
    metric = selection_metric_of(summary["metrics"])
    record: Record = {
        "kind": KIND,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "fedweave": version("fedweave"),
        "run": directory.resolve().name,
        "configuration": config_hash(load(directory / CONFIG)),
        "forgotten": {"clients": list(clients), **lost.counts},
        "metric": metric,
        "models": compared(_outcomes(trainings, lost, metric), metric, positive_of(summary["metrics"])),
        "configurations": {name: config_hash(load(folder / name / CONFIG)) for name in trainings if name != BEFORE},
        "notes": [*notes, *lost.notes],
    }
    return Forgetting.save(folder, record)


def digest(record: Record) -> str:
    """SHA-256 of all of a record but its digest."""
    rest = {key: value for key, value in record.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class _Quiet:
    """Watches a run and prints nothing (`runs.RunObserver`)."""

    def begin(self, config: Config, built: object, directory: Path, done: int) -> None:
        """Nothing."""

    def step(self, reached: object) -> None:
        """Nothing."""

    def stopping(self, number: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def _without(config: Config, directory: Path, clients: Sequence[str], ids: Sequence[str]) -> Config:
    """The configuration of the run without clients and examples, checked as far as that needs no data.

    Raises:
        UserError: it cannot be trained without them.
    """
    if not clients and not ids:
        raise UserError("forget: name a client or a file of ids: --client NAME or --ids FILE.", code="forget.nothing")
    if config.links is not None or config.learned:
        raise UserError(
            "forget: the run predicts links, or learns a vector for each node. Remove the rows from its tables and "
            "run again.",
            code="forget.links",
        )
    earlier = config.forget or Forget()
    every = Forget(
        tuple(dict.fromkeys((*earlier.clients, *clients))),
        tuple(dict.fromkeys((*earlier.ids, *ids))),
    )
    names = {name: label for name, label in config.pay.names.items() if name not in clients}
    result = replace(config, forget=every, pay=replace(config.pay, names=names))
    if config.between_sites:
        raise UserError(
            f"forget: {directory} was trained between sites, where the data is. {_INSTEAD}", code="forget.sites"
        )
    check(Configured.of(result))
    return result


def _models_of(member_models: MemberModels, run: Trained, clients: Sequence[str]) -> MemberModels:
    """The models of the members that stay, each by its name: places change when others leave."""
    names = client_ids(len(run.built.partition.parts), run.built.partition.names)
    chosen = {
        name: member_models.of(name, at) for at, name in enumerate(names) if member_models and name not in clients
    }
    return MemberModels((), {name: model for name, model in chosen.items() if model is not None})


def new_folder(directory: Path, out: Path | None = None) -> Path:
    """The folder for the record, not made yet: `out`, or the next number in the `FORGOTTEN` of `directory`.

    Raises:
        UserError: `out` is used.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: it exists. Name a new folder.", code="forget.out")
    if out is None:
        below = directory / FORGOTTEN
        numbers = [int(one.name) for one in below.glob("*") if one.name.isdecimal()]
        out = below / str(max(numbers, default=0) + 1)
    return out


class Lost(NamedTuple):
    """What leaves a run.

    rows: {client that held some: (which of its examples were trained on and leave, and which are its test examples),
    bool [e] each}. leaves: clients that leave as a whole.
    """

    rows: Mapping[str, tuple[np.ndarray, np.ndarray]]
    leaves: frozenset[str]
    counts: Record
    notes: tuple[str, ...]


def _lost(run: Trained, clients: Sequence[str], ids: Sequence[str]) -> Lost:
    """What leaves the run."""
    partition, data = run.built.partition, run.built.data
    names = client_ids(len(partition.parts), partition.names)
    Forget(tuple(clients), tuple(ids)).apply(data, partition)  # refuses what there is not
    gone = np.zeros(data.examples, bool)
    gone[places(data, ids)] = True
    rows, count, training = dict[str, tuple[np.ndarray, np.ndarray]](), set[int](), 0
    for name, part in zip(names, partition.parts, strict=True):
        leaves = np.ones(len(part.examples), bool) if name in clients else gone[part.examples]
        if not leaves.any():
            continue
        count |= set(part.examples[leaves].tolist())
        training += int((leaves & part.masks[TRAIN]).sum())
        rows[name] = leaves & part.masks[TRAIN], part.masks[TEST]
    outside = gone & ~np.isin(np.arange(data.examples), [*count])
    notes = () if not outside.any() else (f"{int(outside.sum()):,} of the examples are with no client of the run.",)
    about = {"examples": len(count), "training": training, "of": data.examples, "kind": data.example}
    if not training:
        notes = (*notes, "None of them was a training example, so that there is nothing to infer.")
    return Lost(rows, frozenset(clients), about, notes)


# ----------------------------------------------------------------------------------------------------
# Comparing the models: on the test examples that are left, and on what is forgotten.


def _outcomes(trainings: Mapping[str, Trained], lost: Lost, metric: str) -> dict[str, Outcome]:
    """{model: what it does on the exact run's graphs, and on what is forgotten}."""
    if metric in OF_RANKS or metric not in JUDGES:
        raise UserError(f"forget: the run's metric {metric!r} is of ranks.", code="forget.links")
    result = dict[str, Outcome]()
    for name, run in trainings.items():
        summary = read_summary(run.directory / SUMMARY)
        traffic = summary["bytes_up"] + summary["bytes_down"] + summary.get("bytes_peer", 0)
        cost = summary["rounds"], round(summary["seconds"], 2), traffic
        attack = _attack(run, trainings[BEFORE], lost)
        result[name] = Outcome(_weights(run), _outputs(run, trainings[EXACT]), attack, *cost)
    return result


def compared(outcomes: Mapping[str, Outcome], metric: str, positive: int | None) -> Record:
    """{model: the fields of `Compared`}. outcomes: of "exact", and of other models to compare with it. positive: the
    class of a metric of one."""
    exact = outcomes[EXACT]
    result = Record()
    for name, outcome in outcomes.items():
        staying = {client: w for client, w in outcome.weights.items() if client in exact.weights}
        far, size = (
            sum(float(norm(one)) ** 2 for one in trees) ** 0.5
            for trees in (
                [sub(staying[client], exact.weights[client]) for client in staying],
                [exact.weights[client] for client in staying],
            )
        )
        distance, disagree = _apart(outcome.outputs, exact.outputs)
        one = Compared(
            rounds=outcome.rounds,
            seconds=outcome.seconds,
            bytes=outcome.bytes,
            metric=metric_of(outcome.outputs, metric, positive),
            parameters=far / size if size else 0.0,
            predictions=distance,
            disagree=disagree,
            attack=outcome.attack,
            weights=hashlib.sha256(b"".join(encode(w) for w in outcome.weights.values())).hexdigest(),
        )
        result[name] = one._asdict() | {"attack": None if outcome.attack is None else outcome.attack._asdict()}
    return result


def _weights(run: Trained) -> dict[str, Tree]:
    """{client: its model}; {"": the global model} where there is one."""
    if (w := run.algorithm.global_model(run.state)) is not None:
        return {"": w}
    return dict(run.models("personal"))


def _outputs(run: Trained, exact: Trained) -> list[tuple[Tensor, Graph]]:
    """The outputs of a run's models, and the graphs of the `exact` run whose test examples they are for."""
    test, w = exact.built.fed.test, run.algorithm.global_model(run.state)
    if test is not None and w is not None:
        return [(outputs_of(run.algorithm.test_net, w, test), test.to("cpu"))]
    result, personal = list[tuple[Tensor, Graph]](), run.models("personal")
    for client, graph in graphs_of(exact.built.fed).items():
        if bool(graph.masks[TEST].any()):
            result.append((outputs_of(run.net_of(client), personal[client], graph), graph.to("cpu")))
    if not result:
        raise UserError(
            "forget: no test example is left to compare the models on. Give [partition] test a share.",
            code="forget.no-test",
        )
    return result


def outputs_of(net: models.Model, w: Tree, graph: Graph) -> Tensor:
    """A model's outputs [e, …] for the examples of a graph, on the host."""
    with torch.no_grad():
        return models.infer(net, w, graph.to(device_of(w))).cpu()


def metric_of(outputs: Sequence[tuple[Tensor, Graph]], metric: str, positive: int | None) -> float:
    """A metric over the test examples of all graphs together."""
    target = outputs[0][1].target
    if target in (CLASS, LABELS):
        at = [graph.masks[TEST] for _, graph in outputs]
        logits = torch.cat([out[mask] for (out, _), mask in zip(outputs, at, strict=True)])
        y = torch.cat([graph.y[mask] for (_, graph), mask in zip(outputs, at, strict=True)])
        pairs = [pairs_of(logits, y, torch.ones(1, len(y), dtype=torch.bool, device=y.device), target)]
    else:
        pairs = [pairs_of(out, graph.y, graph.masks[TEST][None], target, graph.scale) for out, graph in outputs]
    return float(test_value(pairs, metric, 1 if positive is None else positive))


def _apart(
    outputs: Sequence[tuple[Tensor, Graph]], reference: Sequence[tuple[Tensor, Graph]]
) -> tuple[float, float | None]:
    """The mean distance of predictions from those of reference on test examples, and the share of other classes."""
    graph = outputs[0][1]
    p, q = (
        torch.cat([from_outputs(out, graph)[graph.masks[TEST]] for out, graph in each]).double()
        for each in (outputs, reference)
    )
    if graph.target == CLASS:
        return float((p - q).abs().sum(1).mean() / 2), float((p.argmax(1) != q.argmax(1)).double().mean())
    if graph.target == LABELS:
        return float((p - q).abs().mean()), None
    return float(((p - q).abs() / q.std(0).clamp(min=1e-12)).mean()), None


def _attack(run: Trained, before: Trained, lost: Lost) -> Separation | None:
    """Membership inference by loss (Yeom et al., CSF 2018) on the training examples that leave against test examples of
    the same clients, with the data as it was before; None where no model or no example is left."""
    joint = run.algorithm.global_model(run.state)
    personal = {} if joint is not None else run.models("personal")
    graphs, members, others = graphs_of(before.built.fed), list[np.ndarray](), list[np.ndarray]()
    seen = dict(zip(before.built.fed.clients, before.seen.parts, strict=True))
    cut = before.built.partition
    parts = dict(zip(client_ids(len(cut.parts), cut.names), cut.parts, strict=True))
    for client, (leaving, test) in lost.rows.items():
        holder = client if client in seen else next(iter(seen))  # of a union, the one client
        w = joint if joint is not None else personal.get(holder)
        if w is None:
            continue
        net = run.algorithm.test_net if joint is not None else run.net_of(holder)
        loss = losses(net, w, graphs[holder])
        place = np.searchsorted(seen[holder].examples, parts[client].examples)
        members.append(-loss[place[leaving]])
        others.append(-loss[place[test]])
        if not test.any() and before.built.fed.test is not None:
            whole = before.built.fed.test
            others.append(-losses(net, w, whole)[whole.masks[TEST].cpu().numpy()])
    return separated(members, others)


def separated(members: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> Separation | None:
    """How well numbers of members are told from those of others, without NaN; None where there are none of either."""
    if not members or not others:
        return None
    inside, outside = (values[np.isfinite(values)] for values in map(np.concatenate, (members, others)))
    return separation(inside, outside) if len(inside) and len(outside) else None


def losses(net: models.Model, w: Tree, graph: Graph) -> np.ndarray:
    """float64 [e]: the loss of each example, NaN where it has no label: cross-entropy, of labels its mean, of numbers
    the squared error in units of the model."""
    outputs, y = outputs_of(net, w, graph).double(), graph.y.cpu()
    if graph.target == CLASS:
        loss = torch.nn.functional.cross_entropy(outputs, y.clamp(min=0), reduction="none")
        return torch.where(y >= 0, loss, torch.nan).numpy()
    known = torch.isfinite(y.double()) & (y >= 0 if graph.target == LABELS else torch.ones_like(y, dtype=torch.bool))
    truth = torch.where(known, y.double(), 0)
    if graph.target == LABELS:
        each = torch.nn.functional.binary_cross_entropy_with_logits(outputs, truth, reduction="none")
    else:
        scaled = from_outputs(outputs, graph)
        each = ((scaled - truth) / truth.std(0).clamp(min=1e-12)) ** 2
    return (
        (torch.where(known, each, 0).sum(1) / known.sum(1).clamp(min=1)).masked_fill(~known.any(1), torch.nan).numpy()
    )

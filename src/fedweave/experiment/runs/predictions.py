"""What models predict, as a table for those who own the data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FunctionType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import plugins
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import SPLITS, VAL, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, device_of
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import compact, rescaled
from fedweave.errors import ConfigError, UserError, listed
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.data_form import Before, DataForm, form_of_config, like, read_form, told
from fedweave.experiment.runs.files import SUMMARY, read_summary
from fedweave.experiment.runs.trained import Trained, check_finite
from fedweave.metrics.measured import GLOBAL
from fedweave.metrics.ranking import by_validation
from fedweave.metrics.selection import HALF, THRESHOLD, Flagging, chooses, flagging, of_best
from fedweave.partition.client_data import global_test_part, of_part


@dataclass(frozen=True)
class Predicted:
    """What one client's model, or the global one, predicts.

    client:      whose it is. probability: of the classes, [e, c], with padding behind the examples.
    examples:    int64 [e], their places in the data.
    masks:       bool [3, e], how the run used them; None if it did not.
    """

    client: str
    probability: Tensor
    examples: np.ndarray
    masks: np.ndarray | None = None


def predictions_table(
    predictions: Sequence[Predicted],
    ids: Sequence[str] = (),
    labels: Sequence[str] = (),
    example: str = "node",
    y: np.ndarray | None = None,
    flagging: Flagging | Mapping[str, Flagging] | None = None,
    ends: np.ndarray | None = None,
) -> pa.Table:
    """A row per client and example: "client", "node", "graph" or "edge" (its place in the data), "id", of an edge
    "source" and "target", "split" ("" in none), "true" (the known class, else null), "predicted" (the most probable
    one), and a column of probabilities for each class, "p_low", "p_high".

    ids: what the examples are called, () if nobody said. labels: what the classes are called, () for their numbers;
    then these are predicted, and the probabilities are "p_0", "p_1", … y: int64 [n], the classes of all data, -1 where
    unknown; without it, or where none is known, there is no column "true". flagging: of two classes, which examples are
    flagged, of all clients or of each, from 0.5 on of one that is not named; then there are "score", the probability of
    the positive class, "flagged" and the "threshold". ends: [2, e] of all data, see `ends_of`.

    Raises:
        UserError: a probability is NaN.
    """
    each = [one.probability[: len(one.examples)].cpu().numpy() for one in predictions]
    if lost := [one.client for one, own in zip(predictions, each, strict=True) if not np.isfinite(own).all()]:
        raise UserError(
            f"the model of {listed(lost)} predicts no numbers (NaN): its training diverged. Train again with a smaller "
            "algorithm.lr, or take the models of another round (--round best).",
            code="user.not-finite",
        )
    p = np.concatenate(each)
    at = np.concatenate([one.examples for one in predictions])
    clients = np.repeat(np.array([one.client for one in predictions]), [len(one.examples) for one in predictions])
    columns = {"client": clients, example: at} | ({"id": np.array(ids)[at]} if len(ids) else {})
    if ends is not None:
        columns |= {"source": ends[0, at], "target": ends[1, at]}
    if all(one.masks is not None for one in predictions):
        use = np.concatenate([_split(one.masks) for one in predictions if one.masks is not None])
        columns["split"] = use
    if y is not None and (y >= 0).any():
        columns["true"] = pa.array(_named(np.maximum(y[at], 0), labels), mask=y[at] < 0)
    columns["predicted"] = _named(p.argmax(-1), labels)
    if flagging is not None:
        positive, own = _by_client(flagging, [one.client for one in predictions])
        score, at_least = p[:, positive], np.repeat(own, [len(one.examples) for one in predictions])
        columns |= {"score": score, "flagged": score >= at_least, "threshold": at_least}
    names = labels or range(p.shape[-1])
    return pa.table(columns | {f"p_{name}": p[:, c] for c, name in enumerate(names)})


def _by_client(flagging: Flagging | Mapping[str, Flagging], clients: Sequence[str]) -> tuple[int, np.ndarray]:
    """The positive class, and the threshold of each client."""
    if isinstance(flagging, Flagging):
        return flagging.positive, np.full(len(clients), flagging.threshold)
    positive = next((rule.positive for rule in flagging.values()), 1)
    return positive, np.array([flagging[client].threshold if client in flagging else HALF for client in clients])


def ends_of(data: Dataset) -> np.ndarray | None:
    """[2, e], what the nodes at the ends of edges are called, or their numbers, where edges are the examples."""
    if data.carried is None or not data.carried.examples:
        return None
    ends: np.ndarray = np.array(data.node_ids)[data.carried.ends] if data.node_ids else data.carried.ends
    return ends


def right(table: pa.Table) -> float | None:
    """The share of rows whose class is known and predicted right; None where none is known."""
    if "true" not in table.column_names:
        return None
    share: float | None = pc.mean(pc.equal(table["true"], table["predicted"]).cast(pa.float64())).as_py()
    return share


def _named(classes: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    return np.array(labels)[classes] if len(labels) else classes


def _split(masks: np.ndarray) -> np.ndarray:
    """The names of the splits, "" for none: [e]."""
    return np.where(masks.any(0), np.array(SPLITS)[masks.argmax(0)], "")


# ----------------------------------------------------------------------------------------------------
# Predictions of a finished horizontal run: for its own examples, and for new nodes or graphs.


def probabilities(model: Model, w: Tree, graph: Graph) -> Tensor:
    """[e, c] of the classes, padding included, on the host; the model runs where its weights lie.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    check_finite(w)
    with torch.no_grad():
        return torch.softmax(models.judged(model, w, graph.to(device_of(w))), -1).cpu()


def of_own(run: Trained, model: str | None = None, client: str | None = None) -> pa.Table:
    """Predictions of the run's own examples: each client's by its model, by default the one that it uses; and, unless
    another is asked for, those of the global test graph by the global one.

    Raises:
        UserError: there is no such model or client.
    """
    built, chosen = run.built, chosen_models(run, client, model or "personal")
    graphs = graphs_of(built.fed)
    predictions = [
        Predicted(name, probabilities(run.net_of(name), chosen[name], graphs[name]), part.examples, part.masks)
        for name, part in zip(built.fed.clients, run.seen.parts, strict=True)
        if name in chosen
    ]
    test, w = global_test_part(built.data, built.partition), run.algorithm.global_model(run.state)
    if (
        test is not None
        and built.fed.test is not None
        and w is not None
        and model in (None, "global")
        and client is None
    ):
        p = probabilities(run.algorithm.test_net, w, built.fed.test)
        predictions.append(Predicted(GLOBAL, p, test.examples, test.masks))
    data = built.data
    by = flagging_of(run, chosen)
    return predictions_table(predictions, data.ids, data.labels, data.example, data.y, by, ends_of(data))


def of_new(run: Trained, path: Path, model: str | None = None, client: str | None = None) -> pa.Table:
    """Predictions of the nodes or small graphs at `path`: by the global model, by default, if there is one and no
    client is named, else by every client's.

    Raises:
        UserError: there is no such model or client. DataError: the data is refused, or of another form than the run's.
    """
    built = run.built
    if any(part.columns is not None for part in run.seen.parts):
        raise UserError(
            "in the run each client has columns of its own, so that no one table of new nodes fits them.",
            code="user.own-columns",
        )
    form = read_form(run.directory) or form_of_config(run.config, built.data, built.partition)
    which = model or ("personal" if client is not None or run.algorithm.global_model(run.state) is None else "global")
    chosen = chosen_models(run, client, which)
    by = flagging_of(run, chosen)
    if which == "global":
        chosen = {client or GLOBAL: next(iter(chosen.values()))}
    plain = built.data.scaling == "none"  # all clients' features are scaled alike
    data = like(Before(run.config, form if plain else replace(form, scaling={"how": "none"}), built.data), path)

    @cache
    def graph(whose: str) -> Graph:
        own = form if whose == GLOBAL else form_of_client(run, form, whose)
        made = data if plain else replace(data, x=compact(rescaled(data.x, **own.scaling)))
        return graph_of(made, data.features, built.fed.dtype)

    examples = np.arange(data.examples)
    predictions = [
        Predicted(name, probabilities(run.test_net_of(name), w, graph(GLOBAL if plain else name)), examples)
        for name, w in chosen.items()
    ]
    named = data.ids, built.data.labels, data.example
    return predictions_table(predictions, *named, data.y, by, ends_of(data))


def form_of_client(run: Trained, form: DataForm, client: str) -> DataForm:
    """The form of the run's data as a client has it, which may scale its features by its own nodes."""
    data = run.built.data
    if data.scaling == "none":
        return form
    part = run.seen.parts[list(run.built.fed.clients).index(client)]
    return replace(form, scaling=told(data.scaling, *of_part(data, part)))


def flagging_of(
    run: Trained, chosen: Mapping[str, Tree], predicted: Mapping[str, Tensor] | None = None
) -> Flagging | dict[str, Flagging] | None:
    """Which examples the run flags; None where it looks for no class, or has more than two. Where no one model serves
    all clients, {client: which} by the validation examples of each, of the `chosen` weights {client: w} or, of its own
    examples, as they are `predicted`."""
    data = run.built.data
    if data.classes != 2:
        return None
    metrics = read_summary(run.directory / SUMMARY)["metrics"]
    metrics = of_best(metrics) if run.when == "best" else metrics
    judging = run.config.evaluation.of(data.labels, data.classes)
    if metrics.get(THRESHOLD) is not None or not chooses(judging, metrics):
        return flagging(judging, metrics)
    graphs, rules = graphs_of(run.built.fed), dict[str, Flagging]()
    outputs = predicted or {name: probabilities(run.net_of(name), w, graphs[name]) for name, w in chosen.items()}
    for client, p in outputs.items():
        y, val = graphs[client].y.cpu().numpy()[: len(p)], graphs[client].masks[VAL].cpu().numpy()[: len(p)]
        rules[client] = by_validation(judging, metrics, p.cpu().numpy()[: len(y)][val], y[val])
    return rules


def chosen_models(run: Trained, client: str | None, which: str) -> Mapping[str, Tree]:
    """{client: its weights} of all clients, or of the one that is named."""
    return run.models(which) if client is None else {client: run.model_of(which, client)}


# ----------------------------------------------------------------------------------------------------
# Metrics of one's own: functions of labels and probabilities, of a finished run's models on its own examples.


Metric = Callable[[np.ndarray, np.ndarray], float]  # (y int64 [e], p float64 [e, c]) -> a number, NaN where it has none


@dataclass(frozen=True)
class SplitScores:
    """What a function says of one split.

    name:    of the function. clients: {client: its value on the client's own examples by the model that it uses}.
    local:   their mean, over those that have one. pooled: of all clients' examples together, each by its client's
             model; NaN without examples.
    overall: of the global test graph by the global model; None where there is none.
    """

    name: str
    clients: dict[str, float]
    local: float
    pooled: float
    overall: float | None = None


def function(name: str) -> Metric:
    """The function that "file.py:name", or the name that an installed package announces, stands for.

    Raises:
        ConfigError: there is none, or it cannot be called.
    """
    if plugins.is_file(name):
        value = plugins.load(name)
    else:
        known = plugins.announced("metric")
        if name not in known:
            raise ConfigError(
                f"--metric {name}: write file.py:function, or the name of one that an installed package announces "
                f"({', '.join(known) or 'none does'})."
            )
        value = known[name]
    if not callable(value):
        raise ConfigError(f"--metric {name}: it is no function (y, p) -> number.")
    result: Metric = value
    return result


def measured(table: pa.Table, metric: Metric, split: str = "test") -> SplitScores:
    """What the function says of the predictions of a run's own examples (`predictions.predictions_table`).

    Raises:
        UserError: there is no such split, no class is known, or the function fails or returns no number.
    """
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}.", code="user.no-split")
    if not {"true", "split"} <= set(table.column_names):
        raise UserError("no class of these examples is known, so that nothing can be measured.")
    wide = [column for column in table.column_names if column.startswith("p_")]
    place = {column.removeprefix("p_"): at for at, column in enumerate(wide)}
    y = np.array([-1 if value is None else place[str(value)] for value in table["true"].to_pylist()], np.int64)
    p = np.stack([table[column].to_numpy().astype(np.float64) for column in wide], 1)
    client, used = (np.array(table[column].to_pylist()) for column in ("client", "split"))
    use = (used == split) & (y >= 0)

    def of(member: np.ndarray) -> float:
        at = use & member
        return _called(metric, y[at], p[at]) if at.any() else math.nan

    names = [name for name in dict.fromkeys(client.tolist()) if name != GLOBAL]
    clients = {name: of(client == name) for name in names}
    some = [value for value in clients.values() if not math.isnan(value)]
    return SplitScores(
        _name(metric),
        clients,
        float(np.mean(some)) if some else math.nan,
        of(client != GLOBAL),
        of(client == GLOBAL) if GLOBAL in client else None,
    )


def of_run(
    directory: Path, metric: Metric, split: str = "test", model: str | None = None, config: Config | None = None
) -> SplitScores:
    """What the function says of a finished run's models. config: of the run, where the caller knows it.

    Raises:
        UserError: see `measured`; the run is not finished, was made between sites, or has no such model.
    """
    from fedweave.core.algorithm import capabilities
    from fedweave.experiment.runs.trained import finished, trained

    config = finished(directory) if config is None else config
    if capabilities(config.algorithm.kind).predicts:
        raise UserError("the parties of a vertical run predict jointly: take `fedweave predict` and its table.")
    run = trained(directory, config, "Where sites are, their owners measure.")
    return measured(of_own(run, model), metric, split)


def _name(metric: Metric) -> str:
    return metric.__name__ if isinstance(metric, FunctionType) else type(metric).__name__


def _called(metric: Metric, y: np.ndarray, p: np.ndarray) -> float:
    name = _name(metric)
    value = plugins.called(f"metric {name!r}", lambda: metric(y, p), UserError)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"metric {name!r} returned {type(value).__name__}, not a number.", code="user.metric"
        ) from error

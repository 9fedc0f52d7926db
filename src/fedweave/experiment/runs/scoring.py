"""Predictions of a finished horizontal run: for its own examples, and for new nodes or graphs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.engine import graphs_of
from fedweave.core.graph import VAL, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, device_of
from fedweave.datasets.features import compact, rescaled
from fedweave.errors import UserError
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.files import SUMMARY, read_summary
from fedweave.experiment.runs.form import Form, form_of_config, read_form, told
from fedweave.experiment.runs.new_data import Before, like
from fedweave.experiment.runs.predictions import Predicted, ends_of, predictions_table
from fedweave.experiment.runs.trained import Trained, check_finite
from fedweave.metrics.flagging import by_validation
from fedweave.metrics.judging import THRESHOLD, Flagging, chooses, flagging, of_best
from fedweave.metrics.measured import GLOBAL
from fedweave.partition.pooling import global_test_part
from fedweave.partition.scaling import of_part


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
    built, chosen = run.built, _chosen(run, client, model or "personal")
    graphs = graphs_of(built.fed)
    found = [
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
        found.append(Predicted(GLOBAL, p, test.examples, test.masks))
    data = built.data
    by = flagging_of(run, chosen)
    return predictions_table(found, data.ids, data.labels, data.example, data.y, by, ends_of(data))


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
    chosen = _chosen(run, client, which)
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
    found = [
        Predicted(name, probabilities(run.test_net_of(name), w, graph(GLOBAL if plain else name)), examples)
        for name, w in chosen.items()
    ]
    named = data.ids, built.data.labels, data.example
    return predictions_table(found, *named, data.y, by, ends_of(data))


def form_of_client(run: Trained, form: Form, client: str) -> Form:
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
    graphs, found = graphs_of(run.built.fed), dict[str, Flagging]()
    own = predicted or {name: probabilities(run.net_of(name), w, graphs[name]) for name, w in chosen.items()}
    for client, p in own.items():
        y, val = graphs[client].y.cpu().numpy()[: len(p)], graphs[client].masks[VAL].cpu().numpy()[: len(p)]
        found[client] = by_validation(judging, metrics, p.cpu().numpy()[: len(y)][val], y[val])
    return found


def _chosen(run: Trained, client: str | None, which: str) -> Mapping[str, Tree]:
    """{client: its weights} of all clients, or of the one that is named."""
    return run.models(which) if client is None else {client: run.model_of(which, client)}

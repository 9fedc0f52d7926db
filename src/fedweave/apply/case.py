"""What is explained: an example, the model that scores it, and the data that has it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from fedweave.apply.link_predictions import score_pairs
from fedweave.apply.predictions import flagging_of, form_of_client, form_of_run, node_names, part_of
from fedweave.apply.scorer import scorer_at
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.links import Links
from fedweave.core.model import Model
from fedweave.core.text import counted
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.datasets.name_matching import positions, similar_name_hint
from fedweave.errors import UserError, listed, option
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of, links_of
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.data_form import DataForm
from fedweave.experiment.runs.new_data import load_new_data
from fedweave.experiment.runs.outputs import probabilities
from fedweave.experiment.runs.trained import Trained, load_trained
from fedweave.metrics.selection import Flagging
from fedweave.partition.client_data import shares

Example: TypeAlias = int | np.ndarray  # its place, or of a pair int64 [3], the places of its ends and the relation


class Case(NamedTuple):
    """A model and the data that has the example.

    data: a client's. places: int64 [e], the numbers of its examples, which name them where there are no ids. predict:
    float64 [outputs], what the model predicts for an example. origin: which data typical values are of.
    relations: the names of links' relations, if pairs are explained. learned: whether nodes have learned vectors, and
    no columns.
    """

    client: str
    net: Model
    w: Tree
    data: Dataset
    dtype: torch.dtype
    form: DataForm
    flagging: Flagging | None
    places: np.ndarray
    predict: Callable[[Example], np.ndarray]
    origin: str
    relations: tuple[str, ...] = ()
    learned: bool = False

    def name_of(self, example: int) -> str:
        """The name of an example that is not a pair."""
        return self.data.ids[example] if self.data.ids else str(self.places[example])

    def place_of(self, name: str) -> int:
        """The place of the example with this name.

        Raises:
            UserError: there is none.
        """
        names = list(self.data.ids) if self.data.ids else [str(number) for number in self.places.tolist()]
        at = int(positions([name], names)[0])
        if at < 0:
            which = "ids" if self.data.ids else "numbers"
            hint = similar_name_hint(name, names)
            raise UserError(
                f"{name}: no {self.data.example} of {self.client} is called so{hint}. Name one of "
                f"{counted(len(names), self.data.example)}, with {which} such as {', '.join(names[:3])}.",
                code="explain.no-id",
            )
        return at


def case_of_tables(place: Path, tables: Path, client: str | None, model: str | None, when: When) -> Case:
    """The case of a model (`scorer.scorer_at`) and tables."""
    scorer = scorer_at(place, model, client, when)
    data, dtype = load_new_data(scorer.before, tables).data, DTYPES[scorer.dtype]

    def predict(at: Example) -> np.ndarray:
        p = probabilities(scorer.net, scorer.weights, graph_of(data, data.features, dtype))
        return p[at].double().numpy()

    return Case(
        client=scorer.client,
        net=scorer.net,
        w=scorer.weights,
        data=data,
        dtype=dtype,
        form=scorer.form,
        flagging=scorer.flagging,
        places=np.arange(data.examples),
        predict=predict,
        origin=f"in {tables}",
    )


def case_of_run(place: Path, config: Config, client: str | None, model: str | None, when: When) -> Case:
    """The case of a client of the run in the folder `place`: its model, and its own data."""
    run = load_trained(place, config, "Explain where the model is: `fedweave explain SITE --data PATH`.", when, model)
    client = _client_of(run, client)
    w = run.model_of(model or "personal", client)
    part, graph = part_of(run, client), graphs_of(run.built.fed)[client]
    if part.columns is not None:
        raise UserError("in the run each client has columns of its own. Take a run on nodes.", code="explain.alone")
    [data] = shares(run.built.data, [part])
    flagging = flagging_of(run, {client: w})

    def predict(at: Example) -> np.ndarray:
        return probabilities(run.net_of(client), w, graph)[at].double().numpy()

    return Case(
        client=client,
        net=run.test_net_of(client),
        w=w,
        data=data,
        dtype=run.built.fed.dtype,
        form=form_of_client(run, form_of_run(run), client),
        flagging=flagging.get(client) if isinstance(flagging, dict) else flagging,
        places=part.examples,
        predict=predict,
        origin=f"of {client}",
    )


def case_of_link(
    place: Path, config: Config, name: Sequence[str], client: str | None, model: str | None, when: When
) -> tuple[Case, np.ndarray]:
    """The case of a pair of one client's nodes in the run in the folder `place`, and the pair (`Example`). The edges of
    the data are those that carry messages for test links."""
    run = load_trained(place, config, "Pairs are explained from the folder of a simulation's run.", when, model)
    client = _client_of(run, client)
    w, graph, net = run.model_of(model or "personal", client), graphs_of(run.built.fed)[client], run.net_of(client)
    names, links = node_names(run, client), run.built.data.links or Links()
    pair = _pair_of(name, names, links, client)
    [data] = shares(run.built.data, [part_of(run, client)])
    passing = links_of(data)
    messages = replace(
        data,
        edges=passing.edges[:, np.lexsort(passing.edges[::-1])],
        edge_attrs=passing.edge_attrs,
        links=None,
        y=np.zeros(data.nodes, np.int64),
        public=np.zeros((3, data.nodes), bool),
        ids=tuple(names.tolist()),
    )

    def predict(at: Example) -> np.ndarray:
        table = score_pairs(client, net, w, graph, names, links, np.asarray(at)[:, None])
        p = float(table["score"][0].as_py())
        return np.array([1 - p, p])

    case = Case(
        client=client,
        net=run.test_net_of(client),
        w=w,
        data=messages,
        dtype=run.built.fed.dtype,
        form=form_of_client(run, form_of_run(run), client),
        flagging=None,
        places=np.arange(data.nodes),
        predict=predict,
        origin=f"of {client}",
        relations=links.relations,
        learned=config.learned,
    )
    return case, pair


def _client_of(run: Trained, client: str | None) -> str:
    """The client that has the example.

    Raises:
        UserError: it is not named, and the run has several.
    """
    clients = run.built.fed.clients
    if client is None and len(clients) > 1:
        raise UserError(
            f"the run has {counted(len(clients), 'client')}. Name the one that has the example as "
            f"{option('client')}: {listed(clients)}.",
            code="user.no-client",
        )
    return client or clients[0]


def _pair_of(name: Sequence[str], names: np.ndarray, links: Links, client: str) -> np.ndarray:
    """int64 [3]: the places of the ends of a pair among the names of a client's nodes, and its relation.

    Raises:
        UserError: the client has no such node, or there is no such relation.
    """
    ends, relation = name[:2], name[2] if len(name) > 2 else None
    if len(ends) < 2 or (relation is None) is bool(links.relations):
        due = "source and target" + (f", and a relation of {listed(links.relations)}" * bool(links.relations))
        raise UserError(f"a pair to explain: give {due}.", code="explain.pair")
    if relation is not None and relation not in links.relations:
        raise UserError(f"relation {relation}: the run has {listed(links.relations)}. Choose one.", code="explain.pair")
    nodes = names.tolist()
    places = positions(ends, nodes).tolist()
    if -1 in places:
        end = ends[places.index(-1)]
        hint = similar_name_hint(end, nodes)
        raise UserError(
            f"a pair to explain: no node of {client} is called {end!r}{hint}. Name two of "
            f"{counted(len(nodes), 'node')}, such as {', '.join(nodes[:3])}.",
            code="explain.no-id",
        )
    number = links.relations.index(relation) if relation is not None else 0
    return np.array([*places, number])

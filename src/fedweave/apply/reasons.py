"""Reasons for one score: the columns, neighbors and edges that move it, each with the score without it.

Leaving out (occlusion; Zeiler and Fergus, ECCV 2014, "Visualizing and understanding convolutional networks") needs the
model alone: a column takes a typical value, a node goes with its edges, or one edge goes. The second opinion is
integrated gradients (Sundararajan, Taly and Yan, ICML 2017, "Axiomatic attribution for deep networks", eq. 1).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch

from fedweave.apply.link_predictions import scored
from fedweave.apply.neighborhood import Neighborhood, around, joined, passes, reach, scores
from fedweave.apply.predictions import flagging_of, form_of_client, from_outputs, link_names, probabilities
from fedweave.apply.scorer import scorer_at
from fedweave.core import model as models
from fedweave.core.algorithm import capabilities, graphs_of
from fedweave.core.edge_attributes import format_date
from fedweave.core.graph import TRAIN
from fedweave.core.graph_arrays import DTYPES, dense
from fedweave.core.links import Links
from fedweave.core.model import Model
from fedweave.core.shown import Shown, page
from fedweave.core.target import CLASS, NUMBER
from fedweave.core.text import counted
from fedweave.core.tree import Tree, device_of
from fedweave.core.types import Record
from fedweave.datasets import contents
from fedweave.datasets.base import Dataset
from fedweave.datasets.name_matching import positions, similar_name_hint
from fedweave.errors import UserError, listed
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of, links_of
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.data_form import DataForm, form_of_config, read_form
from fedweave.experiment.runs.files import CONFIG
from fedweave.experiment.runs.new_data import load_new_data
from fedweave.experiment.runs.trained import Trained, finished, trained
from fedweave.metrics.selection import HALF, Flagging
from fedweave.partition.client_data import shares

Method: TypeAlias = Literal["leave-out", "gradients"]
Example: TypeAlias = int | np.ndarray  # its place, or of a pair int64 [3], the places of its ends and the relation
METHODS: tuple[str, ...] = get_args(Method)
MOST = 1000  # neighbors and edges that are left out
WORK = 1 << 23  # nodes and edges of all copies together, beyond which fewer are left out
LEAST = 32  # of them in any case
GROUPS, LIKELY = 8, 2  # into which neighbors are cut that are too many; of which some at a time are cut in two
STEPS = 50  # of the integral of gradients
CLOSE = 1e-4  # of the score, or of a number's scale: what rounding may differ by
ROUNDING = 1e-6  # effects that are no larger are no reasons
MISSING = " is missing"  # at the end of a column that says where another had no value
SHOWN = 4  # values in one cell


@dataclass(frozen=True)
class Reason:
    """What moves a score.

    kind:    "column", "neighbor", "edge" or, of all edges from one node to another, "edges"; of small graphs "node",
             "atom" or "bond".
    name:    what it is called, of a column with the end of a transfer. value: what it is. typical: what a column is set
             to; "" of others.
    without: the score without it; None of gradients.
    effect:  score − without: positive where it raises the score. Of gradients, its part of the score.
    places:  of small graphs, the numbers of the nodes that it is.
    """

    kind: str
    name: str
    value: str
    typical: str
    without: float | None
    effect: float
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class SmallGraph:
    """A small graph to be drawn: what its nodes are called, who is joined to whom, and its SMILES, if there is one."""

    names: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    smiles: str = ""


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """Why a model gives one example its score; reasons with the largest effect first.

    client, example, name: whose model, "node", "edge" or "graph", and what it is called. quantity: what the score is.
    threshold: from which score on it is flagged; None where nothing is. usual: what columns are set to. base: with
    gradients, the score where all columns have these values. graph: a small graph, to be drawn.
    """

    client: str
    example: str
    name: str
    quantity: str
    score: float
    threshold: float | None
    method: str
    usual: str
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()
    base: float | None = None
    graph: SmallGraph | None = None

    @property
    def probability(self) -> bool:
        """Whether the score is one, and no number in the data's units."""
        return self.quantity.startswith("probability")

    def written(self, score: float) -> str:
        """A score, or a difference of two, as text: a probability with three digits, or with more if the largest
        effect would otherwise have fewer than two."""
        return f"{score:.{self._digits}f}" if self.probability else f"{score:.6g}"

    @property
    def _digits(self) -> int:
        largest = max((abs(one.effect) for one in self.reasons), default=0.0)
        return 3 if largest >= 0.01 or not largest else min(6, 1 - math.floor(math.log10(largest)))

    @property
    def headline(self) -> str:
        """The score in a sentence."""
        rule = "" if self.threshold is None else f", {'at or above' if self.flagged else 'below'} the threshold "
        rule += "" if self.threshold is None else f"{self.threshold:.3f}"
        return f"{self.example} {self.name} of {self.client}: the {self.quantity} is {self.written(self.score)}{rule}."

    @property
    def flagged(self) -> bool | None:
        """Whether it is; None where nothing is."""
        return None if self.threshold is None else self.score >= self.threshold

    @property
    def table(self) -> pa.Table:
        """A row for each reason."""
        names = ("kind", "name", "value", "typical", "without", "effect")
        kinds = dict.fromkeys(names, pa.string()) | {"without": pa.float64(), "effect": pa.float64()}
        return pa.table({name: pa.array([getattr(one, name) for one in self.reasons], kinds[name]) for name in names})

    @property
    def record(self) -> Record:
        """All of it, for JSON."""
        return {**asdict(self), "flagged": self.flagged}

    def facts(self) -> dict[str, object]:
        """The score, and the first reason."""
        first = {"first": self.reasons[0].name} if self.reasons else {}
        return {"": self.name, "client": self.client, "score": self.score, "reasons": len(self.reasons), **first}

    def _repr_html_(self) -> str:
        heads = ("", "reason", "value", "typical", "score without", "effect")
        rows = [
            (one.kind, one.name, one.value, one.typical, *(("" if one.without is None else one.without), one.effect))
            for one in self.reasons
        ]
        return page(self.headline, rows, heads)


class Case(NamedTuple):
    """A model and the data that has the example.

    data: a client's. places: int64 [e], the numbers of its examples, which name them where there are no ids. expected:
    float64 [outputs], what the model says of the example. usual: what data the typical values are of.
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
    expected: Callable[[Example], np.ndarray]
    usual: str
    relations: tuple[str, ...] = ()
    learned: bool = False


def explain(
    place: Path,
    name: str | Sequence[str],
    client: str | None = None,
    tables: Path | None = None,
    model: str | None = None,
    target: str | None = None,
    method: Method = "leave-out",
    when: When = "last",
) -> Explanation:
    """The reasons for the score of the example called `name`; of a run on links, of a pair: the names of its source and
    target and, with several relations, of the relation.

    place: the directory of a simulation's run, or what `scorer.scorer_at` takes. client: whose example it is, and whose
    model. tables: where the example is; None is the run's own data. target: the class, label or number to explain; by
    default the class that is looked for, or the predicted one.

    Raises:
        UserError: there is no such run, client, example or target, or the model predicts jointly. DataError: the tables
            are of another form than those of training.
    """
    if method not in METHODS:
        raise UserError(f"method = {method!r}: unknown. Choose {' or '.join(METHODS)}.", code="explain.method")
    config = finished(place) if (place / CONFIG).is_file() else None
    if config is not None:
        _check_alone(config)
    if config is not None and config.links is not None:
        return _of_link(place, config, name, client, tables, model, target, method, when)
    if not isinstance(name, str):
        raise UserError(
            "--pair: only runs on links have pairs to explain. Name a node, edge or small graph: --id.",
            code="explain.pair",
        )
    if tables is not None:
        case = _of_tables(place, tables, client, model, when)
    elif config is not None:
        case = _of_run(place, config, client, model, when)
    else:
        raise UserError(
            f"{place} holds a model and no data. Name the tables with the example: --tables DIR.", code="explain.tables"
        )
    return reasons(case, _example(case, name), target, method)


def _check_alone(config: Config) -> None:
    if (config.learned and config.links is None) or capabilities(config.algorithm.kind).predicts:
        raise UserError(
            "fedweave explain: this run learns a vector for each node that it classifies, or is of parties that "
            "predict jointly. It explains nodes, edges, links and small graphs of other runs.",
            code="explain.alone",
        )


def _of_tables(place: Path, tables: Path, client: str | None, model: str | None, when: When) -> Case:
    scorer = scorer_at(place, model, client, when)
    data, dtype = load_new_data(scorer.before, tables).data, DTYPES[scorer.dtype]

    def expected(at: Example) -> np.ndarray:
        p = probabilities(scorer.net, scorer.weights, graph_of(data, data.features, dtype))
        return p[at].double().numpy()

    about = scorer.form, scorer.flagging, np.arange(data.examples), expected, f"in {tables}"
    return Case(scorer.client, scorer.net, scorer.weights, data, dtype, *about)


def _of_run(place: Path, config: Config, client: str | None, model: str | None, when: When) -> Case:
    run = trained(place, config, "Explain where the model is: a site's folder as MODEL, and its --tables.", when)
    whose = _client(run, client)
    w = run.model_of(model or "personal", whose)
    part = run.seen.parts[list(run.built.fed.clients).index(whose)]
    if part.columns is not None:
        raise UserError("in the run each client has columns of its own. Take a run on nodes.", code="explain.alone")
    data, graph = run.built.data, graphs_of(run.built.fed)[whose]
    [share] = shares(data, [part])
    form = form_of_client(run, read_form(place) or form_of_config(config, data, run.built.partition), whose)
    rule = flagging_of(run, {whose: w})
    flagging = rule if rule is None or isinstance(rule, Flagging) else rule.get(whose)

    def expected(at: Example) -> np.ndarray:
        return probabilities(run.net_of(whose), w, graph)[at].double().numpy()

    about = form, flagging, part.examples, expected, f"of {whose}"
    return Case(whose, run.test_net_of(whose), w, share, run.built.fed.dtype, *about)


def _client(run: Trained, client: str | None) -> str:
    """The client that has the example.

    Raises:
        UserError: it is not named, and the run has several.
    """
    clients = run.built.fed.clients
    if client is None and len(clients) > 1:
        raise UserError(
            f"the run has {counted(len(clients), 'client')}. Name the one that has the example: --client "
            f"{listed(clients)}.",
            code="user.no-client",
        )
    return client or clients[0]


def _of_link(
    place: Path,
    config: Config,
    name: str | Sequence[str],
    client: str | None,
    tables: Path | None,
    model: str | None,
    target: str | None,
    method: Method,
    when: When,
) -> Explanation:
    """The reasons for the score of a pair of one client's nodes, by the edges that carry messages for test links."""
    if isinstance(name, str) or tables is not None or target is not None:
        raise UserError(
            "fedweave explain: the run predicts links among its own nodes. Name a pair, --pair SOURCE TARGET, "
            "and leave out --id, --tables and --target.",
            code="explain.pair",
        )
    if config.learned and method == "gradients":
        raise UserError(
            "--method gradients: it weighs columns, and the nodes of this run have learned vectors. Leave it out.",
            code="explain.method",
        )
    run = trained(place, config, "Pairs are explained from the folder of a simulation's run.", when)
    whose, data = _client(run, client), run.built.data
    w, graph, called = run.model_of(model or "personal", whose), graphs_of(run.built.fed)[whose], link_names(run, whose)
    links, net = data.links or Links(), run.net_of(whose)
    link = _link(name, called, links, whose)
    [share] = shares(data, [run.seen.parts[list(run.built.fed.clients).index(whose)]])
    passing = links_of(share)
    messages = replace(
        share,
        edges=passing.edges[:, np.lexsort(passing.edges[::-1])],
        edge_attrs=passing.edge_attrs,
        links=None,
        y=np.zeros(share.nodes, np.int64),
        public=np.zeros((3, share.nodes), bool),
        ids=tuple(called.tolist()),
    )
    form = form_of_client(run, read_form(place) or form_of_config(config, data, run.built.partition), whose)

    def expected(at: Example) -> np.ndarray:
        table = scored(whose, net, w, graph, called, links, np.asarray(at)[:, None])
        p = float(table["score"][0].as_py())
        return np.array([1 - p, p])

    about = form, None, np.arange(share.nodes), expected, f"of {whose}", links.relations, config.learned
    case = Case(whose, run.test_net_of(whose), w, messages, run.built.fed.dtype, *about)
    return reasons(case, link, None, method)


def _link(name: Sequence[str], called: np.ndarray, links: Links, client: str) -> np.ndarray:
    """int64 [3]: the places of the ends of a pair among the names of a client's nodes, and its relation.

    Raises:
        UserError: the client has no such node, or there is no such relation.
    """
    ends, relation = name[:2], name[2] if len(name) > 2 else None
    if len(ends) < 2 or (relation is None) is bool(links.relations):
        due = "SOURCE and TARGET" + (f", and --relation with one of {listed(links.relations)}" * bool(links.relations))
        raise UserError(f"--pair: give {due}.", code="explain.pair")
    if relation is not None and relation not in links.relations:
        raise UserError(
            f"--relation {relation}: the run has {listed(links.relations)}. Choose one.", code="explain.pair"
        )
    nodes = called.tolist()
    places = positions(ends, nodes).tolist()
    if -1 in places:
        end = ends[places.index(-1)]
        hint = similar_name_hint(end, nodes)
        raise UserError(
            f"--pair: no node of {client} is called {end!r}{hint}. Name two of {counted(len(nodes), 'node')}, such as "
            f"{', '.join(nodes[:3])}.",
            code="explain.no-id",
        )
    number = links.relations.index(relation) if relation is not None else 0
    return np.array([*places, number])


def _example(case: Case, name: str) -> int:
    """The place of the example that is called so.

    Raises:
        UserError: there is none.
    """
    data = case.data
    names = list(data.ids) if data.ids else [str(number) for number in case.places.tolist()]
    at = int(positions([name], names)[0])
    if at < 0:
        which = "ids" if data.ids else "numbers"
        hint = similar_name_hint(name, names)
        raise UserError(
            f"--id {name}: no {data.example} of {case.client} is called so{hint}. Name one of "
            f"{counted(len(names), data.example)}, with {which} such as {', '.join(names[:3])}.",
            code="explain.no-id",
        )
    return at


# ----------------------------------------------------------------------------------------------------
# Columns: which of the model's became of one column of a table, what is typical of them, and what they say.


class Columns:
    """The columns of nodes, or of edges.

    names:   what the model's d columns are called. groups: {column of a table: the places of what it became}.
    typical: float32 [d]: the median of each column; of categories, the most frequent row of theirs.
    dates:   the column of dates, or "".
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: "np.ndarray | sp.csr_matrix",
        shift: np.ndarray,
        divisor: np.ndarray,
        dates: str = "",
    ) -> None:
        self.names, self._shift, self._divisor, self._dates = names, shift, divisor, dates
        self.groups: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            bare = name.removesuffix(MISSING)
            self.groups.setdefault(contents.column(name).of or (bare if bare in names else name), []).append(at)
        self.typical = _medians(rows)
        for columns in self.groups.values():
            if contents.column(names[columns[0]]).of:
                each, count = np.unique(dense(rows[:, columns]), axis=0, return_counts=True)
                self.typical[columns] = each[::-1][count[::-1].argmax()]  # of equal ones the first

    def written(self, columns: list[int], row: np.ndarray) -> str:
        """What the columns of one group say in a row [d], in the data's units."""
        values = row[columns] * self._divisor[columns] + self._shift[columns]
        ones = [contents.column(self.names[at]) for at in columns]
        held = [one for one, value in zip(ones, values, strict=True) if value > HALF]
        if ones[0].of:
            return ", ".join(one.value for one in held) or "none"
        if any(one.name.endswith(MISSING) for one in held):
            return "missing"
        return format_date(values[0]) if ones[0].name == self._dates else f"{values[0]:.6g}"


def _medians(rows: "np.ndarray | sp.csr_matrix") -> np.ndarray:
    """float32 [d], of the columns of rows [m, d]."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.median(rows, axis=0), np.float32)
    medians = np.zeros(rows.shape[1], np.float32)
    often = np.flatnonzero(2 * rows.getnnz(0) > rows.shape[0])  # the others are 0 in half of the rows or more
    medians[often] = np.median(dense(rows[:, often]), axis=0)
    return medians


def _columns_of_nodes(case: Case, used: np.ndarray) -> Columns:
    """used: bool [e], the examples that are typical."""
    if case.learned:
        return Columns((), np.zeros((1, 0), np.float32), np.zeros(0), np.zeros(0))
    data, scaling = case.data, case.form.scaling
    names = list(case.form.columns) or list(contents.names(data))
    if data.graph_of is not None:
        rows = np.flatnonzero(used[data.graph_of])
    elif data.example == "edge" and data.edge_attrs is not None:
        rows = np.unique(data.edge_attrs.ends[:, used])
    else:
        rows = np.flatnonzero(used)
    shift, divisor = np.zeros(len(names)), np.ones(len(names))
    if len(scaling.get("shift", ())):
        shift, divisor = (np.array([value or 0.0 for value in scaling[key]]) for key in ("shift", "divisor"))
    return Columns(names, data.x[rows], shift, divisor)


def _columns_of_edges(case: Case, used: np.ndarray) -> Columns:
    attributes = case.data.edge_attrs
    if attributes is None or attributes.features is None:
        return Columns((), np.zeros((1, 0), np.float32), np.zeros(0), np.zeros(0))
    names = attributes.columns or tuple(f"edge feature {at}" for at in range(attributes.width))
    scaling = np.array(attributes.scaling or ((0.0, 1.0),) * attributes.width)
    rows = attributes.features[used if attributes.examples else slice(None)]
    shift, divisor = scaling.T
    return Columns(names, rows, shift, divisor, attributes.dates)


# ----------------------------------------------------------------------------------------------------
# What can be left out of a neighborhood, and what the model says without it.


class Change(NamedTuple):
    """A reason to be tried, and what makes the copy of the neighborhood without it; see `Reason`."""

    kind: str
    name: str
    value: str
    typical: str
    copy: Callable[[], Neighborhood]
    places: tuple[int, ...] = ()


class Surroundings:
    """What a case has around an example, by name. near: its neighborhood. output: which of the model's is explained."""

    def __init__(self, case: Case, near: Neighborhood, output: int, smiles: str = "") -> None:
        self.case, self.near, self.output = case, near, output
        data = case.data
        train = np.zeros(data.examples, bool) if data.public is None else np.asarray(data.public)[TRAIN]
        used = train if train.any() else np.ones(data.examples, bool)
        count = counted(int(used.sum()), f"{'training ' * bool(train.any())}{data.example}")
        self.usual = f"the median over the {count} {case.usual}; of categories, the most frequent one"
        if case.learned:
            self.usual = "none, because nodes have learned vectors and no columns"
        self.columns, self.edge_columns = _columns_of_nodes(case, used), _columns_of_edges(case, used)
        self._of_graph = data.example == "graph"
        self._words = ("atom", "bond") if smiles else ("node", "edge") if self._of_graph else ("neighbor", "edge")
        self.graph = None
        if self._of_graph:
            pairs = tuple((int(a), int(b)) for a, b in near.pairs.T)
            self.graph = SmallGraph(tuple(map(self._name, range(len(near.nodes)))), pairs, smiles)

    def _name(self, node: int) -> str:
        """What a node is called."""
        data, at = self.case.data, int(self.near.nodes[node])
        if self._of_graph:
            kind = self.columns.groups.get("label")
            return f"{node}" if kind is None else f"{node} {self.columns.written(kind, self.near.x[node])}"
        names = data.node_ids if data.example == "edge" else data.ids
        return names[at] if names else str(self.case.places[at] if data.example == "node" else at)

    @property
    def pair(self) -> str:
        """What the pair of nodes is called that is the example."""
        if self.near.link is None:
            return ""
        source, target, relation = self.near.link.tolist()
        links = self.case.relations
        return f"{self._name(source)} → {self._name(target)}" + (f" ({links[relation]})" if links else "")

    @property
    def _ends(self) -> dict[str, np.ndarray]:
        """{what stands before the names of columns: the nodes whose columns are reasons}."""
        near = self.near
        if near.example != "edge" and near.link is None:
            return {"": near.near}
        source, target = near.ends[:, near.target] if near.link is None else near.link[:2]
        return {"source: ": np.array([source]), "target: ": np.array([target])}

    @property
    def _groups(self) -> dict[str, list[int]]:
        """The columns of nodes that are reasons; of a small graph without the kinds of nodes, which are left out."""
        groups = self.columns.groups
        if not self._of_graph:
            return groups
        kinds = {name: contents.column(self.columns.names[columns[0]]).kind for name, columns in groups.items()}
        return {name: columns for name, columns in groups.items() if kinds[name] not in ("label", "degree")}

    # ------------------------------------------------------------------------------------------------
    # Leaving out.

    def changes(self, alone: bool) -> tuple[list[Change], int]:
        """What can be left out, and how many neighbors and edges are not. Where these are too many, it has those for
        whose features, or for those of an edge's farther end, the score has the largest slopes, and in addition those
        that `_sought` finds."""
        near, ends = self.near, self.near.ends
        nodes = np.array([node for node in range(len(near.nodes)) if self._can_go(node)], np.int64)
        edges = np.array([at for at in range(ends.shape[1]) if near.example != "edge" or at != near.target], np.int64)
        far = np.where(near.distance[ends[0]] > near.distance[ends[1]], *ends)[edges]
        most = min(MOST, max(LEAST, WORK // (len(near.nodes) + ends.shape[1])))
        if len(nodes) + len(edges) <= most:
            order = np.arange(len(nodes) + len(edges))
        else:
            where = np.concatenate([nodes, far])
            slopes = np.zeros(len(near.nodes))
            if not near.learned:
                slopes = np.abs(self._slopes(np.zeros_like(near.x[0]), np.ones(1), alone)).sum(1)
            order = np.lexsort((near.distance[where], -slopes[where]))
            picks = np.zeros(len(near.nodes), bool)
            picks[self._sought(nodes[order[order < len(nodes)]], most, alone)] = True
            joins = picks[ends[0]] | picks[ends[1]]
            at_example = (near.distance[ends] == 0).any(0)
            more = np.flatnonzero(np.concatenate([picks[nodes], (joins & at_example)[edges]]))
            order = np.concatenate([order[:most], more[: most + LEAST][~np.isin(more[: most + LEAST], order[:most])]])
        tried = [
            self._node(int(nodes[at])) if at < len(nodes) else self._edge(int(edges[at - len(nodes)])) for at in order
        ]
        parallel = self._parallel()
        return [*self._edge_columns(), *self._columns(), *parallel, *tried], len(nodes) + len(edges) - len(order)

    def _sought(self, nodes: np.ndarray, most: int, alone: bool) -> np.ndarray:
        """int64, some of the `nodes` that move the score, found by leaving out groups: the groups that move it most for
        each of their nodes are cut in two, until they are single nodes or `most` groups, or enough for one node, were
        left out.

        A node without which alone the score changes is found after about 2 log₂ n groups, unless others in its groups
        hide it. The search takes the neighborhood that messages come from, without the edges beyond, on which the
        degrees of its border depend: it proposes, and `left_out` gives the exact effects.
        """
        case, near, hops = self.case, self.near, reach(self.case.net)
        place = {int(at): number for number, at in enumerate(near.nodes)}
        if hops is not None and not self._of_graph:
            near = around(case.data, near.place, hops, near.several, near.learned)
            nodes = np.searchsorted(near.nodes, self.near.nodes[nodes])[np.isin(self.near.nodes[nodes], near.nodes)]
        first = scores(case.net, case.w, [near], case.dtype, alone)[0, self.output]
        most = max(most, 2 * GROUPS + 2 * LIKELY * len(nodes).bit_length())
        sides = [near.distance[nodes] == 1, near.distance[nodes] > 1]
        fresh = [part for side in sides for part in np.array_split(nodes[side], GROUPS) if len(part)]
        singles, waiting, count = list[tuple[float, int]](), list[tuple[float, np.ndarray]](), 0
        while fresh and count < most:
            count += len(fresh)
            copies = (near.without(node=part) for part in fresh)
            changes = np.abs(first - scores(case.net, case.w, copies, case.dtype, alone)[:, self.output])
            for part, by in zip(fresh, changes.tolist(), strict=True):
                if len(part) == 1:
                    singles.append((by, int(part[0])))
                else:
                    waiting.append((by / len(part), part))
            waiting.sort(key=lambda one: one[0])
            fresh = [half for _, part in waiting[-LIKELY:] for half in np.array_split(part, 2)]
            del waiting[-LIKELY:]
        best = sorted(singles, reverse=True)[: max(1, LEAST // 4)]
        return np.array([place[int(near.nodes[node])] for _, node in best], np.int64)

    def _can_go(self, node: int) -> bool:
        return len(self.near.nodes) > 1 if self._of_graph else bool(self.near.distance[node] > 0)

    def _columns(self) -> Iterator[Change]:
        """Each column that is not typical of the example's nodes."""
        near, all_of = self.near, self.columns
        for before, nodes in self._ends.items():
            rows = near.x[nodes]
            for name, columns in self._groups.items():
                if (rows[:, columns] != all_of.typical[columns]).any():
                    value = self._values(columns, rows)
                    copy = partial(near.with_columns, nodes, columns, all_of.typical[columns])
                    yield Change("column", before + name, value, all_of.written(columns, all_of.typical), copy)

    def _values(self, columns: list[int], rows: np.ndarray) -> str:
        """What columns say at the example's nodes."""
        values = dict.fromkeys(self.columns.written(columns, row) for row in rows)
        return ", ".join(values) if len(values) <= SHOWN else counted(len(values), "value")

    def _edge_columns(self) -> Iterator[Change]:
        """Each column that is not typical of the edge that is the example."""
        near, all_of = self.near, self.edge_columns
        if near.example != "edge" or near.edge_attrs is None or near.edge_attrs.features is None:
            return
        row = near.edge_attrs.features[near.target]
        for name, columns in all_of.groups.items():
            if (row[columns] != all_of.typical[columns]).any():
                value, usual = all_of.written(columns, row), all_of.written(columns, all_of.typical)
                copy = partial(near.with_edge_columns, near.target, columns, all_of.typical[columns])
                yield Change("column", name, value, usual, copy)

    def _node(self, node: int) -> Change:
        word = self._words[0]
        far = "" if self._of_graph else f"{counted(int(self.near.distance[node]), 'step')} away"
        places = (node,) if self._of_graph else ()
        return Change(word, self._name(node), far, "", partial(self.near.without, node=node), places)

    def _edge(self, edge: int) -> Change:
        near = self.near
        first, second = near.ends[:, edge].tolist()
        says = list[str]()
        if near.edge_attrs is not None and near.edge_attrs.features is not None:
            row, groups = near.edge_attrs.features[edge], list(self.edge_columns.groups.items())[:SHOWN]
            says = [f"{name} {self.edge_columns.written(columns, row)}" for name, columns in groups]
        if near.edge_attrs is not None and near.edge_attrs.time is not None and near.link is None:
            says.append(f"time {near.edge_attrs.format_time(near.edge_attrs.time[edge])}")
        way = "→" if near.edge_attrs is not None and near.edge_attrs.directed else "—"
        name = f"{self._name(first)} {way} {self._name(second)}"
        places = (first, second) if self._of_graph else ()
        return Change(self._words[1], name, ", ".join(says), "", partial(near.without, edge=edge), places)

    def _parallel(self) -> list[Change]:
        """All edges from one node to another at the example together, where they are several."""
        near, ends = self.near, self.near.ends
        if self._of_graph or near.edge_attrs is None:
            return []
        here = np.flatnonzero((near.distance[ends] == 0).any(0))
        here = here[here != near.target] if near.example == "edge" else here
        first, second = ends[:, here] if near.edge_attrs.directed else np.sort(ends[:, here], 0)
        result, codes = list[Change](), first * len(near.nodes) + second
        for code in np.unique(codes):
            rows = here[codes == code]
            if len(rows) > 1:
                name, value = self._edge(int(rows[0])).name, f"all {len(rows):,}"
                result.append(Change("edges", name, value, "", partial(near.without, edge=rows)))
        return result

    def left_out(self, changes: Sequence[Change], score: float, alone: bool) -> list[Reason]:
        """Each with the score without it."""
        if not changes:
            return []
        case = self.case
        p = scores(case.net, case.w, (one.copy() for one in changes), case.dtype, alone)[:, self.output]
        return [
            Reason(one.kind, one.name, one.value, one.typical, without, score - without, one.places)
            for one, without in zip(changes, p.tolist(), strict=True)
        ]

    # ------------------------------------------------------------------------------------------------
    # Gradients.

    def gradients(self, alone: bool) -> tuple[list[Reason], float]:
        """Of each column, and of each neighbor, its part of the difference to the score where all columns are typical,
        the second value: (x − x′) ∫ ∂score / ∂x along the line from x′, the typical columns, to x (eq. 1)."""
        case, near, usual = self.case, self.near, self.columns.typical
        effect = (near.x - usual) * self._slopes(usual, (np.arange(STEPS) + 0.5) / STEPS, alone) / STEPS
        base = scores(case.net, case.w, [replace(near, x=np.tile(usual, (len(near.nodes), 1)))], case.dtype)[
            0, self.output
        ]
        return [*self._weighed(effect)], float(base)

    def _slopes(self, start: np.ndarray, steps: np.ndarray, alone: bool) -> np.ndarray:
        """float64 [n, d], the sum of ∂score / ∂x at some shares of the way to x from rows `start` [d]."""
        case, near, slopes = self.case, self.near, np.zeros(self.near.x.shape)
        between = (replace(near, x=start + np.float32(step) * (near.x - start), sparse=False) for step in steps)
        for part in passes(between, alone):
            graph, targets = joined(part, case.dtype)
            graph = graph.to(device_of(case.w))
            x = torch.as_tensor(graph.x, device=device_of(case.w)).requires_grad_()
            with torch.enable_grad():
                outputs = models.infer(case.net, case.w, graph._replace(x=x))
                [slope] = torch.autograd.grad(from_outputs(outputs, graph)[targets, self.output].sum(), x)
            slope = slope[: len(part) * len(near.nodes)].view(len(part), *near.x.shape)
            slopes += slope.sum(0).double().cpu().numpy()
        return slopes

    def _weighed(self, effect: np.ndarray) -> Iterator[Reason]:
        """Reasons by the effect float64 [n, d] of each column of each node: the columns of the example's nodes, and of
        other nodes, or those of a small graph, the sum of theirs."""
        all_of = self.columns
        for before, nodes in self._ends.items():
            for name, columns in self._groups.items():
                if (part := float(effect[nodes[:, None], columns].sum())) != 0:
                    value, usual = self._values(columns, self.near.x[nodes]), all_of.written(columns, all_of.typical)
                    yield Reason("column", before + name, value, usual, None, part)
        for node in range(len(self.near.nodes)):
            if self._can_go(node):
                places = (node,) if self._of_graph else ()
                yield Reason(self._words[0], self._name(node), "", "", None, float(effect[node].sum()), places)


# ----------------------------------------------------------------------------------------------------
# The reasons of one case.


def reasons(case: Case, example: Example, target: str | None = None, method: Method = "leave-out") -> Explanation:
    """The reasons for the score of an example.

    Raises:
        UserError: there is no such target, or the model reads more than columns and edges.
    """
    data, expected, notes = case.data, case.expected(example), list[str]()
    output, quantity = (
        (1, "probability of a link") if isinstance(example, np.ndarray) else _target(case, expected, target)
    )
    near, alone = _neighborhood(case, example, expected)
    around_it = Surroundings(
        case, near, output, data.smiles[example] if data.smiles and isinstance(example, int) else ""
    )
    what, name = (data.example, _name(case, example)) if isinstance(example, int) else ("link", around_it.pair)
    score, base = float(expected[output]), None
    if data.example != "graph" and not near.neighbors:
        notes.append(
            f"This {what} has no neighbors: the model reads its {'vectors' * case.learned or 'columns'} alone."
        )
    elif reach(case.net) == 0:
        notes.append("The model passes no messages: no neighbor and no edge moves its scores.")
    if method == "gradients":
        ranked, base = around_it.gradients(alone)
        if data.edge_attrs is not None:
            notes.append("Gradients weigh the columns of nodes, and not what edges carry.")
    else:
        changes, rest = around_it.changes(alone)
        if rest:
            notes.append(
                f"{rest:,} neighbors and edges were not tried one by one: the score is least sensitive to them, and "
                "neighbors in groups led to others."
            )
        ranked = around_it.left_out(changes, score, alone)
    rounding = ROUNDING * max(1.0, abs(score))
    ranked = sorted((one for one in ranked if abs(one.effect) > rounding), key=lambda one: -abs(one.effect))
    flagging = case.flagging
    looked_for = flagging is not None and data.target == CLASS and output == flagging.positive
    return Explanation(
        case.client,
        what,
        name,
        quantity,
        score,
        flagging.threshold if flagging is not None and looked_for else None,
        method,
        around_it.usual,
        tuple(ranked),
        tuple(notes),
        base,
        around_it.graph,
    )


def _name(case: Case, example: int) -> str:
    """What an example that is no pair is called."""
    return case.data.ids[example] if case.data.ids else str(case.places[example])


def _target(case: Case, expected: np.ndarray, target: str | None) -> tuple[int, str]:
    """Which output is explained, and what it is.

    Raises:
        UserError: there is no such class, label or number.
    """
    kind, numbered = case.data.target, [str(number) for number in range(len(expected))]
    usual = 0 if kind == NUMBER else int(expected.argmax())
    if kind == CLASS:
        names = list(case.form.labels) or numbered
        usual = usual if case.flagging is None else case.flagging.positive
    else:
        names = list((case.form.targets or {}).get("names", ())) or numbered
    if target is not None and target not in names:
        raise UserError(f"--target {target}: the model has {listed(names)}. Choose one.", code="explain.target")
    output = usual if target is None else names.index(target)
    what = "predicted" if kind == NUMBER else "probability of class" if names is numbered else "probability of"
    return output, f"{what} {names[output]}"


def _neighborhood(case: Case, example: Example, expected: np.ndarray) -> tuple[Neighborhood, bool]:
    """The smallest neighborhood on which the model gives the score of the whole graph, and whether each copy has to be
    scored alone.

    Raises:
        UserError: there is none: the model reads what no copy has.
    """
    hops, of_graph = reach(case.net), case.data.example == "graph"
    close = CLOSE * (max(1.0, float(np.abs(expected).max())) if case.data.target == NUMBER else 1.0)
    # Messages depend on the degrees of nodes, so on edges one step beyond the nodes that are read.
    sizes = [None] if of_graph else [] if hops is None else [hops + 1, hops + 2]
    for size, alone in [*((size, False) for size in sizes), (None, True)]:
        near = around(case.data, example, size, bool(case.relations), case.learned)
        beside = [] if alone else [near.blank()]  # which it must not read
        p = scores(case.net, case.w, [near, *beside], case.dtype)[0]
        if np.abs(p - expected).max() < close:
            return near, alone
    raise UserError(
        "the model reads more than the columns and edges of the example's graph, such as codes that its algorithm "
        "computed before training. Explain a model of another algorithm.",
        code="explain.model",
    )

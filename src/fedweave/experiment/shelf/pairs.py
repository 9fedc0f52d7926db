"""The shelf of one member whose examples are links: scores of pairs without a model, and a regression on four of them.

Each score s becomes a logit b + w log(1 + s) by a logistic regression on training links and as many pairs that are not
links. One score's order stays as it is; accuracies and the choice between tools need the logit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core import random
from fedweave.core.graph import QUERY_COUNT, SOURCE, TARGET, TEST, TRAIN, VAL
from fedweave.core.link_examples import LinkExamples
from fedweave.datasets.base import Dataset
from fedweave.experiment.graphs import links_of
from fedweave.experiment.shelf.members import Effort, Judge
from fedweave.experiment.shelf.pair_scores import (
    REFERENCES,
    PairScores,
    RowProducts,
    adjacency_of,
    has_lists,
    link_metrics,
    scored_pairs,
)
from fedweave.metrics.classification import merge
from fedweave.partition.base import Partition, client_ids
from fedweave.partition.client_data import shares

_TITLES = {name: name.replace("_", " ") for name in REFERENCES} | {"adamic_adar": "Adamic-Adar"}
SMALLEST = 1e-6  # weight of a single score, so that higher scores stay more likely
FOUR = "logistic regression on four scores of a pair"
POPULAR = "most popular"
FREQUENCIES = "frequencies of a relation's entities"
# Seconds that one core takes for a score: of a pair, and for each neighbor of its ends; of a node that could replace an
# end, and for each path of two edges from the end that stays; to fit weights, and for each training pair (SciPy 1.17,
# scikit-learn 1.9). They decide what a run does, so that no clock does.
_OF_PAIR, _OF_NEIGHBOR, _OF_CANDIDATE, _OF_PATH, _OF_FIT, _OF_ROW = 1e-7, 2e-8, 1e-8, 6e-9, 0.01, 1e-6
MAX_RANKED = 3e7  # pairs up to which validation links are ranked to choose a tool; else pairs with non-links choose


class PairExamples(NamedTuple):
    """One member's links and the scores that its edges give. nodes: how many it has. scores: by name. adjacency: of the
    edges that carry messages, [n, n]."""

    links: LinkExamples
    nodes: int
    scores: Mapping[str, PairScores]
    adjacency: sp.csr_matrix

    @property
    def degrees(self) -> np.ndarray:
        """float64 [n]."""
        return np.asarray(self.adjacency.sum(1)).ravel()

    @property
    def tools(self) -> dict[str, tuple[str, ...]]:
        """{tool: the scores that it reads}."""
        tools = dict[str, tuple[str, ...]]()
        for name in REFERENCES:
            tools[_TITLES[name]] = (name,)
        tools[FOUR] = tuple(REFERENCES)
        if "popularity" in self.scores:
            tools[POPULAR] = ("popularity",)
        if "as_head" in self.scores:
            tools[FREQUENCIES] = ("as_head", "as_tail")
        return tools


def member_pairs(data: Dataset, partition: Partition) -> dict[str, PairExamples]:
    """The examples of every member, by name."""
    names = client_ids(len(partition.parts), partition.names)
    parts = zip(names, shares(data, partition.parts), strict=True)
    return {name: pair_examples(share) for name, share in parts}


def pair_examples(share: Dataset) -> PairExamples:
    """The examples of a member that holds `share`."""
    links = links_of(share)
    adjacency = adjacency_of(links, share.nodes)
    scores: dict[str, PairScores] = {name: reference(adjacency) for name, reference in REFERENCES.items()}
    scores["preferential_attachment"] = Attachment(*REFERENCES["preferential_attachment"](adjacency), adjacency)
    trained = links.pairs[:, links.trained]
    if has_lists(links):
        scores["popularity"] = Frequency.of(trained, TARGET, share.nodes, by_relation=False)
    if links.several:
        scores["as_head"] = Frequency.of(trained, SOURCE, share.nodes)
        scores["as_tail"] = Frequency.of(trained, TARGET, share.nodes)
    return PairExamples(links, share.nodes, scores, adjacency)


class Attachment(NamedTuple):
    """Preferential attachment, |Γ(u)| |Γ(v)|; of a training link without this link. Both factors are [n, 1]."""

    first: sp.csr_matrix
    second: sp.csr_matrix
    adjacency: sp.csr_matrix

    def of_pairs(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray) -> np.ndarray:
        return RowProducts(self.first, self.second).of_pairs(first, second, relation)

    def of_all(self, stays: np.ndarray, pool: np.ndarray, relation: np.ndarray, replaced: int) -> np.ndarray:
        return RowProducts(self.first, self.second).of_all(stays, pool, relation, replaced)

    def of_training(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray, y: np.ndarray) -> np.ndarray:
        degree = self.first.toarray()[:, 0]
        joined = np.asarray(self.adjacency[first, second]).ravel()  # 1 where the link carries messages
        result: np.ndarray = (degree[first] - joined) * (degree[second] - joined)
        return result


class Frequency(NamedTuple):
    """How often a node is at one end, SOURCE or TARGET, of the training links of a relation. counts: [relations, n]."""

    counts: sp.csr_matrix
    end: int
    by_relation: bool

    @classmethod
    def of(cls, trained: np.ndarray, end: int, nodes: int, by_relation: bool = True) -> "Frequency":
        """trained: int64 [3, m], source, target and relation."""
        relation = trained[2].clip(0) if by_relation else np.zeros(trained.shape[1], np.int64)
        shape = (int(relation.max(initial=0)) + 1, nodes)
        return cls(sp.csr_matrix((np.ones(len(relation)), (relation, trained[end])), shape=shape), end, by_relation)

    def of_pairs(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray) -> np.ndarray:
        return self._counts(first if self.end == SOURCE else second, relation)

    def of_all(self, stays: np.ndarray, pool: np.ndarray, relation: np.ndarray, replaced: int) -> np.ndarray:
        if replaced != self.end:  # the end that all candidates of a query have in common
            return np.repeat(self._counts(stays, relation)[:, None], len(pool), 1)
        rows = self._rows(relation)
        known = np.where(rows < 0, 0, rows)
        counts = np.asarray(self.counts[known][:, pool].toarray())
        counts[rows < 0] = 0
        return counts

    def of_training(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(self.of_pairs(first, second, relation) - (y == 1))

    def _rows(self, relation: np.ndarray) -> np.ndarray:
        """The row of each relation, -1 of one that no training link is of."""
        rows = relation.clip(0) if self.by_relation else np.zeros(len(relation), np.int64)
        return np.where(rows < self.counts.shape[0], rows, -1)

    def _counts(self, nodes: np.ndarray, relation: np.ndarray) -> np.ndarray:
        rows = self._rows(relation)
        counts = np.asarray(self.counts[np.where(rows < 0, 0, rows), nodes]).ravel()
        return np.where(rows < 0, 0.0, counts)


@dataclass(frozen=True)
class PairShelf:
    """A tool for pairs: logits b + Σ w log(1 + s) of the scores s that it reads.

    names, weights: of these scores. bias: b.
    """

    title: str
    names: tuple[str, ...]
    weights: np.ndarray
    bias: float

    def values(self, member: PairExamples, judge: Judge, split: int, ranked: bool = True) -> dict[str, torch.Tensor]:
        """The (sum, count) pairs of metrics on a member's links of a split; {} without such links."""
        scores = _Logits([member.scores[name] for name in self.names], self.weights, self.bias)
        return link_metrics(member.links, member.nodes, scores, split, ranked) or {}


class _Logits(NamedTuple):
    """The `PairScores` of a `PairShelf`."""

    scores: Sequence[PairScores]
    weights: np.ndarray
    bias: float

    def of_pairs(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray) -> np.ndarray:
        return self._sum([score.of_pairs(first, second, relation) for score in self.scores])

    def of_all(self, stays: np.ndarray, pool: np.ndarray, relation: np.ndarray, replaced: int) -> np.ndarray:
        return self._sum([score.of_all(stays, pool, relation, replaced) for score in self.scores])

    def of_training(self, first: np.ndarray, second: np.ndarray, relation: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._sum([score.of_training(first, second, relation, y) for score in self.scores])

    def _sum(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        total = np.full(scores[0].shape, self.bias)
        for weight, score in zip(self.weights, scores, strict=True):
            total += weight * np.log1p(score)
        return total


def learning_seconds(member: PairExamples, rows: int) -> float:
    """About how long one core takes to learn all tools from a member's training pairs, of which `rows` at most."""
    trained = np.flatnonzero(member.links.masks[TRAIN] & (member.links.y >= 0))
    share = min(1.0, rows / max(1, len(trained)))
    fits = len(member.tools) * (_OF_FIT + _OF_ROW * share * len(trained))
    return fits + share * len(member.scores) * _seconds_of_pairs(member, trained)


def scoring_seconds(member: PairExamples) -> float:
    """About how long one core takes to score a member's validation links by every tool, and its test links by one."""
    links, reads = member.links, [len(names) for names in member.tools.values()]
    total = 0.0
    for split, scores in ((VAL, sum(reads)), (TEST, max(reads))):
        pairs = scored_pairs(links, split, ranked=bool(links.ranks[QUERY_COUNT].any()))
        each = _seconds_of_pairs(member, pairs)
        if links.queries is not None:
            asked, candidates = links.queries.queries, links.queries.candidates.shape[1]
            asked = asked[:, links.masks[split][asked[0] // 2]]
            stays = links.pairs[1 - asked[1], asked[0] // 2]  # the other end is replaced
            paths = member.adjacency @ member.degrees  # [n]
            each += _OF_CANDIDATE * len(stays) * candidates + _OF_PATH * float(paths[stays].sum())
        total += scores * each
    return total


def _seconds_of_pairs(member: PairExamples, rows: np.ndarray) -> float:
    neighbors = float(member.degrees[member.links.pairs[: TARGET + 1, rows]].sum())
    return _OF_PAIR * len(rows) + _OF_NEIGHBOR * neighbors


def draw_links(member: PairExamples, share: float, seed: int) -> PairExamples:
    """The member with a share of its validation and test links, and of the pairs beside them, drawn; of lists for
    users, with all links of the drawn users."""
    links, masks = member.links, member.links.masks.copy()
    generator = random.generator(seed, "links")

    def draw(values: np.ndarray) -> np.ndarray:
        return generator.choice(values, math.ceil(share * len(values)), replace=False)

    if has_lists(links):
        users = links.pairs[SOURCE]
        drawn = draw(np.unique(users[masks[VAL] | masks[TEST]]))
        masks[[VAL, TEST]] &= np.isin(users, drawn)
        return member._replace(links=links._replace(masks=masks))
    for split in (VAL, TEST):
        rows = [np.flatnonzero(masks[split] & (links.y == y)) for y in (1, 0)]
        masks[split] = False
        masks[split, np.concatenate([draw(of_class) for of_class in rows])] = True
    return member._replace(links=links._replace(masks=masks))


def fit_pair_shelf(members: Sequence[PairExamples], judge: Judge, seed: int, effort: Effort) -> PairShelf | None:
    """The tool that is best on the members' validation links together; of one member, its own shelf.

    More training pairs than `effort.rows` are drawn. None without training links.
    """
    names = [*members[0].scores]
    trained = [np.flatnonzero(member.links.masks[TRAIN] & (member.links.y >= 0)) for member in members]
    total = sum(map(len, trained))
    if total > effort.rows:
        kept = np.zeros(total, bool)
        kept[random.generator(seed, "shelf").choice(total, effort.rows, replace=False)] = True
        of_members = np.split(kept, np.cumsum([len(rows) for rows in trained])[:-1])
        trained = [rows[drawn] for rows, drawn in zip(trained, of_members, strict=True)]
    parts = [_training_scores(member, rows) for member, rows in zip(members, trained, strict=True)]
    x, y = np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts])  # [m, scores], [m]
    if not (y == 1).any():
        return None
    ranked = sum(_ranked_pairs(member) for member in members) <= MAX_RANKED
    metric = judge.metric
    best: PairShelf | None = None
    best_quality = (-np.inf, -np.inf)
    for title, reads in members[0].tools.items():
        columns = [names.index(name) for name in reads]
        shelf = PairShelf(title, reads, *_fit(x[:, columns], y))
        pairs = [shelf.values(member, judge, VAL, ranked) for member in members]
        pairs = [one for one in pairs if one]
        values = judge.values_of(merge(pairs)) if pairs else {}
        if metric not in values:  # a metric of ranks, where there are too many
            values[metric] = values.get("average_precision", np.nan)
        quality = judge.quality(values)
        if best is None or quality > best_quality:
            best, best_quality = shelf, quality
    return best


def _training_scores(member: PairExamples, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(1 + s) of all scores, [m, scores], and 1 or 0 of each of these training pairs, int64 [m]."""
    links = member.links
    pairs, y = links.pairs[:, rows], links.y[rows]
    columns = [np.log1p(scores.of_training(pairs[0], pairs[1], pairs[2], y)) for scores in member.scores.values()]
    return np.stack(columns, 1), y


def _fit(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """The weights [scores] and the bias of the logits; 1 and 0 where all pairs are of one class."""
    from sklearn.linear_model import LogisticRegression  # takes long to import

    if len(np.unique(y)) < 2:
        return np.ones(x.shape[1]), 0.0
    model = LogisticRegression(max_iter=1_000).fit(x, y)
    weights = model.coef_[0]
    return (weights.clip(SMALLEST) if len(weights) == 1 else weights), float(model.intercept_[0])


def _ranked_pairs(member: PairExamples) -> float:
    """How many pairs the ranks of the member's validation links compare, over all tools."""
    queries = member.links.queries
    if queries is None:
        return 0.0
    asked = int(member.links.masks[VAL][queries.queries[0] // 2].sum())
    return float(asked * queries.candidates.shape[1] * len(member.tools))

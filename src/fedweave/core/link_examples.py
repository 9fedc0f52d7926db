"""The examples, messages and lists that a client's links become: the split of each link, the edges that carry messages,
and the pairs that are not links and evaluate a model. In NumPy, before any training.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import (
    CANDIDATES,
    FILTERED,
    ITEMS,
    KNOWN,
    LISTS,
    LOOPS,
    QUERIES,
    QUERY,
    QUERY_COUNT,
    RANKED_LINKS,
    RANKED_PAIRS,
    SEVERAL,
    SOURCE,
    SPLIT_PAIRS,
    TARGET,
    TEST,
    TRAIN,
    TRAINED,
    VAL,
)
from fedweave.core.link_hashes import draws, hashes_of, pair_hashes
from fedweave.core.links import Links

TRIES = 32  # to find a pair that is not a link
SAMPLE = 5000  # queries of each split that are ranked in evaluations of a sample, of all clients
SAMPLE_OF_CLIENT = 100  # queries of each split that each client ranks there at least, if it has them
AT_ONCE = 1 << 22  # pairs of a query and a candidate that are looked at together


class LinkExamples(NamedTuple):
    """The parts of a client's graph where links are the examples: P links first, in the client's order, then pairs that
    are not links, one for each link in a split, then pairs for ranks.

    edges:   int64 [2, E], both directions of the edges that carry messages. edge_attrs: these edges with their
             attributes; None where they have none.
    pairs, ranks: see `core.graph.Graph`. y: int64 [e]: 1, 0, and -1 of ranks. masks: bool [3, e].
    group:   int64 [e], the member of a union that a pair was drawn for; -1 for links.
    known:   int64, the sorted codes of the known links (`Codes`). items: int64, the nodes that a candidate may be; None
             for all. several: whether there are several relations. loops: whether links join nodes with themselves.
             queries: those that have all nodes as candidates; None where candidates are pairs. draw: int64 [e], a
             random number of each link, by which a sample is drawn, and equal for links of a user; None without ranks.
    sample:  the rows of the links with ranks in evaluations of a sample (`sample_ranks`); None if all have.
    """

    edges: np.ndarray
    edge_attrs: EdgeAttributes | None
    pairs: np.ndarray
    ranks: np.ndarray
    y: np.ndarray
    masks: np.ndarray
    group: np.ndarray
    known: np.ndarray
    items: np.ndarray | None
    several: bool
    loops: bool
    queries: "AllRanked | None" = None
    draw: np.ndarray | None = None
    sample: np.ndarray | None = None

    @property
    def of_lists(self) -> bool:
        """Whether each user's candidates are all items."""
        return self.queries is not None and self.items is not None

    @property
    def trained(self) -> np.ndarray:
        """int64: the rows of the links to train on."""
        return np.flatnonzero(self.masks[TRAIN] & (self.y == 1))

    def lists(self, lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
        """The entries of `Graph.extra` that belong to links, padded to these lengths."""
        largest = np.iinfo(np.int64).max
        lists = {name: _pad(part, lengths[name], largest if name == KNOWN else -1) for name, part in self._parts}
        marks = {SEVERAL: self.several, LISTS: self.of_lists, LOOPS: self.loops}
        return lists | {name: np.ones(1, np.int64) for name, is_set in marks.items() if is_set}

    @property
    def lengths(self) -> dict[str, int]:
        """The length of each list without padding, at least 1."""
        return {name: max(1, part.shape[-1]) for name, part in self._parts}

    @property
    def _parts(self) -> list[tuple[str, np.ndarray]]:
        parts = [(TRAINED, self.trained), (KNOWN, self.known)]
        if self.items is not None:
            parts.append((ITEMS, self.items))
        if self.queries is None:
            parts.append((SPLIT_PAIRS, np.flatnonzero(self.masks.any(0))))
        else:
            parts += zip((QUERIES, CANDIDATES, FILTERED), self.queries, strict=True)
        if self.sample is not None:
            query = self.ranks[QUERY] if self.queries is None else self.queries.queries[0]
            is_drawn = np.zeros(len(self.y), bool)
            is_drawn[self.sample] = True
            of_drawn = np.flatnonzero(is_drawn[query.clip(min=0) // 2] & (query >= 0))
            parts += [(RANKED_LINKS, self.sample), (RANKED_PAIRS, of_drawn)]
        return parts


class AllRanked(NamedTuple):
    """int64 [3, q], [2, c] and [4, k]: see `core.candidates.Queries`."""

    queries: np.ndarray
    candidates: np.ndarray
    filtered: np.ndarray


def is_sampled(queries: np.ndarray, of_lists: bool) -> bool:
    """Whether evaluations of a sample leave out queries. queries: of validation and of test. of_lists: whether users
    are drawn, with all their links."""
    return bool(queries.sum() > 2 * SAMPLE) if of_lists else bool((queries > SAMPLE).any())


def sample_ranks(clients: Sequence[LinkExamples]) -> list[LinkExamples]:
    """The clients' link examples with the sample that has ranks in evaluations of a sample: `SAMPLE` queries of each
    split over all clients, and of each client in proportion, at least `SAMPLE_OF_CLIENT`. Where users have lists of
    items, users are drawn with all their links."""
    if not clients or clients[0].draw is None:
        return list(clients)
    groups = [[VAL, TEST]] if clients[0].of_lists else [[VAL], [TEST]]
    counts = [[_queries_of(client, splits) for splits in groups] for client in clients]  # each [e]
    totals = np.array([[count.sum() for count in of_client] for of_client in counts])  # [clients, groups]
    budgets = np.array([SAMPLE * len(splits) for splits in groups])
    if (totals.sum(0) <= budgets).all():
        return list(clients)
    sampled = []
    for client, of_client, total in zip(clients, counts, totals, strict=True):
        shares = budgets * total // np.maximum(totals.sum(0), budgets)
        least = np.array([SAMPLE_OF_CLIENT * len(splits) for splits in groups])
        drawn = [_first_units(client, count, max(*pair)) for count, *pair in zip(of_client, shares, least, strict=True)]
        sampled.append(client._replace(sample=np.unique(np.concatenate(drawn))))
    return sampled


def _queries_of(client: LinkExamples, splits: Sequence[int]) -> np.ndarray:
    """int64 [e]: how many queries each link of these splits has; 0 of other pairs."""
    count: np.ndarray = client.ranks[QUERY_COUNT] * client.masks[splits].any(0)
    return count


def _first_units(client: LinkExamples, count: np.ndarray, budget: int) -> np.ndarray:
    """int64: the rows of the links, or of users' links, with the lowest draws: as many as have at most `budget`
    queries, and at least one."""
    rows = np.flatnonzero(count)
    if not len(rows) or client.draw is None:
        return rows
    _, unit = np.unique(client.draw[rows], return_inverse=True)
    size = np.bincount(unit, count[rows]).astype(np.int64)
    last = max(1, int(np.searchsorted(size.cumsum(), budget, side="right")))
    return rows[unit < last]


def _pad(numbers: np.ndarray, size: int, value: int) -> np.ndarray:
    missing = np.full((*numbers.shape[:-1], size - numbers.shape[-1]), value, np.int64)
    return np.concatenate([numbers, missing], -1)


class Codes:
    """The known links among n nodes, for looking pairs up. loops: whether links join nodes with themselves."""

    def __init__(self, attributes: EdgeAttributes, nodes: int, loops: bool = False) -> None:
        self.nodes, self.loops = nodes, loops
        relation = relation_of(attributes)
        source, target = attributes.ends
        codes = [self.of(source, target, relation)]
        if not attributes.directed:
            codes.append(self.of(target, source, relation))
        self.sorted = np.unique(np.concatenate(codes))

    def of(self, source: np.ndarray, target: np.ndarray, relation: np.ndarray) -> np.ndarray:
        """int64: one number for each triple."""
        result: np.ndarray = (relation * self.nodes + source) * self.nodes + target
        return result

    def triples(self) -> np.ndarray:
        """int64 [3, k]: source, target and relation of each known link."""
        pair, target = np.divmod(self.sorted, self.nodes)
        relation, source = np.divmod(pair, self.nodes)
        return np.stack([source, target, relation])

    def holds(self, source: np.ndarray, target: np.ndarray, relation: np.ndarray) -> np.ndarray:
        """bool: which triples are links or, where no link does, join a node with itself."""
        codes = self.of(source, target, relation)
        at = np.searchsorted(self.sorted, codes).clip(max=max(len(self.sorted) - 1, 0))
        is_link = self.sorted[at] == codes if len(self.sorted) else np.zeros(codes.shape, bool)
        return is_link if self.loops else np.asarray(is_link | (source == target))


def relation_of(attributes: EdgeAttributes) -> np.ndarray:
    """int64 [M]: the number of each link's relation, 0 where all are of one."""
    return np.zeros(attributes.total, np.int64) if attributes.y is None else attributes.y


def link_examples(
    links: Links,
    attributes: EdgeAttributes,
    masks: np.ndarray,
    names: Sequence[str],
    items: np.ndarray | None = None,
    members: Sequence[tuple[np.ndarray, np.ndarray]] = (),
) -> LinkExamples:
    """The examples, messages and lists of a client's links.

    attributes: its P links with their attributes, and their relation as `y`. masks: bool [3, P], the split. names: of
    its n nodes. items: int64, the nodes that a candidate may be; None for all. members: for a union, the nodes and the
    links of each member; pairs that are not links are drawn among a member's nodes, as that member would draw them.
    """
    nodes, relation, total = len(names), relation_of(attributes), attributes.total
    hashes = hashes_of(names)
    keys = pair_hashes(hashes[attributes.ends[0]], hashes[attributes.ends[1]], relation, links.seed)
    edges, edge_attrs, supervised = _messages(links, attributes, masks, keys, nodes)
    codes = Codes(attributes, nodes, links.loops)
    used = masks.copy()
    used[TRAIN] &= supervised
    several = bool(links.relations)
    replaces_heads = several and items is None  # with items, only tails
    pieces = [
        _Pieces(
            np.stack([*attributes.ends, relation]),
            np.stack([np.full(total, -1), np.where(masks[VAL] | masks[TEST], 2 if replaces_heads else 1, 0)]),
            np.ones(total, np.int64),
            used,
            np.full(total, -1),
        )
    ]
    ranked = list[AllRanked]()
    for number, (member_nodes, rows) in enumerate(members or [(np.arange(nodes), np.arange(total))]):
        pool = member_nodes if items is None else np.intersect1d(member_nodes, items)
        chosen = rows[used[:, rows].any(0)]
        member_codes = Codes(attributes.select(rows), nodes, links.loops) if members else codes
        negatives = _NegativePairs(
            links, attributes, member_codes, keys, member_nodes, pool, items is not None, replaces_heads
        )
        pieces.append(negatives.one_for_each(chosen, used, number))
        evaluated = rows[(masks[VAL] | masks[TEST])[rows]]
        if links.candidates == "all":
            ranked.append(negatives.all_ranked(evaluated, number))
        elif links.candidates:
            pieces.append(negatives.candidates(evaluated, number))
    pairs, ranks, y, split, group = [np.concatenate(part, -1) for part in zip(*pieces, strict=True)]
    if not links.candidates:
        ranks[1] = 0
    draw = None
    if links.candidates:
        source = hashes[attributes.ends[0]]
        by_user = items is not None and links.candidates == "all"
        unit = pair_hashes(source, source, None, links.seed) if by_user else keys
        draw = np.concatenate([draws(unit, 4), np.zeros(len(y) - total, np.int64)])
    queries = None
    if ranked:
        queries = AllRanked(*(np.concatenate(part, -1) for part in zip(*ranked, strict=True)))
    return LinkExamples(
        edges, edge_attrs, pairs, ranks, y, split, group, codes.sorted, items, several, links.loops, queries, draw
    )


class _Pieces(NamedTuple):
    pairs: np.ndarray
    ranks: np.ndarray
    y: np.ndarray
    masks: np.ndarray
    group: np.ndarray


def _messages(
    links: Links, attributes: EdgeAttributes, masks: np.ndarray, keys: np.ndarray, nodes: int
) -> tuple[np.ndarray, EdgeAttributes | None, np.ndarray]:
    """The edges that carry messages, their attributes, and bool [P], the training links that a model is trained on."""
    low, high = np.minimum(*attributes.ends), np.maximum(*attributes.ends)
    pair = (relation_of(attributes) * nodes + low) * nodes + high
    tested, validated = pair[masks[TEST]], pair[masks[VAL]]
    reserved = masks[TRAIN] & (draws(keys, 1) < links.disjoint * 2.0**63)
    supervised = reserved if links.disjoint > 0 else masks[TRAIN]
    train = masks[TRAIN] & ~np.isin(pair, np.concatenate([tested, validated]))
    validation = np.zeros_like(train)  # the validation links that carry messages, too
    if links.message == "train+val":
        validation = masks[VAL] & ~np.isin(pair, tested)
    chosen = np.flatnonzero(train | validation)
    edge_attrs = attributes.select(chosen)._replace(examples=False, split=None, split_times=None)
    if links.levels:  # training sees level 0, validation up to 1, test all
        level = np.where(validation, 2.0, np.where(reserved, 1.0, 0.0))[chosen]
        edge_attrs = edge_attrs._replace(time=level, split_times=(0.0, 1.0))
    source, target = edge_attrs.ends[:, edge_attrs.ends[0] != edge_attrs.ends[1]]
    both = np.unique(np.concatenate([source * nodes + target, target * nodes + source]))
    attributes_sent = [part for part in (edge_attrs.weight, edge_attrs.features, edge_attrs.y) if part is not None]
    keep = edge_attrs.directed or bool(attributes_sent) or links.levels
    return np.stack([both // nodes, both % nodes]), edge_attrs if keep else None, supervised


class _NegativePairs(NamedTuple):
    """The source of pairs that are not links, for links among the nodes `members`; a candidate is in `pool`.

    keys: int64 [P], the `pair_hashes` of the links. of_items: whether only items are candidates. replaces_heads:
    whether also the source of a link is replaced.
    """

    links: Links
    attributes: EdgeAttributes
    codes: Codes
    keys: np.ndarray
    members: np.ndarray
    pool: np.ndarray
    of_items: bool
    replaces_heads: bool

    def one_for_each(self, chosen: np.ndarray, masks: np.ndarray, number: int) -> _Pieces:
        """A pair for each of the `chosen` links, in its split. Both ends are new; with relations or items, only one."""
        keys, relation = self.keys[chosen], relation_of(self.attributes)[chosen]
        source, target = (end[chosen].copy() for end in self.attributes.ends)
        head = (draws(keys, 2) & 1 > 0) & self.replaces_heads
        remaining = np.arange(len(chosen)) if len(self.pool) else np.arange(0)
        for attempt in range(TRIES):
            first, second = (draws(keys[remaining], 8 + 2 * attempt + end) for end in (0, 1))
            if not self.of_items:
                new_source = head[remaining] if self.replaces_heads else np.ones(len(remaining), bool)
                source[remaining] = np.where(new_source, self.members[first % len(self.members)], source[remaining])
            keeps_target = head[remaining] if self.replaces_heads else np.zeros(len(remaining), bool)
            target[remaining] = np.where(keeps_target, target[remaining], self.pool[second % len(self.pool)])
            remaining = remaining[self.codes.holds(source[remaining], target[remaining], relation[remaining])]
            if not len(remaining):
                break
        has_pair = np.ones(len(chosen), bool)
        has_pair[remaining] = False
        pairs = np.stack([source, target, relation])[:, has_pair]
        size = pairs.shape[1]
        return _Pieces(
            pairs,
            np.stack([np.full(size, -1), np.zeros(size, np.int64)]),
            np.zeros(size, np.int64),
            masks[:, chosen[has_pair]],
            np.full(size, number),
        )

    def candidates(self, chosen: np.ndarray, number: int) -> _Pieces:
        """The pairs that each of the `chosen` links is ranked among."""
        pieces = [self._replace_end(chosen, side) for side in ((1, 0) if self.replaces_heads else (1,))]
        pairs, query = (np.concatenate(part, -1) for part in zip(*pieces, strict=True))
        size = len(query)
        return _Pieces(
            pairs,
            np.stack([query, np.zeros(size, np.int64)]),
            np.full(size, -1),
            np.zeros((3, size), bool),
            np.full(size, number),
        )

    def all_ranked(self, chosen: np.ndarray, number: int) -> AllRanked:
        """The queries of the `chosen` links, where every node of the pool is a candidate."""
        one_way = self.of_items or self.attributes.directed
        if self.replaces_heads:
            of = np.concatenate([2 * chosen, 2 * chosen + 1])  # the queries (`Graph.ranks`)
            end = np.repeat([TARGET, SOURCE], len(chosen))
        elif one_way:
            of, end = 2 * chosen, np.full(len(chosen), TARGET)
        else:
            of, end = 2 * chosen, np.where(self._reverses(chosen), SOURCE, TARGET)
        filtered = self.codes.triples()
        if not self.codes.loops:  # a pair of a node with itself is not a candidate
            kept_end = self.attributes.ends[np.where(end == TARGET, SOURCE, TARGET), of // 2]
            loops = np.stack([kept_end, kept_end, relation_of(self.attributes)[of // 2]])
            filtered = np.concatenate([filtered, np.unique(loops, axis=1)], 1)
        return AllRanked(
            np.stack([of, end, np.full(len(of), number)]),
            np.stack([np.full(len(self.pool), number), self.pool]),
            np.concatenate([np.full((1, filtered.shape[1]), number), filtered]),
        )

    def _reverses(self, chosen: np.ndarray) -> np.ndarray:
        """bool: whether a link's source is replaced instead of its target, by its hash."""
        result: np.ndarray = draws(self.keys[chosen], 3) & 1 > 0
        return result

    def _replace_end(self, chosen: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs with candidates for the targets (side 1) or sources (0), int64 [3, m], and the query of each. For an
        undirected link without relations the end that is kept is random."""
        keys, relation = self.keys[chosen], relation_of(self.attributes)[chosen]
        source, target = self.attributes.ends[:, chosen]
        if not (self.replaces_heads or self.of_items or self.attributes.directed):
            reverse = self._reverses(chosen)
            source, target = np.where(reverse, target, source), np.where(reverse, source, target)
        query, kept_end = 2 * chosen + (1 - side), source if side else target
        pool = self.pool if side else self.members
        max_count = int(self.links.candidates)
        takes_all = len(pool) <= max_count
        count = len(pool) if takes_all else max_count
        pieces = [(np.empty((3, 0), np.int64), np.empty(0, np.int64))]
        at_once = max(1, AT_ONCE // max(count, 1))
        for first in range(0, len(chosen) if len(pool) else 0, at_once):
            some = slice(first, first + at_once)
            end, of = (np.repeat(part[some, None], count, 1) for part in (kept_end, relation))  # [q, count]
            if takes_all:
                nodes = np.broadcast_to(pool, end.shape).copy()
                bad = self._is_known(end, nodes, of, side)
            else:
                each = draws(keys[some], 5 + side)[:, None] + np.arange(count) * 0x632BE59BD9B4E019 % (1 << 62)
                nodes, bad = np.empty_like(end), np.ones(end.shape, bool)
                for attempt in range(TRIES):
                    nodes[bad] = pool[draws(each[bad], attempt) % len(pool)]
                    bad[bad] = self._is_known(end[bad], nodes[bad], of[bad], side)
                    if not bad.any():
                        break
            rows = np.stack([end, nodes, of] if side else [nodes, end, of])[:, ~bad]
            pieces.append((rows, np.repeat(query[some, None], count, 1)[~bad]))
        joined_rows, joined_query = (np.concatenate(part, -1) for part in zip(*pieces, strict=True))
        return joined_rows, joined_query

    def _is_known(self, end: np.ndarray, nodes: np.ndarray, relation: np.ndarray, side: int) -> np.ndarray:
        return self.codes.holds(*((end, nodes) if side else (nodes, end)), relation)

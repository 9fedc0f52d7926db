"""What a case has around its example, by name: neighbors, edges, and the columns that can be reasons."""

import numpy as np

from fedweave.apply.case import Case
from fedweave.apply.explanation import WAYS, SmallGraph
from fedweave.apply.neighborhood import Neighborhood
from fedweave.apply.typical import edge_columns, node_columns
from fedweave.core.graph import TRAIN
from fedweave.core.text import counted
from fedweave.datasets import contents

MAX_VALUES = 4  # in one cell


class Surroundings:
    """The neighborhood `near` of a case's example, and the names in it.

    output:      which of the model's is explained. of_graph: whether the example is a small graph.
    words:       what a node and an edge are called. usual: what columns are set to.
    columns:     of nodes. edge_columns: of edges.
    groups:      the columns of nodes that are reasons, {column of a table: places}; of a small graph without the kinds
                 of nodes, which are left out as nodes.
    ends:        {what the names of columns begin with: the nodes whose columns are reasons}.
    graph:       a small graph, to be drawn.
    """

    def __init__(self, case: Case, near: Neighborhood, output: int, smiles: str = "") -> None:
        self.case, self.near, self.output = case, near, output
        data = case.data
        self.of_graph = data.example == "graph"
        self.words = ("neighbor", "edge")
        if self.of_graph:
            self.words = ("atom", "bond") if smiles else ("node", "edge")

        # 1. What is typical: of training examples, or of all where none is known to be one.
        train = np.zeros(data.examples, bool) if data.public is None else np.asarray(data.public)[TRAIN]
        used = train if train.any() else np.ones(data.examples, bool)
        self.columns, self.edge_columns = node_columns(case, used), edge_columns(case, used)
        count = counted(int(used.sum()), f"training {data.example}" if train.any() else data.example)
        self.usual = f"the median over the {count} {case.origin}; of categories, the most frequent one"
        if case.learned:
            self.usual = "none, because nodes have learned vectors and no columns"

        # 2. Whose columns are reasons, and which.
        self.ends = {"": near.near}
        if near.example == "edge" or near.link is not None:
            source, target = near.ends[:, near.target] if near.link is None else near.link[:2]
            self.ends = {"source: ": np.array([source]), "target: ": np.array([target])}
        self.groups = dict(self.columns.groups)
        if self.of_graph:
            for name, columns in self.columns.groups.items():
                if contents.column(self.columns.names[columns[0]]).kind in ("label", "degree"):
                    del self.groups[name]

        # 3. The drawing.
        self.graph = None
        if self.of_graph:
            pairs = tuple((int(a), int(b)) for a, b in near.pairs.T)
            self.graph = SmallGraph(tuple(self.node_name(node) for node in range(len(near.nodes))), pairs, smiles)

    def node_name(self, node: int) -> str:
        """The name of a node of the neighborhood."""
        data, at = self.case.data, int(self.near.nodes[node])
        if self.of_graph:
            kind = self.columns.groups.get("label")
            return f"{node}" if kind is None else f"{node} {self.columns.text_of(kind, self.near.x[node])}"
        names = data.node_ids if data.example == "edge" else data.ids
        return names[at] if names else str(self.case.places[at] if data.example == "node" else at)

    def edge_name(self, edge: int) -> str:
        """The name of an edge of the neighborhood."""
        first, second = self.near.ends[:, edge].tolist()
        directed = self.near.edge_attrs is not None and self.near.edge_attrs.directed
        return f"{self.node_name(first)} {WAYS[directed]} {self.node_name(second)}"

    def pair_name(self) -> str:
        """The name of the pair of nodes that is the example; "" where it is not one."""
        if self.near.link is None:
            return ""
        source, target, relation = self.near.link.tolist()
        relations = self.case.relations
        name = f"{self.node_name(source)} → {self.node_name(target)}"
        return f"{name} ({relations[relation]})" if relations else name

    def values(self, columns: list[int], rows: np.ndarray) -> str:
        """What the columns of one group say in some rows [m, d]."""
        values = dict.fromkeys(self.columns.text_of(columns, row) for row in rows)
        return ", ".join(values) if len(values) <= MAX_VALUES else counted(len(values), "value")

    def can_leave(self, node: int) -> bool:
        """Whether a node can be left out: it is not what is explained, or all of it."""
        return len(self.near.nodes) > 1 if self.of_graph else bool(self.near.distance[node] > 0)

"""The settings of a user's own data, each written once: its type, its default and what it means.

A source (`folder`, `npz`, `parties`, `tu`) inherits the groups that suit it and checks what they say together. A site's
`site.toml` takes all of them (`DataSettings`). Settings that a source alone has, or that no site has, are its own.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, TypeAlias

from fedweave.core.bounds import Count
from fedweave.core.settings import Beside, Settings
from fedweave.core.target import CLASS, NUMBER

Normalize: TypeAlias = Literal["auto", "none", "row", "binary", "scale", "standard", "minmax"]
_OF_NUMBERS = Beside("target", NUMBER)


@dataclass(frozen=True)
class CommonSettings(Settings):
    """Settings of data in any form.

    normalize: how features are scaled: auto, none, row, binary, scale, standard or minmax (docs/data-columns.md).
    target:    what is predicted: "class", the class in the column label; "number", a number in that column or in each
               of `targets`; "labels", several yes-or-no labels, 1 or 0, in the columns `targets`. Numbers and labels
               may have gaps: empty cells, NaN and words such as NA.
    targets:   columns of the numbers or labels to predict, in order; None is the column label.
    target_normalize: the scale in which a model predicts numbers: "own", mean and deviation of the training examples
               that a client holds; "all", mean and deviation over all clients' training examples, which clients
               exchange; "none". Predictions and errors are always in the data's units.
    target_log: train on the logarithms of the numbers, which must be positive.
    """

    normalize: Normalize = "auto"
    _: KW_ONLY
    target: Literal["class", "number", "labels"] = CLASS
    targets: tuple[str, ...] | None = None
    target_normalize: Annotated[Literal["own", "all", "none"], _OF_NUMBERS] = "own"
    target_log: Annotated[bool, _OF_NUMBERS] = False


@dataclass(frozen=True, kw_only=True)
class ArraySettings(CommonSettings):
    """Settings of a graph in any form.

    sens_feature: allow a feature column that equals the column, or array, sens.
    loops:     edges of a node with itself: "refuse", "drop", or "keep" where edges have attributes.
    """

    sens_feature: bool = False
    loops: Literal["refuse", "drop", "keep"] = "refuse"


@dataclass(frozen=True)
class TableSettings(ArraySettings):
    """Settings of tables.

    classes:   number of classes when labels are numbers; None is the largest label + 1.
    labels:    class names in order when labels are names; None: names in the data, sorted. Sites that train together
               must all give the same `classes` or `labels`, since one site may lack a class. Where there is a column of
               each name and none called label, they are the `targets` of target = "labels".
    columns:   meanings of columns with other names, such as {label = "diagnosis", sens = "sex"}.
    ignore:    columns that are left out.
    unlabeled: a word, or several, that marks an empty cell of the examples' labels, such as "unknown".
    groups:    names of the sensitive groups in order when sens is text; None: the names in the data, sorted.
    categories: columns of text and all their values in order, one feature for each value; an empty cell is in none.
               "auto" instead of a list takes the values of the training rows, sorted. "edges.currency" is the column
               of edges.
    missing:   columns of features that may have empty cells, "edges.fee" for edges: such a cell becomes 0, and another
               feature, "income is missing", is 1. Sites that train together must all give the same.
    """

    classes: Count | None = None
    labels: tuple[str, ...] | None = None
    columns: dict[str, str] | None = None
    ignore: tuple[str, ...] | None = None
    unlabeled: str | tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    categories: dict[str, str | tuple[str, ...]] | None = None
    missing: tuple[str, ...] | None = None


@dataclass(frozen=True)
class StructureSettings:
    """Settings of columns that are made from a graph's edges.

    structure:      columns that each client computes on its own graph: "degree", log(1 + d), in each direction of
                    directed edges; "pagerank"; "clustering"; "laplacian 8", that number of eigenvectors.
    """

    structure: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputSettings(StructureSettings):
    """Settings of what models read beside the features of nodes.

    edge_normalize: how features of edges are scaled, with the values of `normalize`: auto, by each client's own edges.
    """

    edge_normalize: Normalize = "auto"


@dataclass(frozen=True)
class EdgeSettings(InputSettings):
    """Settings of tables whose edges may have attributes.

    directed:       an edge leads only from its source to its target.
    edge_features:  columns of edges that are features of edges, in this order, or "all" without another meaning. Of
                    small graphs label is among them, the kind of an edge: a feature for each kind (`edge_labels`).
    edge_weight:    the column of edges with their weight, from 0.
    edge_time:      the column of edges with their time: numbers, or dates, which become days since 1970.
    parallel:       edges with the same ends: "keep"; "sum" of weights and features, with the latest time; "count", the
                    last with their number as weight; "last", by time or else by row.
    """

    directed: bool = False
    edge_features: str | tuple[str, ...] | None = None
    edge_weight: str | None = None
    edge_time: str | None = None
    parallel: Literal["keep", "sum", "count", "last"] = "keep"


@dataclass(frozen=True)
class NodeSettings:
    """Settings of tables of one graph.

    task:       what is classified: "nodes", or "edges", which then have the columns label, split, sens and id. Or
                "links" are predicted: edges may have a column split and, if there are several relations, label, and
                nodes a column kind.
    node_time:  the column of nodes with their time, by which they may be split; numbers or dates, as `edge_time`.
    external:   edges to nodes that are not in the table of nodes: "refuse"; "features", the number of such edges and
                sums of their attributes become features of the node; "exchange", members that hold the other nodes
                also send features of these.
    """

    task: Literal["nodes", "edges", "links"] = "nodes"
    node_time: str | None = None
    external: Literal["refuse", "features", "exchange", "predict"] = "refuse"


@dataclass(frozen=True)
class GraphSettings:
    """Settings of tables of small graphs.

    node_labels: the nodes' labels in order of their one-hot columns; None: the labels in the data, sorted (or 0 to the
                 largest, if all are whole numbers).
    edge_labels: the edges' labels in order, as `node_labels`.
    degrees:     number of columns of one-hot degrees, the features of nodes that have neither labels nor features;
                 None is the largest degree + 1. Sites that train together must all give the same `degrees`, labels and
                 categories.
    graph_features: columns of the table of graphs that are numbers of whole graphs and join the readout (gin, gine).
    fingerprint: what RDKit makes of each molecule's SMILES as further such columns: "morgan", log(1 + count) of 2,048
                 Morgan bits of radius 2; "descriptors"; "both".
    """

    graph_features: tuple[str, ...] = ()
    fingerprint: Literal["none", "morgan", "descriptors", "both"] = "none"
    node_labels: tuple[str, ...] | None = None
    edge_labels: tuple[str, ...] | None = None
    degrees: Count | None = None


@dataclass(frozen=True)
class DataSettings(GraphSettings, NodeSettings, EdgeSettings, TableSettings):
    """All settings of data."""

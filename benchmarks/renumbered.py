"""FedEgo's communities (Tables 4 and 5) on graphs whose edges do not belong to their features and labels.

For communities the paper's released code renumbers the nodes in the edge list, in the order in which the list first
names them, and does not move features and labels. So an edge of its graphs joins two unrelated nodes: on Cora .81 of
all edges join nodes of one class, afterwards .19. The table has local training, FedAvg and FedEgo by the script's
protocol, on these graphs and on the true ones, and the paper's numbers.

    python -m benchmarks.renumbered [--data cora citeseer] [--seeds 0 1] [--out DIR]
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedweave import datasets
from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.papers.paper import PaperCell, PaperTable, change
from fedweave.papers.selection import PAPERS, PROTOCOLS
from fedweave.papers.session import Session
from fedweave.reports.terminal import screen

METHODS = ("Local Only", "FedAvg", "FedEgo")
LOCAL, GLOBAL = 4, 5  # tables


def renumber(data: Dataset) -> Dataset:
    """The same nodes, with edges between those whose numbers are the places at which the sorted list of edges first
    names its nodes; nodes without an edge come last."""
    order = np.lexsort(data.edges[::-1])
    nodes, first = np.unique(data.edges[:, order].T.ravel(), return_index=True)
    number = np.full(data.nodes, -1)
    number[nodes[np.argsort(first)]] = np.arange(len(nodes))
    edges = number[data.edges]
    return replace(data, edges=edges[:, np.lexsort(edges[::-1])], public=None)


def homophily(data: Dataset) -> float:
    """The share of edges between nodes of one class."""
    return float((data.y[data.edges[0]] == data.y[data.edges[1]]).mean())


def cells(name: str, file: Path) -> list[PaperCell]:
    """Both tables' cells of one data set, on its own edges and on those in `file`."""
    result, script = [], PROTOCOLS["fedego"]["script"]
    for table in (LOCAL, GLOBAL):
        for cell in PAPERS["fedego"].tables[table].cells:
            if cell.row in METHODS and cell.document["data"]["name"] == name:
                true_edges = change(script.cell(cell), eval_every=5)
                new_edges = change(true_edges, data={"name": "npz", "path": str(file)})
                result.append(replace(new_edges, row=f"{cell.row}, renumbered"))
                result.append(replace(true_edges, row=f"{cell.row}, own edges"))
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cora", "citeseer"], choices=["cora", "citeseer", "dblp"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("reproduced"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    all_cells, notes = [], []
    for name in args.data:
        data, file = datasets.load(name), (args.out / f"{name}-renumbered.npz").resolve()
        new_data = renumber(data)
        npz.write(new_data, file)
        notes.append(f"{name}: {homophily(data):.2f} of edges within a class, {homophily(new_data):.2f} renumbered.")
        all_cells += cells(name, file)
    title = "Communities of graphs with their own and with renumbered edges"
    table = PaperTable(title, tuple(all_cells), len(args.seeds), tuple(notes))
    Session(screen(), args.out, False, 1, args.seeds).show("fedego-renumbered", "FedEgo (Zhang et al. 2023)", table)


if __name__ == "__main__":
    main()

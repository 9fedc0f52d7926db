"""Table 1 and Figures 4 to 7 of FedEgo (Zhang et al. 2023): drawings for which the text prints no numbers.

Figure 5 takes the values of gamma of Table 8, since its own cannot be read. Figure 6 has FedEgo next to local training
and FedAvg, and Cora next to CoraFull, which has to be downloaded.
"""

import json
from functools import cache, lru_cache
from pathlib import Path

from fedweave import datasets
from fedweave.experiment.config import Document
from fedweave.experiment.runs.files import PARTITION, read_table
from fedweave.experiment.runs.reading import Run, read_run
from fedweave.papers.fedego_experiments import (
    CLIENTS,
    COMMUNITIES,
    DATA,
    FACTS,
    PRINTED,
    SEEDS,
    SKEW,
    ablation,
    experiment,
)
from fedweave.papers.paper import PaperCell, PaperTable, Quantity, parse_numbers
from fedweave.papers.quantities import accuracy, summary

PARTITION_SETTINGS = {"global test share": "global_test", "client share": "share"}  # of the partition


def fact(name: str) -> Quantity:
    """A count of the run's data ("nodes", "edges", "classes"), its "clients", or one of `PARTITION_SETTINGS`."""

    def value(run: Path) -> float:
        record = _read_run(run)
        if name in PARTITION_SETTINGS:
            return float(record.section("partition")[PARTITION_SETTINGS[name]])
        if name == "clients":
            return float(len(read_table(run, PARTITION)))
        return _counts(json.dumps(record.section("data"), sort_keys=True))[name]

    if name in PARTITION_SETTINGS:
        return Quantity("share", value, digits=1)
    return Quantity("count", value, digits=0)


def of_client(client: int, metric: str, split: str, unit: str) -> Quantity:
    """A metric of the last evaluation of one client, by its place among the clients.

    Where clients have no models of their own, the global test has the global model's metric.
    """

    def value(run: Path) -> float | None:
        read = _read_run(run)
        scores = read.clients(metric, split, read.last_evaluation)
        if scores:
            return scores.get(read_table(run, PARTITION)["client"][client].as_py())
        number: float | None = summary(run)["metrics"].get(metric.replace("global_test/", "global/"))
        return number

    return Quantity(unit, value)


def label_share(client: int, label: int) -> Quantity:
    """The share of a label among the nodes of a client."""

    def value(run: Path) -> float:
        labels = read_table(run, PARTITION)["labels"][client].as_py()
        return float(labels[label] / sum(labels))

    return Quantity("share", value)


@lru_cache(maxsize=8)
def _read_run(run: Path) -> Run:
    """A finished run; cached, because a table reads many numbers of it: one cell after the other, each over all
    seeds."""
    return read_run(run)


@cache
def _counts(section: str) -> dict[str, float]:
    """The counts of a data set, from its section as JSON."""
    data = datasets.load(**json.loads(section))
    return {"nodes": data.nodes, "edges": data.edges.shape[1] / 2, "classes": data.classes}


ONLY_DRAWN = "The paper draws this and prints no numbers."
VARIANTS = ("FedEgo", "FedEgo w/o EGO", "FedEgo w/o RL", "FedEgo w/o PL", "FedAvg")
GAMMAS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
CLIENTS_IN_FIGURES = 5  # clients, C1 to C5


def statistics() -> PaperTable:
    """Table 1: counts of the loaded data, and the clients' shares of it."""
    cells = []
    for (dataset, column), number in parse_numbers(PRINTED[1]).items():
        # one round of a small model, because only the partition matters
        partition = SKEW.get(dataset, COMMUNITIES[dataset])
        small: dict[str, Document] = {"model": {"hidden": 16}, "algorithm": {"local_steps": 1}}
        document = experiment(dataset, "Local Only", partition=partition, **small) | {"rounds": 1, "eval_every": 1}
        if column in PARTITION_SETTINGS and PARTITION_SETTINGS[column] not in document["partition"]:
            continue
        cells.append(PaperCell(dataset, column, "", document, fact(column), number))
    notes = (
        "Edges are undirected and distinct. Shares are the released script's, with which the printed F1 agree. "
        "The runs make one round of local training.",
    )
    return PaperTable("The data", tuple(cells), 1, notes)


def ablations() -> PaperTable:
    """Figure 4: F1 over the rounds without each part."""
    cells = []
    for dataset in ("Cora", "Citeseer"):
        for split in ("local", "global"):
            for variant in VARIANTS:
                document = ablation(variant, dataset)
                cells.append(PaperCell(variant, dataset, split, document, accuracy(split, best=True)))
    return PaperTable("Ablations", tuple(cells), SEEDS, (ONLY_DRAWN,), over="round")


def divergence() -> PaperTable:
    """Figure 5: how far each client's personalization layers are from the server's, by gamma."""
    cells = []
    for gamma in GAMMAS:
        document = experiment("Wiki", algorithm={"gamma": gamma})
        for client in range(CLIENTS["Wiki"]):
            quantity = of_client(client, "divergence", "train", "divergence")
            cells.append(PaperCell(f"C{client + 1}", f"Wiki, gamma {gamma}", "", document, quantity))
    notes = (ONLY_DRAWN, "‖Φ_i - Φ_g‖ / ‖Φ_g‖ after the last round's mixing. The values of gamma are Table 8's.")
    return PaperTable("Weight divergence on Wiki", tuple(cells), SEEDS, notes, over="gamma")


def of_clients() -> PaperTable:
    """Figure 6: F1 of each client."""
    cells = []
    for dataset in ("Cora", "CoraFull"):
        for split, metric in (("local", "accuracy"), ("global", "global_test/accuracy")):
            for client in range(CLIENTS_IN_FIGURES):
                column = f"{dataset}, client {client + 1}"
                quantity = of_client(client, metric, "test", "F1")
                for method in ("Local Only", "FedAvg", "FedEgo"):
                    cells.append(PaperCell(method, column, split, experiment(dataset, method), quantity))
    return PaperTable(
        "F1 of each client", tuple(cells), SEEDS, (ONLY_DRAWN, "Cora is not in the paper's."), over="client"
    )


def labels() -> PaperTable:
    """Figure 7: which labels clients hold (a), and which their models predict on the global test set (b)."""
    cells = []
    document = experiment("Wiki")
    for label in range(FACTS[DATA["Wiki"]].classes):
        column = f"label {label}"
        for client in range(CLIENTS_IN_FIGURES):
            cells.append(PaperCell(f"C{client + 1} holds", column, "", document, label_share(client, label)))
        for client in range(CLIENTS_IN_FIGURES):
            quantity = of_client(client, f"global_test/predicted/{label}", "test", "share")
            cells.append(PaperCell(f"C{client + 1} predicts", column, "", document, quantity))
        quantity = of_client(0, f"global_test/true/{label}", "test", "share")
        cells.append(PaperCell("the global test", column, "", document, quantity))
    return PaperTable("Labels of clients on Wiki, held and predicted", tuple(cells), SEEDS, (ONLY_DRAWN,), stacked=True)

"""Table 1 and Figures 4 to 7 of FedEgo (Zhang et al. 2023): what is drawn there, of which the text prints no numbers.

Figure 5 takes the values of gamma of Table 8, since its own cannot be read. Figure 6 has FedEgo beside local training
and FedAvg, and Cora beside CoraFull, which has to be downloaded.
"""

import json
from functools import cache, lru_cache
from pathlib import Path

from fedweave.experiment.config import Document
from fedweave.experiment.runs.files import PARTITION, read_table
from fedweave.papers import fedego_printed as numbers
from fedweave.papers.fedego_experiments import CLIENTS, COMMUNITIES, DATA, FACTS, SEEDS, SKEW, ablation, experiment
from fedweave.papers.paper import PaperCell, PaperTable, Quantity, printed
from fedweave.papers.quantities import accuracy, summary
from fedweave.report.reading import Run, read_run

SETTINGS = {"global test share": "global_test", "client share": "share"}  # of the partition


def fact(name: str) -> Quantity:
    """A count of the run's data ("nodes", "edges", "classes"), its "clients", or one of `SETTINGS`."""

    def value(run: Path) -> float:
        found = _run(run)
        if name in SETTINGS:
            return float(found.section("partition")[SETTINGS[name]])
        if name == "clients":
            return float(len(read_table(run, PARTITION)))
        return _counts(json.dumps(found.section("data"), sort_keys=True))[name]

    return Quantity("share" if name in SETTINGS else "count", value, digits=1 if name in SETTINGS else 0)


def of_client(client: int, metric: str, split: str, unit: str) -> Quantity:
    """A metric of the last evaluation of one client, by its place among them; where clients have no models of their own
    on the global test, that of the global model."""

    def value(run: Path) -> float | None:
        if own := _run(run).clients(metric, split):
            return own.get(read_table(run, PARTITION)["client"][client].as_py())
        found: float | None = summary(run)["metrics"].get(metric.replace("global_test/", "global/"))
        return found

    return Quantity(unit, value)


def share_held(client: int, label: int) -> Quantity:
    """The share of a label among those of a client's nodes."""

    def value(run: Path) -> float:
        labels = read_table(run, PARTITION)["labels"][client].as_py()
        return float(labels[label] / sum(labels))

    return Quantity("share", value)


def share_predicted(client: int, label: int) -> Quantity:
    """The share of a label among what a client's own model predicts on the global test set."""
    return of_client(client, f"global_test/predicted/{label}", "test", "share")


def share_true(label: int) -> Quantity:
    """The share of a label in the global test set."""
    return of_client(0, f"global_test/true/{label}", "test", "share")


@lru_cache(maxsize=8)
def _run(run: Path) -> Run:
    """A finished run, of which a table asks for many numbers: one cell after the other, each of all seeds."""
    return read_run(run)


@cache
def _counts(section: str) -> dict[str, float]:
    """Of a data set, by its section as JSON."""
    from fedweave import datasets

    data = datasets.load(**json.loads(section))
    return {"nodes": data.nodes, "edges": data.edges.shape[1] / 2, "classes": data.classes}


DRAWN = "The paper draws this and prints no numbers."
VARIANTS = ("FedEgo", "FedEgo w/o EGO", "FedEgo w/o RL", "FedEgo w/o PL", "FedAvg")
GAMMAS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
SHOWN = 5  # clients, C1 to C5


def statistics() -> PaperTable:
    """Table 1: of the data as it is loaded, and the shares that clients draw."""
    cells = []
    for (dataset, column), number in printed(numbers.TABLE_1).items():
        document = _short(dataset)
        if column in SETTINGS and SETTINGS[column] not in document["partition"]:
            continue
        cells.append(PaperCell(dataset, column, "", document, fact(column), number))
    notes = (
        "Edges are undirected and distinct. Shares are those of the released script, with which the printed F1 agree. "
        "The runs make one round of local training.",
    )
    return PaperTable("The data", tuple(cells), 1, notes)


def _short(dataset: str) -> Document:
    """One round of a small model: who holds what is all that is asked for."""
    held = SKEW.get(dataset, COMMUNITIES[dataset])
    document = experiment(dataset, "Local Only", partition=held, model={"hidden": 16}, algorithm={"local_steps": 1})
    return document | {"rounds": 1, "eval_every": 1}


def ablations() -> PaperTable:
    """Figure 4: F1 over the rounds without each part."""
    cells = [
        PaperCell(variant, dataset, split, ablation(variant, dataset), accuracy(split, best=True))
        for dataset in ("Cora", "Citeseer")
        for split in ("local", "global")
        for variant in VARIANTS
    ]
    return PaperTable("Ablations", tuple(cells), SEEDS, (DRAWN,), over="round")


def divergence() -> PaperTable:
    """Figure 5: how far each client's personalisation layers are from the server's, by gamma."""
    cells = [
        PaperCell(
            f"C{client + 1}",
            f"Wiki, gamma {gamma}",
            "",
            experiment("Wiki", algorithm={"gamma": gamma}),
            of_client(client, "divergence", "train", "divergence"),
        )
        for gamma in GAMMAS
        for client in range(CLIENTS["Wiki"])
    ]
    notes = (DRAWN, "‖Φ_i - Φ_g‖ / ‖Φ_g‖ after the last round's mixing. The values of gamma are Table 8's.")
    return PaperTable("Weight divergence on Wiki", tuple(cells), SEEDS, notes, over="gamma")


def of_clients() -> PaperTable:
    """Figure 6: F1 of each client."""
    cells = [
        PaperCell(method, f"{dataset}, client {client + 1}", split, experiment(dataset, method), quantity)
        for dataset in ("Cora", "CoraFull")
        for split, metric in (("local", "accuracy"), ("global", "global_test/accuracy"))
        for client in range(SHOWN)
        for quantity in [of_client(client, metric, "test", "F1")]
        for method in ("Local Only", "FedAvg", "FedEgo")
    ]
    return PaperTable("F1 of each client", tuple(cells), SEEDS, (DRAWN, "Cora is not in the paper's."), over="client")


def labels() -> PaperTable:
    """Figure 7: which labels clients hold (a), and which their models predict on the global test set (b)."""
    cells, document = [], experiment("Wiki")
    for label in range(FACTS[DATA["Wiki"]].classes):
        column = f"label {label}"
        held = [(f"C{client + 1} holds", share_held(client, label)) for client in range(SHOWN)]
        said = [(f"C{client + 1} predicts", share_predicted(client, label)) for client in range(SHOWN)]
        for row, quantity in (*held, *said, ("the global test", share_true(label))):
            cells.append(PaperCell(row, column, "", document, quantity))
    return PaperTable("Labels of clients on Wiki, held and predicted", tuple(cells), SEEDS, (DRAWN,), stacked=True)

"""GLASU: Zhang et al. 2023, "GLASU: a communication-efficient algorithm for federated learning with vertically
distributed graph data".

Every run makes 2,000 updates, in the number of rounds that this takes with Q local steps. The paper's text leaves open:

- the split: here the published one, whose remaining nodes train too, and 60/20/20 % for the Heri-Graphs; the protocol
`glasu_script.SCRIPT` has the split of the paper's scripts;
- the width: here 192, from its grid 128 to 384;
- the weight decay: here none;
- whether Table 3 and Figure 3 use Q = 4: here they do, because the accuracy of GLASU in Table 3 equals GLASU-4's in
Table 2;
- which party has which feature block of the Heri-Graphs.

"Runtime" is the time of training, without evaluation (`duration`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fedweave.datasets.social import BLOCKS
from fedweave.experiment.config import Document
from fedweave.papers.paper import Paper, PaperCell, PaperTable, Printed, Quantity, parse_numbers, printed_tables
from fedweave.papers.quantities import curve, first_accuracy_of, mean_accuracy, saving, seconds, seconds_to

PRINTED = printed_tables("glasu")

SEEDS = 5
UPDATES = 2000
LOOK = 80  # updates between two evaluations where the time to an accuracy is read (Q > 1): 5 rounds of Q = 16
RARE_LOOK = 400  # and elsewhere
DELAY = 0.05  # seconds, of a network between distant places
# Learning rates by dataset, method, backbone and number of clients; the longest key that fits is taken.
RATES: dict[tuple[str, ...], float] = {
    (): 0.5,
    ("PubMed",): 0.1,
    ("PubMed", "GLASU-1"): 0.5,
    ("PubMed", "Sim."): 0.5,
    ("PubMed", "GLASU-4", "GAT"): 0.05,
    ("PubMed", "GLASU-4", "GCNII", "M=5"): 0.2,
    ("PubMed", "GLASU-4", "GCNII", "M=7"): 0.5,
    ("CiteSeer", "GLASU-4", "GCNII", "M=7"): 0.8,
    ("CiteSeer", "StAl.", "GCNII", "M=5"): 0.2,
}
CHOSEN = (
    "chosen on validation nodes with seed 0: Cora's and CiteSeer's for GLASU-4 among 0.2, 0.5 and 0.8, PubMed's after "
    "1,000 updates for GLASU-4 and GLASU-1 among 0.05, 0.1, 0.2 and 0.5, for Cent. and StAl. between 0.1 and 0.5, "
    "after 2,000 for GCN among 0.05, 0.1 and 0.2, for GAT among 0.01, 0.02, 0.05 and 0.1; for M=5 and M=7 after "
    "2,000 for GLASU-4 and StAl. among CiteSeer's 0.2, 0.5, 0.8 (GLASU-4 with M=7 1.2, too) and PubMed's 0.1, 0.2, 0.5 "
    "(StAl. 0.05, GLASU-4 with M=7 1, too); Sim. has GLASU-1's, all other cells their data set's"
)

DATA: dict[str, Document] = {
    name: {"name": name.lower()} for name in ("Cora", "PubMed", "CiteSeer", "Suzhou", "Venice", "Amsterdam", "Reddit")
}
DATA["PubMed"]["normalize"] = "scale"
HERITAGE = ("Suzhou", "Venice", "Amsterdam")
THRESHOLDS = {"PubMed": 82, "Amsterdam": 89}  # per cent, Table 4
METHODS = {"Cent.": "pooled_gnn", "StAl.": "standalone", "Sim.": "simulated_centralized", "GLASU": "glasu"}
MODELS: dict[str, Document] = {
    "GCN": {"name": "gcn", "hidden": 192},
    "GAT": {"name": "gat", "hidden": 24, "heads": 8},
    "GCNII": {"name": "gcnii", "hidden": 192, "alpha": 0.1, "theta": 0.5},
}


def experiment(
    dataset: str, method: str, clients: int = 3, exchanges: int = 2, steps: int = 1, backbone: str = "GCNII"
) -> Document:
    """The document of `method` on the paper's `dataset`; only GLASU has K `exchanges` and Q `steps`."""
    settings = {"exchanges": exchanges, "steps": steps, "aggregation": "mean"} if method == "GLASU" else {}
    key = (dataset, f"GLASU-{steps}" if method == "GLASU" else method, backbone, f"M={clients}")
    rate = next(RATES[key[:length]] for length in range(len(key), -1, -1) if key[:length] in RATES)
    return {
        "rounds": UPDATES // steps,
        "eval_every": LOOK // steps if steps > 1 else RARE_LOOK,
        "data": DATA[dataset],
        "partition": _partition(dataset, clients, whole=method == "Sim."),
        "model": MODELS[backbone] | {"layers": 4, "dropout": 0.5},
        "algorithm": {"name": METHODS[method], "batch": 16, "fan_out": 3, "optimizer": "sgd", "lr": rate} | settings,
    }


def _partition(dataset: str, clients: int, whole: bool) -> Document:
    """Who holds what; `whole` gives each party the whole graph."""
    vertical = {"name": "vertical", "clients": clients, "edges": 1.0 if whole else 0.8, "labels": "all"}
    if dataset not in HERITAGE:
        return vertical | {"use_dataset_split": True, "train_on_rest": True}
    split = {"train": 0.6, "val": 0.2, "test": 0.2}
    if whole:
        return vertical | split | {"widths": list(BLOCKS.values())}
    return {"name": "parties", "labels": "all"} | split


def _accuracy(row: str, column: str, document: Document, paper: Printed) -> PaperCell:
    return PaperCell(row, column, "local", document, mean_accuracy(), paper)


def _comparison() -> PaperTable:
    cells = []
    for (dataset, column), number in parse_numbers(PRINTED[2]).items():
        method, _, steps = column.partition("-")
        cells.append(_accuracy(dataset, column, experiment(dataset, method, steps=int(steps or 1)), number))
    return _table("Test accuracy", cells)


def _times(
    row: str,
    column: str,
    document: Document,
    of: Callable[[float], Quantity],
    paper: Printed,
    baseline: Document | None = None,
) -> list[PaperCell]:
    """Cells of a time in process, and of one with a delay.

    The paper's number is in the first cell, because its network is another one.
    """
    return [
        PaperCell(row, column, "", document, of(0.0), paper, baseline),
        PaperCell(f"{row}, {1000 * DELAY:.0f} ms per exchange", column, "", document, of(DELAY), baseline=baseline),
    ]


def _lazy() -> PaperTable:
    cells = []
    for dataset, text in PRINTED[3].items():
        all_exchanges = experiment(dataset, "GLASU", exchanges=4, steps=4)
        for (row, column), number in parse_numbers(text).items():
            document = experiment(dataset, "GLASU", exchanges=int(column.removeprefix("K=")), steps=4)
            place = f"{dataset}, {row}", column
            if row == "Accuracy":
                cells.append(_accuracy(*place, document, number))
            elif row == "Runtime":
                cells += _times(*place, document, seconds, number)
            elif document != all_exchanges:
                cells += _times(*place, document, saving, number, baseline=all_exchanges)
    return _table("Lazy aggregation: accuracy, runtime and saving by K", cells, TIMES)


def _stale() -> PaperTable:
    cells = []
    for dataset, text in PRINTED[4].items():
        threshold = THRESHOLDS[dataset]
        for (row, column), number in parse_numbers(text).items():
            document = experiment(dataset, "GLASU", steps=int(column.removeprefix("Q=")))
            if row == "Accuracy":
                quantity, label = first_accuracy_of(threshold), f"{dataset}, {row} of {threshold} %"
                cells.append(PaperCell(label, column, "local", document, quantity, number))
            else:
                cells += _times(f"{dataset}, {row}", column, document, partial(seconds_to, threshold), number)
    return _table("Stale updates: time to the same accuracy by Q", cells, TIMES, FIRST)


def _clients() -> PaperTable:
    cells = []
    for dataset, text in PRINTED[5].items():
        for (method, column), number in parse_numbers(text).items():
            clients = 3 if method == "Cent." else int(column.removeprefix("M="))
            steps = 4 if method == "GLASU" else 1
            document = experiment(dataset, method, clients, steps=steps)
            cells.append(_accuracy(f"{dataset}, {method}", column, document, number))
    return _table("Test accuracy by the number of clients M", cells, "Cent. is the run of M=3 in every column.")


def _backbones() -> PaperTable:
    accuracy, cells = replace(mean_accuracy(), curve=curve), []
    for backbone in MODELS:
        document = experiment("PubMed", "GLASU", steps=4, backbone=backbone)
        cells.append(PaperCell(backbone, "PubMed", "local", document, accuracy))
    note = "The paper draws curves and prints no numbers; the picture next to this table has ours."
    return _table("Test accuracy on PubMed by backbone", cells, note, over="round")


def _table(title: str, cells: list[PaperCell], *notes: str, over: str = "") -> PaperTable:
    rates = (f"{' '.join(key)} {rate:g}".strip() for key, rate in RATES.items())
    clean = f"In the clean protocol a whole run makes {UPDATES:,} updates."
    common = f"{clean} Learning rates: {', '.join(rates)}; {CHOSEN}."
    return PaperTable(title, tuple(cells), SEEDS, (common, *notes), over=over)


TIMES = (
    "Runtimes are of training without evaluation, all parties one after the other in one process; with a delay, "
    f"{DELAY:g} s are added per exchange (one call of all parties, down and up). With --jobs above 1, or other work on "
    "the machine, they are noisy."
)
FIRST = (
    f"Accuracy is looked at every {LOOK} updates; runs that never reach the threshold are not in the mean. The paper's "
    "N/A took more than 128 s."
)
GLASU = Paper(
    "GLASU (Zhang et al. 2023)", {2: _comparison(), 3: _lazy(), 4: _stale(), 5: _clients()}, {3: _backbones()}
)

"""FairGFL: Zhou et al. 2026, "FairGFL: privacy-preserving fairness-aware federated learning with overlapping
subgraphs".

Settings come from `experiments/fairgfl-*.toml`, with fewer rounds. `algorithms.fairgfl` and `partition.overlap` list
what the paper leaves open and the decision here. Every method trains the same model with the same optimizer and the
same number of local steps, where it is free to; q-FedAvg, FCFL and FED-PUB use their own. FGFL, which the paper uses
for nodes, is here for small graphs (`fairgraphfl`) and not in these tables.

Weights 1 / (1 + O_i) do not sum to 1, so that FairGFL also takes shorter steps than FedAvg. Two rows separate fairness
from shorter steps: FairGFL with `normalize`, whose weights sum to 1 before λ, and FedAvg whose step the server scales
by `STEP`, the mean over clients of 1 / (1 + O_i) at that 𝐍 (`fedavgm` without momentum).
"""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from fedweave.datasets.public import PUBLIC
from fedweave.experiment.config import Document
from fedweave.papers.overlap_quantities import (
    ESTIMATED,
    TRUE,
    bytes_each,
    links_by_averaging,
    pair_auc,
    rank_correlation,
    share_of,
    sharing,
)
from fedweave.papers.paper import (
    NOTHING,
    Paper,
    PaperCell,
    PaperTable,
    Printed,
    Quantity,
    parse_numbers,
    printed_tables,
)
from fedweave.papers.quantities import summary_metric
from fedweave.partition.overlap import HIGH, LOW, NONE

PRINTED = printed_tables("fairgfl")
SHARING = {  # Table III: (true, estimated) shares, which sum to 1 over all clients
    "Cora": (
        (0.0521, 0.0352, 0.0289, 0.0676, 0.0315, 0.0423, 0.0187, 0.0489),
        (0.0367, 0.0421, 0.0312, 0.0608, 0.0231, 0.0356, 0.0238, 0.0375),
    ),
    "CiteSeer": (
        (0.0475, 0.0312, 0.0458, 0.0364, 0.0289, 0.0197, 0.0341, 0.0512),
        (0.0452, 0.0256, 0.0398, 0.0387, 0.0323, 0.0169, 0.0356, 0.0531),
    ),
}
NO_OVERLAP = {  # the same of clients without overlap
    "Cora": ((0.0, 0.0, 0.0, 0.0), (0.0058, 0.0083, 0.0091, 0.0072)),
    "CiteSeer": ((0.0, 0.0, 0.0, 0.0), (2.8512e-10, 0.0042, 3.2732e-12, 7.8254e-08)),
}
SEEDS = 5
ROUNDS = 50
LOOK = 10  # rounds between two evaluations
OVERLAPS = (0.0, 0.05, 0.1, 0.15, 0.2)
DATASETS = ("Cora", "CiteSeer")
FACTS = {kind.name: kind.facts for kind in PUBLIC}

# Mean over clients of 1 / (1 + O_i) of the true overlaps, α = .8, and over the partitions of seeds 0 to 4.
STEP: dict[str, dict[float, float]] = {
    "Cora": {0.0: 1.0, 0.05: 0.537, 0.1: 0.449, 0.15: 0.413, 0.2: 0.392},
    "CiteSeer": {0.0: 1.0, 0.05: 0.536, 0.1: 0.451, 0.15: 0.414, 0.2: 0.393},
}
WIDTHS = {"Cora": 256, "CiteSeer": 128}
CODES = {"Cora": 100, "CiteSeer": 300}

DESCENT: Document = {"local_steps": 3, "optimizer": "sgd", "lr": 0.5, "weight_decay": 5e-4}
FAIRGFL_SETTINGS: Document = {"name": "fairgfl", "lam": 0.1, "epsilon_a": 3.0, "epsilon_b": 1.0} | DESCENT
UNIFORM: Document = {"parts": ["uniform"]}
FEDAVG: Document = {"name": "fedavg"} | UNIFORM | DESCENT
BASELINE_METHODS: dict[str, Document] = {
    "q-FedAvg": {"name": "qfedavg"} | DESCENT,
    "Ditto": {"name": "ditto"} | UNIFORM | DESCENT,
    "FCFL": {"name": "fcfl", "first": ROUNDS // 2, "lr": 0.5},
    "FedGCN": {"name": "fedgcn"} | DESCENT,
    "FED-PUB": {"name": "fedpub", "tau": 5.0},
}
OURS, NORMALIZED, PLAIN, SCALED = "FairGFL", "FairGFL, normalized", "FedAvg", "FedAvg, FairGFL's mean step"

ACCURACY = summary_metric("global/accuracy", "accuracy")
LOSS = summary_metric("global/loss", "loss")
VARIANCE = summary_metric("fairness/train_loss_variance", "variance", digits=5)
ENTROPY = summary_metric("fairness/train_loss_entropy", "entropy", digits=5)
QUANTITIES = (ACCURACY, LOSS, VARIANCE, ENTROPY)


def experiment(dataset: str, method: str = OURS, overlap: float = 0.1, **changes: object) -> Document:
    """The document of `method` on `dataset` at 𝐍 = `overlap`; `changes` are settings of the algorithm."""
    return {
        "rounds": ROUNDS,
        "eval_every": LOOK,
        "data": {"name": dataset.lower()},
        "partition": {"name": "overlap", "overlap": overlap, "clients": 40},
        "model": {"name": "gcn", "hidden": WIDTHS.get(dataset, 128), "layers": 2, "dropout": 0.5},
        "algorithm": _algorithm(dataset, method, overlap) | changes,
    }


def _algorithm(dataset: str, method: str, overlap: float) -> Document:
    if method in (OURS, NORMALIZED):
        settings = FAIRGFL_SETTINGS | {"code_size": CODES.get(dataset, 100)}
        return settings | {"normalize": True} if method == NORMALIZED else settings
    if method == SCALED and overlap > 0:
        return {"name": "fedavgm", "momentum": 0.0, "server_lr": STEP[dataset][overlap]} | UNIFORM | DESCENT
    return BASELINE_METHODS.get(method, FEDAVG)


def _cells(rows: Mapping[str, Mapping[str, Any]], *quantities: Quantity) -> list[PaperCell]:
    """A cell for each data set, quantity and row, {its name: arguments of `experiment`}."""
    cells = []
    for dataset in DATASETS:
        for quantity in quantities:
            for row, settings in rows.items():
                cells.append(PaperCell(row, dataset, _split(quantity), experiment(dataset, **settings), quantity))
    return cells


def _comparison(title: str, *quantities: Quantity) -> PaperTable:
    rows = {method: {"method": method} for method in (OURS, NORMALIZED, PLAIN, SCALED, *BASELINE_METHODS)}
    cells = _cells(rows, *quantities)
    return _table(f"{title} at an overlap of .1", cells, STEPS, BASELINES, over="round", against=(PLAIN, SCALED))


def _dynamic(title: str, *quantities: Quantity) -> PaperTable:
    rows: dict[str, dict[str, Any]] = {
        OURS: {"method": OURS, "parts": ["drift"], "renew": True, "beta": 0.8},
        NORMALIZED: {"method": NORMALIZED, "parts": ["drift"], "renew": True, "beta": 0.8},
        PLAIN: {"method": PLAIN, "parts": ["uniform", "drift"]},
        SCALED: {"method": SCALED, "parts": ["uniform", "drift"]},
    }
    title = f"{title} where 1 % of nodes changes in each round"
    return _table(title, _cells(rows, *quantities), STEPS, DRIFT, over="round", against=(PLAIN, SCALED))


def _overlaps() -> PaperTable:
    cells = []
    for dataset in DATASETS:
        for n in OVERLAPS:
            for quantity in (ACCURACY, VARIANCE, ENTROPY):
                for method in (OURS, NORMALIZED, PLAIN, SCALED):
                    place = method, f"{dataset}, overlap {n:g}", _split(quantity)
                    cells.append(PaperCell(*place, experiment(dataset, method, n), quantity))
    return _table("Accuracy and fairness by overlap", cells, STEPS, over="overlap", against=(PLAIN, SCALED))


def _estimates() -> PaperTable:
    groups = {"overlapping": (LOW, HIGH), "low overlap": (LOW,), "high overlap": (HIGH,), "no overlap": (NONE,)}
    printed: dict[str, dict[str, Any]] = {"overlapping": SHARING, "no overlap": NO_OVERLAP}
    cells = []
    for dataset in DATASETS:
        document = experiment(dataset)
        for row, of in groups.items():
            for at, (column, matrix) in enumerate((("true", TRUE), ("estimated", ESTIMATED))):
                paper = Printed(fmean(printed[row][dataset][at])) if row in printed else NOTHING
                cells.append(PaperCell(row, f"{dataset}, {column}", "", document, sharing(matrix, of), paper))
        cells.append(PaperCell("pairs of clients that overlap", dataset, "", document, pair_auc()))
        cells.append(PaperCell("order of clients", dataset, "", document, rank_correlation()))
    return _table("True and estimated overlaps of nodes at ε_a = 3", cells, SHARES)


# Features, hidden width, classes, nodes of a minibatch, code size, and bytes per pair of nodes, with which Table IV's
# numbers come out; the paper states none of the last four.
SHAPES = {
    "Cora": (1433, 256, 7, 64, 100, 1 / 8),
    "CiteSeer": (3703, 128, 6, 64, 300, 1 / 8),
    "Reddit": (602, 128, 41, 64, 80, 1),
    "Ogbn-arxiv": (128, 512, 40, 64, 64, 1),
}


def _bytes() -> PaperTable:
    def constant(number: float) -> Callable[[Document], float]:
        return lambda document: number

    cells = []
    for (dataset, column), number in parse_numbers(PRINTED[4]).items():
        features, hidden, classes, nodes, size, each = SHAPES[dataset]
        model = 4 * ((features + 1) * hidden + (hidden + 1) * classes)  # bytes of a GCN with two layers
        codes, links = 4 * nodes * size, int(nodes * nodes * each)
        quantity = {
            "Model": bytes_each(("update",), constant(model)),
            "Features": bytes_each(("codes",), constant(codes)),
            "Links": bytes_each(("links",), constant(links)),
            "Ratio": share_of(("codes", "links"), ("update",), constant(100 * (codes + links) / model)),
        }[column]
        cells.append(PaperCell(dataset, column, "", experiment(dataset), quantity, number))
    return _table("What a client sends in a round", cells, BYTES)


def _attack() -> PaperTable:
    cells = []
    for (row, column), number in parse_numbers(PRINTED[5]).items():
        queries, label, document = int(column), f"{column} answer{'s' * (int(column) > 1)}", experiment("Cora")
        cells.append(PaperCell(row, label, "", document, links_by_averaging(queries, False), number))
        cells.append(PaperCell("noise drawn once", label, "", document, links_by_averaging(queries, True)))
    return _table("Links found by asking again", sorted(cells, key=lambda it: it.row), ATTACK)


def _split(quantity: Quantity) -> str:
    """Losses between clients are of what they train on."""
    return "train" if quantity in (VARIANCE, ENTROPY) else "global"


def _table(
    title: str, cells: list[PaperCell], *notes: str, over: str = "", against: tuple[str, ...] = ()
) -> PaperTable:
    return PaperTable(title, tuple(cells), SEEDS, (SETTINGS, *notes), over=over, against=against)


SETTINGS = (
    f"Every run has 40 clients and {ROUNDS} rounds of 3 local steps of SGD, learning rate 0.5; the paper states "
    "neither rounds nor rates, and prints curves."
)
STEPS = (
    f"“{SCALED}”: fedavgm without momentum, whose server_lr is the mean over clients of 1 / (1 + O_i) of the true "
    "overlaps (`STEP`): "
    + "; ".join(f"{name} {', '.join(f'{step[n]:g}' for n in OVERLAPS[1:])}" for name, step in STEP.items())
    + f" for overlaps of {', '.join(f'{n:g}' for n in OVERLAPS[1:])}. λ is in neither it nor `normalize`."
)
BASELINES = (
    "Ditto and FED-PUB have a model for every client; their numbers are the means over these on the global test. "
    "FED-PUB trains with Adam, learning rate .01. FCFL and FED-PUB take one local step a round, so FED-PUB's pull to "
    "the received weights has no effect."
)
DRIFT = (
    "The part `drift` changes nodes. FairGFL's clients draw new codes of changed nodes, and β = .8; the scaled step "
    "follows from the overlaps at the beginning."
)
SHARES = (
    "Of each client the sum of N_ik over the others, as a share of its sum over all clients, which seems to be the "
    "paper's normalization; the paper's numbers are means of the eight and four clients that it shows."
)
BYTES = (
    "From shapes: floats of a GCN with two layers, floats of 64 codes, and of 64² pairs of nodes a bit each (Cora and "
    "CiteSeer) or a byte. Ours: codes are bits, too."
)
ATTACK = "10,000 pairs, half of them linked, ε_b = 1; from shapes: the binomial distribution, of a tie half."
FAIRGFL = Paper(
    "FairGFL (Zhou et al. 2026)",
    {3: _estimates(), 4: _bytes(), 5: _attack()},
    {
        5: _comparison("Utility", ACCURACY, LOSS),
        6: _comparison("Fairness", VARIANCE, ENTROPY),
        7: _table(
            "FairGFL by the privacy of codes",
            _cells({f"ε_a = {e:g}": {"epsilon_a": e} for e in (1.0, 4.0, float("inf"))}, *QUANTITIES),
            over="round",
        ),
        8: _overlaps(),
        10: _table(
            "FairGFL by the training of its encoder",
            _cells({f"{n} rounds": {"encoder_rounds": n} for n in (0, 200, 600)}, *QUANTITIES),
            over="round",
        ),
        12: _dynamic("Utility", ACCURACY, LOSS),
        13: _dynamic("Fairness", VARIANCE, ENTROPY),
    },
)

"""FedEgo's experiments as its paper's released script makes them (Zhang et al. 2023), the source of its numbers.

Each setting is one of the partition, the data, the model or the algorithm. The clean protocol and the script share the
clients' sizes, dropped isolated nodes, the width, dropout and gamma.
"""

import math

from fedweave.experiment.config import Document
from fedweave.papers.fedego import FEDEGO
from fedweave.papers.fedego_experiments import DATA, EGOS, FACTS, SEEDS, SKEW
from fedweave.papers.paper import PaperCell, Protocol, Setting, change, change_if, has_algorithm, has_data, keep

EGO_METHODS = ("fedego", "local", "fedavg", "fedprox", "dfedgnn")  # that train FedEgo's model on ego-graphs
# Into how many mini-batches a fifth of the largest client's nodes go, those without an edge dropped, with seed 0.
BATCHES = {"cora": 7, "citeseer": 8, "dblp": 13}
DELTA = 20  # nodes by which clients made of communities may differ from an equal share
UNDER_SKEW: dict[str, Document] = {DATA[name]: partition for name, partition in SKEW.items()}


def _communities(cell: PaperCell) -> PaperCell:
    """Communities dealt in turn, whose clients validate and test on the same number of nodes as under label skew."""
    data = cell.document["data"]["name"]
    partition = cell.document["partition"]
    if partition["name"] != "louvain":
        return cell
    each = FACTS[data].nodes / (partition["clients"] + 1)
    skew = UNDER_SKEW[data]
    test = round(skew["test_nodes"] / each, 4)
    val = skew["val"]
    split = {"train": round(1 - val - test, 4), "val": val, "test": test}
    return change(cell, partition={"packing": "in_turn", "slack": round(DELTA / each, 4)} | split)


def _in_epochs(cell: PaperCell) -> PaperCell:
    """Five epochs over a fifth of the nodes each; the server's over a fifth of its mashed ego-graphs."""
    settings = cell.document["algorithm"]
    if settings["name"] == "fedego":
        return change(cell, algorithm={"epoch_share": 0.2, "server_share": 0.2})
    if settings["name"] not in EGO_METHODS:
        return cell
    first, *rest = settings["parts"]
    parts = [first | {"epochs": 5, "share": 0.2}, *rest]
    return change(cell, algorithm={"local_steps": 5 * _batches(cell), "parts": parts})


def _batches(cell: PaperCell) -> int:
    """The mini-batches in a fifth of a client's nodes."""
    data = cell.document["data"]["name"]
    partition = cell.document["partition"]
    if partition.get("isolated") == "drop" and data in BATCHES:
        return BATCHES[data]
    nodes = FACTS[data].nodes if data in FACTS else 0
    client_nodes: float = partition["share"] * nodes if "share" in partition else nodes / (partition["clients"] + 1)
    return max(1, math.ceil(client_nodes / 5 / EGOS["batch"]))


def _after_training(cell: PaperCell) -> PaperCell:
    """Clients evaluated after their own training, before averaging."""
    if has_algorithm("fedavg", "fedprox")(cell):
        return change(cell, algorithm={"parts": [*cell.document["algorithm"]["parts"], "trained_model"]})
    return change(cell, algorithm={"own_reduction": True}) if has_algorithm("fedego")(cell) else cell


def _train_longer(cell: PaperCell) -> PaperCell:
    if not has_algorithm("fedego")(cell) or not has_data("dblp", "corafull")(cell):
        return cell
    cell = change(cell, algorithm={"lr": 5e-4})
    return change(cell, rounds=300) if has_data("dblp")(cell) else cell


SCRIPT_SETTINGS = {
    "test nodes out of later clients' choice": Setting(
        change_if(lambda cell: cell.document["partition"]["name"] == "label_skew", partition={"reserved": True})
    ),
    "communities dealt in turn": Setting(_communities),
    "epochs of a fifth of the nodes": Setting(_in_epochs),
    "Adam's moments kept": Setting(
        change_if(has_algorithm(*EGO_METHODS), algorithm={"optimizer_state": "kept"}),
        change_if(has_algorithm(*EGO_METHODS), algorithm={"optimizer_state": "fresh"}),
    ),
    "clients evaluated after training": Setting(_after_training),
    "dropout at both ends": Setting(keep, change_if(has_algorithm("fedego"), model={"dropout": 0.0})),
    "Kaiming-normal weights": Setting(change_if(has_algorithm(*EGO_METHODS), model={"initial": "kaiming"})),
    "width 512": Setting(keep, lambda cell: change(cell, model={"hidden": 256})),
    "more training on dblp": Setting(_train_longer),
    "features 0/1 on dblp": Setting(change_if(has_data("dblp"), data={"normalize": "binary"})),
    "FedProx's term without gradient": Setting(
        change_if(has_algorithm("fedprox"), algorithm={"mu": 0.0, "adaptive": False})
    ),
}
SCRIPT_NOTES = (
    "Protocol of the paper's released script. Not as it has it: a client with fewer nodes makes smaller mini-batches "
    "here, fewer there; all clients begin alike here, each with weights of its own there; the server takes the "
    "children of a mashed ego-graph as they are here, draws among them there; a classifier has a bias here, and a node "
    "without neighbors is its own; scores are of all neighbors here, of six sampled ones there; label distributions "
    "are of train nodes and centers here, of all nodes and positions there; local tests are stratified here; runs "
    "there may end after round 100. Methods without ego-graphs share partition, data and rounds with the script, not "
    "its training.",
)


def _headline(method: str) -> tuple[PaperCell, ...]:
    """The method's cells under label skew, on the data sets that are small enough to run often."""
    cells = (*FEDEGO.tables[3].cells, *FEDEGO.tables[2].cells)
    return tuple(it for it in cells if it.row == method and it.column in ("Cora", "Citeseer", "Wiki"))


SCRIPT = Protocol(
    SCRIPT_SETTINGS,
    lambda cell: change(cell, eval_every=1),
    worth=_headline("FedEgo"),
    beside=_headline("FedAvg"),
    seeds=SEEDS,
    notes=SCRIPT_NOTES,
)

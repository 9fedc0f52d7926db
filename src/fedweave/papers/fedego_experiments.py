"""FedEgo's experiments: data, partitions, model and methods as its tables have them (Zhang et al. 2023, section 5).

Under label skew the sizes come from the released script (Cora and CiteSeer: half of the nodes and 200 test nodes per
client, where the text says 30 % and 300). The width, 512, follows from Table 9. Dropout and gamma are the paper's: on
validation nodes that no other client trains on, no other value was better (docs/fedego.md). What the paper leaves open:
the split inside communities (here 50/20/30 % train/val/test), learning rate and weight decay (here the defaults of
`algorithms.fedego`). Local training, FedAvg, FedProx and D-FedGNN share FedEgo's architecture and optimizer, and its 5
epochs of 5 mini-batches (section 5.2). FedSage and FedSage+ make the same 25 mini-batches with this optimizer and
"follow the original architectures" (section 5.2): a two-layer GraphSAGE of FedEgo's width, fan-out 5. The numbers of
its tables are as printed there; see `paper.parse_numbers`.
"""

from fedweave.core.types import Record
from fedweave.datasets.public import PUBLIC
from fedweave.experiment.config import Document
from fedweave.papers.paper import printed_tables

PRINTED = printed_tables("fedego")
SEEDS = 4
FACTS = {kind.name: kind.facts for kind in PUBLIC}
DATA = {"Cora": "cora", "Citeseer": "citeseer", "Wiki": "dblp", "CoraFull": "corafull", "FedDBLP": "feddblp"}
CLIENTS = {"Cora": 5, "Citeseer": 5, "Wiki": 10, "CoraFull": 10}


def _label_skew(dataset: str, share: float, test_nodes: int) -> Document:
    return {
        "name": "label_skew",
        "clients": CLIENTS[dataset],
        "majors": 3,
        "major_rate": 0.8,
        "share": share,
        "global_test": 0.3,
        "test_nodes": test_nodes,
        "val": 0.2,
        "rest": "all",
        "short": "fill",
        "isolated": "drop",
    }


SKEW = {
    "Cora": _label_skew("Cora", 0.5, 200),
    "Citeseer": _label_skew("Citeseer", 0.5, 200),
    "Wiki": _label_skew("Wiki", 0.2, 300),
    "CoraFull": _label_skew("CoraFull", 0.3, 300),
}
COMMUNITIES: dict[str, Document] = {
    name: {"name": "louvain", "clients": clients, "holdout": True, "train": 0.5, "val": 0.2, "test": 0.3}
    for name, clients in CLIENTS.items()
}
COMMUNITIES["FedDBLP"] = {"name": "default_split", "clients": 7}

WIDTH = 512
# The baselines' model, to which the script gives no dropout.
PLAIN = {"name": "ego", "hidden": WIDTH, "layers": 2, "dropout": 0.0}
MODEL = PLAIN | {"dropout": 0.5, "dropped": "ends"}
DESCENT = {"optimizer": "adam", "lr": 3e-4, "weight_decay": 0.0}
EGOS = {"batch": 32, "hops": 2, "fan_out": 6}
ALGORITHM = {"name": "fedego", "batches": 5, "epochs": 5, "server_epochs": 5, "gamma": 0.5} | EGOS | DESCENT
CROSS_ENTROPY = {"name": "ego_cross_entropy"} | EGOS
LOCAL = {"local_steps": 25, "parts": [CROSS_ENTROPY]} | DESCENT
ON_EGOS = LOCAL | {"parts": [CROSS_ENTROPY, "uniform"]}
SAGE = {"name": "sage", "hidden": WIDTH, "layers": 2, "dropout": 0.0}
MINIBATCHES = {"local_steps": 25, "batch": 32, "fan_out": 5} | DESCENT
METHODS: dict[str, dict[str, Document]] = {
    "Local Only": {"model": PLAIN, "algorithm": {"name": "local"} | LOCAL},
    "FedAvg": {"model": PLAIN, "algorithm": {"name": "fedavg"} | ON_EGOS},
    "FedProx": {"model": PLAIN, "algorithm": {"name": "fedprox", "adaptive": True} | ON_EGOS},
    "GraphFL": {"model": PLAIN, "algorithm": {"name": "graphfl"}},
    "D-FedGNN": {"model": PLAIN, "algorithm": {"name": "dfedgnn"} | LOCAL},
    "FedGCN": {"model": {"name": "gcn", "hidden": WIDTH, "layers": 2}, "algorithm": {"name": "fedgcn"}},
    "FedSage": {"model": SAGE, "algorithm": {"name": "fedsage"} | MINIBATCHES},
    "FedSage+": {"model": SAGE, "algorithm": {"name": "fedsage_plus"} | MINIBATCHES},
    "FedEgo": {},
}

ABLATIONS: dict[str, dict[str, Document]] = {
    "FedEgo w/o Mixup": {"algorithm": {"mixup": False, "allow_raw_ego": True}},
    "FedEgo-Linear": {"model": {"linear": True}},
    "FedEgo w/o PL (Fixed λ = 0)": {"algorithm": {"mixing": 0.0}},
    "FedEgo (Fixed λ = 0.5)": {"algorithm": {"mixing": 0.5}},
    "FedEgo-Server (Fixed λ = 1)": {"algorithm": {"mixing": 1.0}},
    "FedEgo (Adaptive λ)": {},
    "FedEgo w/o EGO": {"model": {"order": "gnn-mlp"}, "algorithm": {"hops": 0}},
    "FedEgo w/o RL": {"algorithm": {"share_reduction": False}},
    "FedEgo w/o PL": {"algorithm": {"mixing": 0.0}},
}


def experiment(dataset: str, method: str = "FedEgo", **changes: Document) -> Document:
    """The document of FedEgo's `method` on the paper's `dataset` under label skew.

    changes: sections of the document, merged key by key; a `partition` with a name replaces the section.
    """
    document: Record = {"rounds": 200, "eval_every": 10, "data": {"name": DATA[dataset]}}
    document |= {"partition": SKEW.get(dataset), "model": MODEL, "algorithm": ALGORITHM} | METHODS[method]
    for section, change in changes.items():
        document[section] = change if "name" in change else document[section] | change
    return document


def ablation(variant: str, dataset: str) -> Document:
    """The document of a variant or a method on the paper's `dataset` under label skew."""
    if variant in METHODS:
        return experiment(dataset, variant)
    return experiment(dataset, "FedEgo", **ABLATIONS[variant])

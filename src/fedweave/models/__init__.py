"""Models: each a frozen dataclass with `build(features, classes) -> Model`."""

from fedweave.models.edges import OnEdges
from fedweave.models.ego import Ego
from fedweave.models.embedding import Embedding
from fedweave.models.gat import GAT
from fedweave.models.gcn import GCN, MLP, SGC
from fedweave.models.gcnii import GCNII
from fedweave.models.gin import GIN
from fedweave.models.gine import GINE
from fedweave.models.heterophily import ACMGCN, GPRGNN, H2GCN
from fedweave.models.lightgcn import LightGCN
from fedweave.models.module import ModuleKind
from fedweave.models.pna import PNA
from fedweave.models.sage import SAGE
from fedweave.models.star import Star

__all__ = [
    "ACMGCN",
    "GAT",
    "GCN",
    "GCNII",
    "GIN",
    "GINE",
    "GPRGNN",
    "H2GCN",
    "MLP",
    "MODELS",
    "PNA",
    "SAGE",
    "SGC",
    "Ego",
    "Embedding",
    "LightGCN",
    "ModuleKind",
    "OnEdges",
    "Star",
]

MODELS: dict[str, type] = {
    "gcn": GCN,
    "sage": SAGE,
    "mlp": MLP,
    "gcnii": GCNII,
    "gat": GAT,
    "gin": GIN,
    "gine": GINE,
    "pna": PNA,
    "sgc": SGC,
    "gprgnn": GPRGNN,
    "acmgcn": ACMGCN,
    "h2gcn": H2GCN,
    "ego": Ego,
    "star": Star,
    "embedding": Embedding,
    "lightgcn": LightGCN,
}

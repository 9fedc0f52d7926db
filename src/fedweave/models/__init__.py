"""Models: each a frozen dataclass with `build(features, classes) -> Model`."""

from fedweave.models.edges import OnEdges
from fedweave.models.ego import Ego
from fedweave.models.embedding import Embedding
from fedweave.models.exported import ExportedModel, load
from fedweave.models.gat import GAT, GATv2
from fedweave.models.gcn import GCN, MLP, SGC
from fedweave.models.gcnii import GCNII
from fedweave.models.gin import GIN
from fedweave.models.gine import GINE
from fedweave.models.heterophily import ACMGCN, APPNP, GPRGNN, H2GCN
from fedweave.models.lightgcn import LightGCN
from fedweave.models.module import ModuleKind
from fedweave.models.pna import PNA
from fedweave.models.registry import MODELS
from fedweave.models.rgcn import RGCN
from fedweave.models.sage import SAGE
from fedweave.models.star import Star
from fedweave.models.transformer import Transformer

__all__ = [
    "ACMGCN",
    "APPNP",
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
    "RGCN",
    "SAGE",
    "SGC",
    "Ego",
    "Embedding",
    "ExportedModel",
    "GATv2",
    "LightGCN",
    "ModuleKind",
    "OnEdges",
    "Star",
    "Transformer",
    "load",
]

"""Models: each a frozen dataclass with `build(features, classes) -> Model`."""

from fedweave.models.ego import Ego
from fedweave.models.gat import GAT
from fedweave.models.gcn import GCN
from fedweave.models.gcnii import GCNII
from fedweave.models.gin import GIN
from fedweave.models.mlp import MLP
from fedweave.models.module import ModuleKind
from fedweave.models.sage import SAGE
from fedweave.models.star import Star

__all__ = ["GAT", "GCN", "GCNII", "GIN", "MLP", "MODELS", "SAGE", "Ego", "ModuleKind", "Star"]

MODELS: dict[str, type] = {
    "gcn": GCN,
    "sage": SAGE,
    "mlp": MLP,
    "gcnii": GCNII,
    "gat": GAT,
    "gin": GIN,
    "ego": Ego,
    "star": Star,
}

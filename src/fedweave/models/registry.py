"""The models that come with fedweave, by name."""

from fedweave.models.ego import Ego
from fedweave.models.embedding import Embedding
from fedweave.models.gat import GAT, GATv2
from fedweave.models.gcn import GCN, MLP, SGC
from fedweave.models.gcnii import GCNII
from fedweave.models.gin import GIN
from fedweave.models.gine import GINE
from fedweave.models.heterophily import ACMGCN, APPNP, GPRGNN, H2GCN
from fedweave.models.lightgcn import LightGCN
from fedweave.models.pna import PNA
from fedweave.models.rgcn import RGCN
from fedweave.models.sage import SAGE
from fedweave.models.star import Star
from fedweave.models.transformer import Transformer

MODELS: dict[str, type] = {
    "gcn": GCN,
    "sage": SAGE,
    "mlp": MLP,
    "gcnii": GCNII,
    "gat": GAT,
    "gatv2": GATv2,
    "transformer": Transformer,
    "gin": GIN,
    "gine": GINE,
    "pna": PNA,
    "sgc": SGC,
    "appnp": APPNP,
    "gprgnn": GPRGNN,
    "acmgcn": ACMGCN,
    "h2gcn": H2GCN,
    "ego": Ego,
    "star": Star,
    "embedding": Embedding,
    "lightgcn": LightGCN,
    "rgcn": RGCN,
}

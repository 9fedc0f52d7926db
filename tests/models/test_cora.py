"""Published accuracy on Cora's public split; needs the files of $FEDWEAVE_DATA."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TEST, TRAIN, make_graph
from fedweave.metrics.classification import counts, values
from fedweave.models import MODELS


@pytest.mark.often("sage-0.77-0.84")
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("gcn", 0.79, 0.84), ("sage", 0.77, 0.84), ("mlp", 0.50, 0.63)],  # Kipf and Welling: GCN 0.815, MLP 0.551
)
def test_public_split(data_root: Path, name: str, low: float, high: float) -> None:
    with np.load(data_root / "cora" / "cora.npz", allow_pickle=False) as file:
        x = sp.csr_matrix((file["x_data"], file["x_indices"], file["x_indptr"]), shape=tuple(file["x_shape"]))
        masks = np.array([np.isin(np.arange(x.shape[0]), file[f"{role}_idx"]) for role in ("train", "val", "test")])
        graph = make_graph(x.multiply(1 / x.sum(1)).tocsr(), file["edge_index"], file["y"], masks)
    model = MODELS[name]().build(x.shape[1], 7)
    w = models.init(model, random.key(0))
    weights = [weight.requires_grad_() for layer in w.values() for weight in layer.values()]
    optimizer = torch.optim.Adam(weights, lr=0.01, weight_decay=5e-4, fused=True)
    for epoch in range(100):
        optimizer.zero_grad()
        logits = models.apply(model, w, graph, random.fold(random.key(1), epoch))
        train = graph.masks[TRAIN]
        torch.nn.functional.cross_entropy(logits[train], graph.y[train]).backward()
        optimizer.step()
    with torch.no_grad():
        reached = values(counts(models.apply(model, w, graph), graph.y, graph.masks))
    assert low < reached["accuracy"][TEST] < high
    assert reached["auc"][TEST] > reached["accuracy"][TEST]

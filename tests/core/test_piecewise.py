"""A graph of very many edges is judged piece by piece, as it is as a whole."""

import pytest
import torch
from torch.func import vmap

from fedweave.core import model as models
from fedweave.core import piecewise, random
from fedweave.core.graph import stack
from fedweave.core.tree import map_leaves
from fedweave.models.edges import OnEdges
from tests.models.test_carrying_edges import D, K, a_graph
from tests.random_graphs import dims_of
from tests.sampling.test_messages import MODELS, of_edges


@pytest.mark.often("gcn both-", "gine both-by time", "pna-by time", "gat-", "gine connected-")
@pytest.mark.parametrize("until", [None, (14.0, 22.0)], ids=["", "by time"])
@pytest.mark.parametrize("name", MODELS)
def test_pieces_give_what_the_whole_graph_gives(name, until, monkeypatch):
    m = 40
    graph = of_edges(a_graph(m=m)[0], m, until)
    nodes = a_graph(m=m)[0]
    for own, net in ((graph, OnEdges(MODELS[name], K)), (nodes, MODELS[name])):
        model = net.build(D, 2)
        w = models.init(model, random.key(1), torch.float64)
        with torch.no_grad():
            whole = models.infer(model, w, own)[: m if own is graph else 20]
            with monkeypatch.context() as small:
                small.setattr(piecewise, "MAX_WHOLE", 10)
                small.setattr(piecewise, "AT_ONCE", 7)
                pieces = models.infer(model, w, own)
                batch = stack([own])
                dims = dims_of(batch)
                batched = vmap(lambda w, own, model=model: models.infer(model, w, own), (0, dims))
                of_batch = batched(map_leaves(lambda leaf: leaf[None], w), batch)[0]
        for found in (pieces, of_batch):
            torch.testing.assert_close(found[: len(whole)], whole, rtol=0, atol=1e-12)

"""The papers whose tables can be reproduced: a further one is a module beside this and an entry here.

`PROTOCOLS` has the other protocols under which a paper's tables can be run.
"""

from fedweave.papers import fedego_script, glasu_script
from fedweave.papers.f2gnn import F2GNN
from fedweave.papers.fairgfl import FAIRGFL
from fedweave.papers.fairgraphfl import FAIRGRAPHFL
from fedweave.papers.fedego import FEDEGO
from fedweave.papers.glasu import GLASU
from fedweave.papers.paper import Paper
from fedweave.papers.protocol import Protocol

PAPERS: dict[str, Paper] = {
    "fedego": FEDEGO,
    "fairgfl": FAIRGFL,
    "fairgraphfl": FAIRGRAPHFL,
    "f2gnn": F2GNN,
    "glasu": GLASU,
}

PROTOCOLS: dict[str, dict[str, Protocol]] = {
    "fedego": {"script": fedego_script.SCRIPT},
    "glasu": {"script": glasu_script.SCRIPT},
}

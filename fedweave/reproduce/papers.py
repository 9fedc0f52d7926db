"""The papers whose tables can be reproduced: a further one is a module beside this and an entry here.

`PROTOCOLS` has the other protocols under which a paper's tables can be run.
"""

from fedweave.reproduce import fedego_script, glasu_script
from fedweave.reproduce.f2gnn import F2GNN
from fedweave.reproduce.fairgfl import FAIRGFL
from fedweave.reproduce.fairgraphfl import FAIRGRAPHFL
from fedweave.reproduce.fedego import FEDEGO
from fedweave.reproduce.glasu import GLASU
from fedweave.reproduce.paper import Paper
from fedweave.reproduce.protocol import Protocol

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

"""Communities dealt to clients in turn, whatever edges lie between them."""

import numpy as np

from fedweave.partition.splits import group


def dealt(labels: np.ndarray, parts: int, slack: float) -> np.ndarray:
    """int64 [n]: the part 0..parts-1 of every node, given communities `labels` int64 [n].

    With equal shares of n / parts nodes, communities above (1 - slack) of one are chopped into pieces of that size, in
    the order of nodes. Then, largest first, each piece goes to the next part in turn that it fills to (1 + slack) of a
    share at most; where none has room, to the smallest. No part is empty if there are that many nodes.
    """
    share = len(labels) / parts
    piece, most = max(1, int(share * (1 - slack) + 1e-9)), int(share * (1 + slack) + 1e-9)
    whole = group(labels, labels.max(initial=0) + 1)
    pieces = [nodes[at : at + piece] for nodes in whole for at in range(0, len(nodes), piece)]
    part, size, turn = np.empty(len(labels), dtype=np.int64), np.zeros(parts, dtype=np.int64), 0
    for nodes in sorted(pieces, key=len, reverse=True):
        order = (turn + np.arange(parts)) % parts
        room = order[size[order] + len(nodes) <= most]
        chosen = int(room[0]) if len(room) else int(size.argmin())
        part[nodes] = chosen
        size[chosen] += len(nodes)
        turn = chosen + 1
    return part

"""How the parties of a vertical federation find the nodes that all of them have, without telling the server an id.

Each sends a keyed hash of each of its ids: HMAC-SHA256 (Krawczyk et al. 1997, RFC 2104) of the run's name and the id,
cut to 128 bits, sorted, so that neither ids nor their order show. The server returns the hashes that all sent; every
site sorts the ids behind them as text, and all number their nodes alike, as the dataset "parties" does.

The key is in every site's `ids.key` and not at the server, which therefore learns how many ids each party has and how
many any of them share, and nothing of what they are. Whoever has both the key and the hashes can try out ids: this
protects against the server, not against the server and a site together. Sites learn which of their ids all others have.
"""

import hmac
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedweave.core.federation import Declaration, Sends
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.deploy.flare.holdings import WIDTH
from fedweave.errors import FedweaveError, UserError

MEETING: Declaration = {
    "features": Sends("how many features the party has", within=WIDTH),
    "classes": Sends("how many classes the data has", within=WIDTH),
    "ids": "how many nodes the party has and how many it shares with the others: keyed hashes of ids, which the server "
    "cannot read without the sites' key",
}
TOLD = {
    "ids": "keyed hashes of the ids that all parties have",
    "width": "how many features the party has that has most",
}
_WORDS = 2  # int64 words of a hash


def hashes(ids: Sequence[str], key: bytes, run: str) -> Tensor:
    """int64 [n, 2], a hash for each of `ids`; other runs get others."""
    digests = (hmac.digest(key, f"{run}/{node}".encode(), "sha256")[: 8 * _WORDS] for node in ids)
    return torch.from_numpy(np.frombuffer(bytearray(b"".join(digests)), "<i8").reshape(-1, _WORDS).astype(np.int64))


def rows_of(common: Tensor, ids: Sequence[str], own: Tensor) -> np.ndarray:
    """int64 [m]: the rows of the ids whose hashes are `common`, `own` being the hashes of all, in the order of the ids
    as text.

    Raises:
        FedweaveError: the server named one that is not the site's own, or one twice.
    """
    place = {tuple(pair): row for row, pair in enumerate(own.tolist())}
    wanted = [place.get(tuple(pair)) for pair in common.tolist()]
    if None in wanted or not wanted or len(set(wanted)) < len(wanted):
        raise FedweaveError("the server names common nodes that this site does not have, or none, or one twice.")
    return np.array(sorted((row for row in wanted if row is not None), key=lambda row: ids[row]), np.int64)


def align(replies: Replies) -> Tree:
    """What the server tells the parties: the "width" of the widest features and, where their tables have ids, "ids",
    the hashes that all have.

    Raises:
        UserError: parties keep back what is needed, only some of them have ids, or no id is common. FedweaveError: what
            came are no hashes.
    """
    told = {site: replies[site] for site in replies.clients}
    if silent := [site for site, reply in told.items() if reply["features"] < 1]:
        raise UserError(f"{', '.join(silent)}: the policy keeps back `features`, without which no model can be built.")
    width: Tree = {"width": widest(replies)}
    given = {site: reply["ids"] for site, reply in told.items()}
    if odd := [site for site, own in given.items() if own.dtype != torch.int64 or own.shape[1:] != (_WORDS,)]:
        raise FedweaveError(
            f"{', '.join(odd)}: what came from there are no hashes; install the same fedweave everywhere."
        )
    if not any(map(len, given.values())):
        return width  # an .npz file has no ids; its nodes are in the common order
    if silent := [site for site, own in given.items() if not len(own)]:
        raise UserError(
            f"{', '.join(silent)}: no ids came from there, but from the other sites. Every site needs a folder of "
            "tables as its [data] path (an .npz file has no ids), and a policy that does not deny `ids`."
        )
    return width | {"ids": _common(given)}


def widest(replies: Replies) -> int:
    """How many features the party has that has most."""
    return max(int(replies[site]["features"]) for site in replies.clients)


def _common(given: Mapping[str, Tensor]) -> Tensor:
    """The hashes that all sent, int64 [m, 2]."""
    found, times = torch.cat([own.unique(dim=0) for own in given.values()]).unique(dim=0, return_counts=True)
    if not (times == len(given)).any():
        sizes = ", ".join(f"{site} has {len(own)}" for site, own in given.items())
        raise UserError(
            f"no id is common to all sites ({sizes}). The same ids must be written alike everywhere, and every site "
            "needs the same ids.key."
        )
    return found[times == len(given)]

"""How the parties of a vertical federation find the nodes that all of them have, without telling the server an id: the
protocol of `privacy.intersection` on trees and requests.

The sites send their ids blinded; the server hands every list around, turn by turn, so that each of the others blinds it
once; then it compares, and tells each site at which places of its own list the ids are that all have. Every site sorts
these ids as text, and all number their nodes alike, as the dataset "parties" does.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedweave.core.federation import Declaration, Sends, StepInfo
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.deploy.flare.site.joining import WIDTH
from fedweave.deploy.flare.sums.masking import data, tensor
from fedweave.errors import CallRefused, FedweaveError, UserError
from fedweave.privacy.intersection import WIDTH as POINT
from fedweave.privacy.intersection import Opening, common, digest

MEETING: Declaration = {
    "features": Sends("how many features the party has", within=WIDTH),
    "classes": Sends("how many classes the data has", within=WIDTH),
    "ids": "how many nodes the party has and how many it shares with others: blinded ids, of which the server cannot "
    "tell what they are",
    "signed": "the site's certificate and its signature on its list of blinded ids",
}
TOLD = {
    "width": "how many features the party has that has most",
    "common": "at which places of its list the ids are that all parties have",
    "openings": "how many ids each party has, signed",
    "ids": "another party's ids, blinded by others",
    "signature": "a signature on them",
    "motifs": "how long the longest list of motifs is that any site has, in blocks of 32",
}
BLINDING = StepInfo.of(
    {"ids": "another party's ids, blinded by this one too", "signature": "the site's signature on them"},
    ragged=True,
    hears=TOLD,
)
Ask: TypeAlias = Callable[[int, Mapping[str, Tree]], Replies]  # turn, {site: message}


def opening_tree(opening: Opening) -> Tree:
    """What a site sends of it besides the list, which says the rest."""
    return {key: tensor(getattr(opening, key)) for key in ("certificate", "nonce", "signature")}


def no_opening() -> Tree:
    """Of a site without ids."""
    return dict.fromkeys(("certificate", "nonce", "signature"), torch.empty(0, dtype=torch.uint8, device="cpu"))


def read_openings(told: Any) -> dict[str, Opening]:
    """What the server relays of all sites.

    Raises:
        CallRefused: it is not of this form.
    """
    try:
        return {
            site: Opening(
                data(own["certificate"]),
                data(own["nonce"]),
                int(own["size"]),
                data(own["digest"]),
                data(own["signature"]),
            )
            for site, own in told.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CallRefused("alignment: what is said of the lists is not of fedweave's form") from error


def meet(replies: Replies, ask: Ask) -> dict[str, Tree]:
    """{site: what the server tells it}: the "width" of the widest features and, where tables have ids, the places of
    the "common" ones in its list.

    ask: has every site blind the list that it is sent.

    Raises:
        UserError: parties keep back what is needed, only some of them have ids, or no id is common. FedweaveError: what
            came are no blinded ids.
    """
    told = {site: replies[site] for site in replies.clients}
    if silent := [site for site, reply in told.items() if reply["features"] < 1]:
        raise UserError(f"{', '.join(silent)}: the policy keeps back `features`, without which no model can be built.")
    width = widest(replies)
    lists = {site: points_of(site, reply["ids"]) for site, reply in told.items()}
    if not any(map(len, lists.values())):
        return {site: {"width": width} for site in told}  # an .npz file has no ids; its nodes are in the common order
    if silent := [site for site, own in lists.items() if not len(own)]:
        raise UserError(
            f"{', '.join(silent)}: no ids came from there, but from the other sites. Every site needs a folder of "
            "tables as its [data] path (an .npz file has no ids), and a policy that does not deny `ids`."
        )
    sizes = ", ".join(f"{site} has {len(own)}" for site, own in lists.items())
    found = common({site: own.numpy() for site, own in blinded(lists, told, ask).items()})
    if not all(map(len, found.values())):
        raise UserError(
            f"no id is common to all sites ({sizes}). The same ids must be written alike everywhere, and every site "
            "needs the same ids.key."
        )
    return {site: {"width": width, "common": torch.from_numpy(places)} for site, places in found.items()}


def widest(replies: Replies) -> int:
    """How many features the party has that has most."""
    return max(int(replies[site]["features"]) for site in replies.clients)


def blinded(lists: dict[str, Tensor], told: Mapping[str, Tree], ask: Ask) -> dict[str, Tensor]:
    """The lists, once every site has blinded every one; what each `told` of its own is "signed".

    Raises:
        FedweaveError: what came are no blinded ids.
    """
    sites = list(lists)
    openings = {
        site: told[site]["signed"] | {"size": len(own), "digest": tensor(digest(own.numpy()))}
        for site, own in lists.items()
    }
    signatures = {site: told[site]["signed"]["signature"] for site in sites}
    for turn in range(1, len(sites)):
        owner = {site: sites[at - turn] for at, site in enumerate(sites)}
        more = {"openings": openings} if turn == 1 else {}
        sent = {site: {"ids": lists[of], "signature": signatures[of]} | more for site, of in owner.items()}
        replies = ask(turn, sent)
        for site, of in owner.items():
            before, lists[of] = len(lists[of]), points_of(site, replies[site]["ids"])
            signatures[of] = replies[site]["signature"]
            if len(lists[of]) != before:
                raise FedweaveError(
                    f"{site}: it was to blind {before} ids, and sent {len(lists[of])}.", code="reply.blinded"
                )
    return lists


def points_of(site: str, ids: object) -> Tensor:
    """The list uint8 [n, 32] that a site sent.

    Raises:
        FedweaveError: it is of another form.
    """
    if not isinstance(ids, Tensor) or ids.dtype != torch.uint8 or ids.shape[1:] != (POINT,):
        raise FedweaveError(
            f"{site}: what came from there are no blinded ids; install the same fedweave everywhere.",
            code="reply.blinded",
        )
    return ids

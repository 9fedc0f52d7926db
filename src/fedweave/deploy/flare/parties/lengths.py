"""How sites come to lists of the same length, where an algorithm has every client hold one.

Each says how long its own is, in whole blocks (`core.sizes.agreed`), and the server tells all of them the longest.
Nothing of what a list holds is said, and no site learns of another's.
"""

from collections.abc import Mapping

from fedweave.core.federation import Sends
from fedweave.core.portions import Batch, as_row
from fedweave.core.ranges import Whole
from fedweave.core.replies import Replies
from fedweave.core.sizes import agreed, least_rows
from fedweave.core.tree import Tree, map_leaves
from fedweave.errors import CallRefused, UserError

SIZES = "sizes"
LENGTH = Whole(-1, 1 << 17)  # every site pads its list to that length. -1: kept back
TELLS = Sends("how long its lists are that all sites pad alike, such as of motifs, in blocks of 32", within=LENGTH)


def said(needed: Mapping[str, int]) -> Tree:
    """What a site says of the lists that it `needed`; nothing where there are none."""
    return {SIZES: agreed([needed])} if needed else {}


def longest(replies: Replies) -> Tree:
    """What the server tells the sites: for each list, the longest; {} where there is nothing to agree on.

    Raises:
        UserError: a site keeps back how long its own is.
    """
    told = {site: replies[site].get(SIZES, {}) for site in replies.clients}
    if silent := [site for site, own in told.items() if -1 in own.values()]:
        raise UserError(
            f"{', '.join(silent)}: the policy keeps back `{SIZES}`, without which the sites' lists cannot be of one "
            "length; allow it, or choose an algorithm that needs none."
        )
    return agreed(told.values())


def checked(told: Tree, needed: Mapping[str, int]) -> dict[str, int]:
    """The sizes that the server `told`, as a site takes them.

    Raises:
        CallRefused: they are not those of the site's lists, too short for them, or longer than any may be.
    """
    if told.keys() != needed.keys():
        raise CallRefused("the server tells the lengths of other lists than the site's algorithm has")
    for name, own in needed.items():
        size = told[name]
        if type(size) is not int or not own <= size <= LENGTH.most or size != least_rows(size):
            raise CallRefused(f"the server tells {size!r} as the length of {name}, which cannot be")
    return dict(told)


def without(replies: Replies, odd: Mapping[str, str]) -> Replies:
    """The replies without those of the `odd` sites, which are missing for these reasons."""
    here = [site for site in replies.clients if site not in odd]
    batches = [Batch((at,), map_leaves(as_row, replies[site])) for at, site in enumerate(here)]
    return Replies(here, batches, {**replies.missing, **odd})

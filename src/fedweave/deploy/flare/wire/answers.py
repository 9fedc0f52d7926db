"""What carries calls to sites, and what comes back."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from fedweave.core.tree import Tree, encode

# How refusals begin that the site's owner, or who started the job, can mend.
MISTAKEN, FORBIDDEN = "its data or settings were refused", "the policy of the site forbids it"


def mendable(refusals: Iterable[str]) -> bool:
    """Whether a site's owner, or who started the job, can mend one of the reasons why sites gave nothing."""
    return any(why.startswith((MISTAKEN, FORBIDDEN)) for why in refusals)


class Answer(NamedTuple):
    """What a site sent: the encoded reply and the seconds that it took there; or why there is none."""

    blob: bytes = b""
    seconds: float = 0.0
    refusal: str = ""
    final: bool = False  # the site takes no further part in this job
    note: str = ""  # of what passed between sites: a receipt (`peers.Receipt`), or peers that left nothing of use
    heads: str = ""  # the last entry of its accounts and, as it joins, those of others that it knows of (`chain`)


class Link(Protocol):
    """Carries calls to sites."""

    late: Counter[str]
    """Replies of each site that came after their call was over, and were dropped."""

    def unreachable(self) -> dict[str, str]:
        """{site: why} of the sites that no call can reach now."""
        ...

    def exchange(self, request: str, blobs: Mapping[str, bytes]) -> tuple[dict[str, Answer], dict[str, str]]:
        """Send `request` and a blob to each site; the answers in time, and {site: why} of those without one."""
        ...


def encoded(sent: Mapping[str, Tree]) -> dict[str, bytes]:
    """{site: the bytes of its message}; a message that several get is the same bytes object for all of them."""
    blobs = {id(tree): encode(tree) for tree in {id(tree): tree for tree in sent.values()}.values()}
    return {site: blobs[id(tree)] for site, tree in sent.items()}

"""The form of a server's requests to a site, the fingerprint of the configuration that both agreed on, and answers."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias

import torch
from pydantic import Field, TypeAdapter, ValidationError

import fedweave
from fedweave.core.plugins import digests
from fedweave.core.tree import Tree, encode
from fedweave.core.types import RESERVED_CLIENTS, Record
from fedweave.errors import CallRefused
from fedweave.experiment.config import Document, flat
from fedweave.experiment.runs.resuming import may_change
from fedweave.ops.identity import once
from fedweave.sites.flare.sitefile import HEAD, Releases

# Prefixes of refusals that the site's owner, or the user who started the job, can correct.
MISTAKEN, FORBIDDEN = "its data or settings were refused", "the policy of the site forbids it"


def mendable(refusals: Iterable[str]) -> bool:
    """Whether a site's owner, or the user who started the job, can correct one of the reasons for missing sites."""
    return any(why.startswith((MISTAKEN, FORBIDDEN)) for why in refusals)


class Answer(NamedTuple):
    """A site's answer: the encoded reply and the seconds that it took at the site, or a reason why there is none."""

    blob: bytes = b""
    seconds: float = 0.0
    refusal: str = ""
    final: bool = False  # the site takes no further part in this job
    note: str = ""  # on messages between sites: a receipt (`peers.Receipt`), or peers without a usable message
    heads: str = ""  # the last entry of its accounts and, when it joins, the last entries of others (`chain`)


class Link(Protocol):
    """Carries calls to sites."""

    late: Counter[str]
    """Replies of each site that came after their call was over, and were dropped."""

    def unreachable(self) -> dict[str, str]:
        """{site: why} for the sites that no call can reach now."""

    def exchange(self, request: str, blobs: Mapping[str, bytes]) -> tuple[dict[str, Answer], dict[str, str]]:
        """Send `request` and a blob to each site; returns the answers in time, and {site: why} for all other sites."""


def encode_messages(sent: Mapping[str, Tree]) -> dict[str, bytes]:
    """{site: the bytes of its message}. If several sites get the same message, they share one bytes object."""
    return once(encode, sent)


# The number of the protocol between a server and its sites. A release has the number of an earlier one only if
# requests, answers, settings with their defaults, and what every step does and sends are the same.
PROTOCOL = 2

ADMIN, SERVER, AUTHORITY = "admin", "server", "authority"
RESERVED = RESERVED_CLIENTS | {
    ADMIN,
    SERVER,
    AUTHORITY,
}  # provisioning makes folders for the last three
SITE = r"[a-z0-9][a-z0-9-]{0,62}"  # the form of a site's name, which also names folders, files and certificates

_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Epoch = Annotated[int, Field(ge=0, lt=2**53)]
_Mark = Annotated[int, Field(ge=-1, lt=2**31)]  # a round, -1 before the first
_Name = Annotated[str, Field(pattern=r"^[\w.-]{1,200}$")]
_Site = Annotated[str, Field(pattern=f"^{SITE}$")]
_Head = Annotated[str, Field(pattern=HEAD)]
_Run = Annotated[str, Field(pattern=r"^[A-Za-z0-9]{1,64}$")]  # it names a folder


@dataclass(frozen=True)
class Version:
    """The version of a site's data."""

    version: _Count


@dataclass(frozen=True)
class Join:
    """Take part in a run of these sites, from the state after `round`; with `predict`, to predict with its models.

    data: the versions of the sites' data at that round. heads: the last entries of sites' accounts that the server
    knows (`chain.Head`). protocol: the server's `PROTOCOL`; 0 from servers that had none.
    """

    kind: Literal["join"]
    run: _Run
    document: Record
    round: _Mark
    sites: list[_Site]
    versions: dict[str, str]
    predict: bool = False
    data: dict[_Name, Version] = field(default_factory=dict)
    heads: dict[_Name, _Head] = field(default_factory=dict)
    protocol: _Count = 0


@dataclass(frozen=True)
class Blind:
    """Blind the ids of the party that is `turn` places before this one (`protocols.intersection`)."""

    kind: Literal["blind"]
    pin: str
    round: _Mark
    turn: _Count
    predict: bool = False


@dataclass(frozen=True)
class Settle:
    """Keep the nodes that all parties have ("align"), pad lists to the common lengths ("pad"), take the numbers of the
    nodes at edges between sites ("match"), or the sums that others sent for these nodes ("take",
    `exchange.Exchange`)."""

    kind: Literal["align", "pad", "match", "take"]
    pin: str
    round: _Mark
    predict: bool = False


@dataclass(frozen=True)
class Received:
    """The earlier call whose parcels a step gets from its peers."""

    step: _Name
    again: _Count
    sources: dict[_Name, list[_Name]]
    clients: list[_Name]


@dataclass(frozen=True)
class Sum:
    """The sites whose replies are added up, and their keys (`protocols.aggregation`)."""

    epoch: _Epoch
    slot: _Count
    peers: list[_Name]


@dataclass(frozen=True)
class Agree:
    """Advertise keys of a new epoch for secure aggregation of a step's replies, or deal shares to the sites that have
    done so."""

    kind: Literal["advertise", "share"]
    pin: str
    round: _Count
    step: _Name
    epoch: _Epoch


@dataclass(frozen=True)
class Open:
    """Sign the list of sites in a secure aggregation, or reveal the shares that open it. survivors: the `peers` that
    sent a term."""

    kind: Literal["survivors", "reveal"]
    pin: str
    round: _Count
    epoch: _Epoch
    slot: _Count
    peers: list[_Name]
    survivors: list[_Name]


@dataclass(frozen=True)
class StepRequest:
    """Run a step in a round, after `again` earlier runs of it there. saved: the round of the server's last checkpoint.
    to: {site: the peers to which it sends}. sum: the secure aggregation of the replies, if the step declares one."""

    kind: Literal["step", "send", "replace"]
    pin: str
    step: _Name
    round: _Count
    again: _Count
    saved: _Mark
    to: dict[_Name, list[_Name]] = field(default_factory=dict)
    received: Received | None = None
    sum: Sum | None = None


@dataclass(frozen=True)
class Add:
    """Send a term of a secure aggregation before the first step: an exchange over edges, or the table of entities."""

    kind: Literal["exchange"]
    pin: str
    step: _Name
    round: _Mark
    again: _Count
    sum: Sum
    predict: bool = False


@dataclass(frozen=True)
class Measure:
    """Measure, after the last round, what the site reaches alone: with the tools on its shelf, or with the run's model.

    metric, positive: the run's selection metric, and the number of the positive class, -1 for none.
    """

    kind: Literal["shelf", "alone"]
    pin: str
    round: _Count
    metric: _Name
    positive: _Mark


Request: TypeAlias = Join | Blind | Settle | Add | StepRequest | Agree | Open | Measure
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])


def read_request(text: str) -> Request:
    """A server's request, with every field checked. Unknown fields are ignored."""
    try:
        return _REQUEST.validate_json(text, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"][1:])) or "kind"
        raise CallRefused(f"the request is not of fedweave's form: {where}: {problem['msg']}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise CallRefused(f"the request is not of fedweave's form ({type(error).__name__})") from error


def describe_request(request: Request) -> str:
    """A request as text, for the owner."""
    if isinstance(request, Open):
        return f"{request.kind} of a secure sum, slot {request.slot} of epoch {request.epoch}"
    if isinstance(request, Agree):
        return f"{request.kind} for secure sums of {request.step}, epoch {request.epoch}"
    if not isinstance(request, StepRequest):
        return request.kind
    return f"{request.kind} {request.step}, occurrence {request.again + 1} in round {request.round}"


@cache
def release() -> str:
    """The version of fedweave that runs here, and the digest of its files."""
    return f"{version('fedweave')}, files {digest_of(Path(fedweave.__file__).parent)}"


def digest_of(package: Path) -> str:
    """A digest of a package's modules. Other files depend on the way of installation and are left out."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()):
        name, content = path.relative_to(package).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(json.dumps([name, content]).encode())
    return digest.hexdigest()[:16]


def versions(document: Document) -> dict[str, str]:
    """The versions that must be the same at a server and its sites: the `release` of fedweave, the version of torch,
    and the digests of the plug-in files that a configuration names."""
    releases = {"fedweave": release(), "torch": torch.__version__.partition("+")[0]}
    return releases | digests(document)


_MAX_RELEASE = 200  # characters


def check_versions(request: Join, document: Document, releases: Releases) -> dict[str, str]:
    """Refuse a server with other versions, or with other files of the plug-ins that a `document` names. Returns the
    server's `versions`, which the run is pinned to.

    releases: the site's policy. With "same-protocol" the server's files of fedweave may be others if its protocol has
    the same number.
    """
    here, theirs = versions(document), request.versions
    short = len(theirs.get("fedweave", "")) <= _MAX_RELEASE  # the site's journal keeps it
    patched = releases == "same-protocol" and request.protocol == PROTOCOL and short
    differing = [name for name in here if theirs.get(name) != here[name] and not (patched and name == "fedweave")]
    if differing:
        name, same = differing[0], "file" if differing[0].endswith(".py") else "versions"
        remedy = f"Install the same {same} at the server and at all sites."
        if name == "fedweave" and releases == "same-protocol":
            remedy = f"Their protocols have the numbers {PROTOCOL} and {request.protocol}. {remedy}"
        elif name == "fedweave" and request.protocol == PROTOCOL:
            remedy = f'{remedy[:-1]}, or have the site\'s owner allow it: policy.releases = "same-protocol".'
        raise CallRefused(
            f"the site has {name} {here[name][:40]}, the server {theirs.get(name, 'none')[:40]}. {remedy}",
            code="release.other",
        )
    return {name: theirs.get(name, "") for name in here}


def pin(document: Document, sites: list[str], releases: dict[str, str] | None = None) -> str:
    """A fingerprint of a run's sites, of the present versions and plug-ins or of the `releases`, and of all settings
    that must not change during the run (`experiment.runs.resuming.may_change`)."""
    settings = {key: value for key, value in flat(document).items() if not may_change(key)}
    text = json.dumps([settings, sites, versions(document) if releases is None else releases], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

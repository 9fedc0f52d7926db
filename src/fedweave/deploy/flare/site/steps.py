"""How a site answers what is asked after it has joined: before the first step it finds common nodes with others, agrees
on lengths, and tells and hears of nodes at the ends of edges; then it runs steps, with what it finds of other sites,
its own privacy noise, and releases that are as before."""

import dataclasses
import hashlib
import logging
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedweave.core.arrays import DTYPES
from fedweave.core.federation import Client, Declaration, Lasting, Step, StepInfo, step_info
from fedweave.core.mechanism import Mechanism, release_of
from fedweave.core.tree import Tree, encode, to
from fedweave.datasets.base import Dataset
from fedweave.deploy.flare.parties.alignment import BLINDING, PartyData, read_openings
from fedweave.deploy.flare.parties.exchange import INFO as SHARING
from fedweave.deploy.flare.parties.exchange import Exchange
from fedweave.deploy.flare.policy.policy import check_aligned, check_lists, check_summed, least_told
from fedweave.deploy.flare.server.federation import ALIGN, BLIND
from fedweave.deploy.flare.site.holdings import Holdings, LabelVersion
from fedweave.deploy.flare.site.joining import JOINING, describe, withheld
from fedweave.deploy.flare.site.participation import Participation
from fedweave.deploy.flare.site.sitefile import read_secret
from fedweave.deploy.flare.sums.masking import data, tensor
from fedweave.deploy.flare.wire.requests import Add, Blind, Call, Settle, described
from fedweave.engines.calls import check_permanent
from fedweave.engines.steps import Watched, find_step
from fedweave.errors import CallRefused, FedweaveError, StepFailed, raised_at
from fedweave.experiment.graphs import graph_of
from fedweave.ops import secret
from fedweave.partition.external import SUMS


def client_on(device: torch.device, job: Participation, state: Tree, key: Tensor, secret_file: Path) -> Client:
    """What a step sees, on the device where the site's steps run; all else of a job stays on the host."""
    drawn, test = lasting(secret_file, job.labels), job.found.test if isinstance(job.found, Holdings) else None
    if drawn is not None:
        drawn = drawn._replace(key=drawn.key.to(device), places=drawn.places.to(device))
    given = to(state, device), key.to(device), noise_key(secret_file).to(device)
    return Client(job.graph_on(device), *given, None if test is None else test.to(device), lasting=drawn)


def carry_out(name: str, step: Step, client: Client, message: Tree) -> Tree:
    """What a step replies.

    Raises:
        StepFailed: it could do nothing with the data and the message. CallRefused: it wrote into the data.
    """
    watched = Watched(client.graph, client.test)
    try:
        reply = step(client, message)
    except FedweaveError:
        raise
    except Exception as error:
        raise StepFailed(f"step {name} failed{raised_at(error)}: {type(error).__name__}: {error}") from error
    watched.refuse_changes(name, "this site", CallRefused)  # which the server hears: it tells nothing of the data
    return reply


def read_received(job: Participation, asked: Call, site: str, log: logging.Logger) -> tuple[Tree, dict[str, str]]:
    """What the step that is `asked` for finds of its peers at `site`, and {peer: "missing" or "refused"} of those who
    left nothing of use."""
    of = asked.received
    if of is None:
        return {}, {}
    info, call = step_info(find_step(job.algorithm, of.step)), (asked.round, of.again)
    message, faults, refused = job.inbox.open(of.step, info, call, of.sources[site], of.clients)
    for peer, why in refused.items():
        log.error("what %s sent is of no use: %s", peer, why)
    return message, faults


def with_fingerprints(step: str, info: StepInfo, reply: Tree, state: Tree) -> StepInfo:
    """`info` with every release id followed by a fingerprint of the entry of `state` that it names.

    What a site draws again, because it went back to an earlier state or in another run, is so another release.

    Raises:
        FedweaveError: the state has no such entry.
    """
    check_permanent(step, info, reply, state)
    permanent = {key: own for key, own in info.sends.items() if any(map(release_of, own.mechanisms))}

    def marked(mechanism: Mechanism) -> Mechanism:
        name = release_of(mechanism)
        if not name or name not in state:
            return mechanism
        mark = hashlib.blake2b(encode({name: state[name]}), digest_size=16).hexdigest()
        return dataclasses.replace(mechanism, release=f"{name}:{mark}")  # type: ignore[arg-type]

    found = {
        key: dataclasses.replace(own, mechanism=tuple(map(marked, own.mechanisms))) for key, own in permanent.items()
    }
    return dataclasses.replace(info, sends={**info.sends, **found})


def noise_key(path: Path) -> Tensor:
    """A secret key for privacy noise (`ops.secret`) from the site's own secret and fresh entropy: nobody else can
    compute it, not even from noise that left, and no two calls share it.

    Raises:
        ConfigError: there is no secret, or others can read it.
    """
    key = read_secret(path)
    return secret.from_bytes(hashlib.blake2b(os.urandom(32), key=key, digest_size=64).digest())


def lasting(path: Path, version: LabelVersion | None) -> Lasting | None:
    """What noise on labels is drawn from, in every run the same: from the site's own secret, and of the labels as they
    are; None where nothing says which these are.

    Raises:
        ConfigError: as `noise_key`.
    """
    if version is None:
        return None
    key = hashlib.blake2b(b"labels" + version.fingerprint, key=read_secret(path), digest_size=64).digest()
    return Lasting(secret.from_bytes(key), torch.from_numpy(version.places), version.held)


def answered(
    job: Participation, asked: Blind | Settle, told: Tree, log: logging.Logger
) -> tuple[str, Tree, Declaration]:
    """What the call is named, what the site says, and what that reveals.

    Raises:
        CallRefused: it is not the time for that, or what the site is `told` cannot be. PolicyViolation: the policy does
            not allow it.
    """
    check_begun(job, asked)
    if isinstance(asked, Blind):
        return BLIND, _blinded(job, asked.turn, told), BLINDING.sends
    if asked.kind == "align":
        return ALIGN, _aligned(job, told, log), JOINING
    if asked.kind == "pad":
        job.pad(told)
    elif asked.kind == "match":
        _exchange(job).match(told)
    else:
        _take(job, _exchange(job).take(told, len(job.asked.sites)))
    return f"({asked.kind})", {}, {}


def added(job: Participation, asked: Add, told: Tree) -> Tree:
    """What the site tells of the nodes that its edges lead to, not masked yet.

    Raises:
        CallRefused, PolicyViolation: see `answered`.
    """
    check_begun(job, asked)
    check_summed(job.rules, SUMS, SHARING, len(job.asked.sites))
    return _exchange(job).add(told, len(job.asked.sites))


def check_begun(job: Participation, asked: Add | Blind | Settle) -> None:
    """Raise CallRefused unless the call is of the job that the site has joined."""
    if (asked.round, asked.predict) != job.begun:
        raise CallRefused(f"{described(asked)} is asked for once, right after a site has joined, for that job alone")


def _exchange(job: Participation) -> Exchange:
    """Its part in the exchange that is under way, which its policy may have narrowed since it began: sums of as many
    nodes as that and the experiment ask for."""
    if job.exchange is None:
        raise CallRefused("exchange: sites tell each other of nodes once, right after they have joined")
    job.exchange.least = max(job.config.external_least, least_told(job.rules))
    return job.exchange


def _take(job: Participation, made: Dataset) -> None:
    """Go on with the data to which others have told what they know of its nodes."""
    found, dtype = job.found, DTYPES[job.config.engine.values["dtype"]]
    if not isinstance(found, Holdings):
        raise CallRefused("exchange: a party of a vertical federation has no edges to others' nodes")
    job.exchange = None
    job.take_up(replace(found, graph=graph_of(made, made.features, dtype), data=made, whole=None))


def _blinded(job: Participation, turn: int, told: Tree) -> Tree:
    """A turn with another site's ids (`privacy.intersection`); how long all lists are is in the journal, and the policy
    may bound it."""
    held = job.found if isinstance(job.found, PartyData) else job.exchange
    meeting = None if held is None else held.meeting
    if meeting is None or "ids" in job.rules.deny:
        raise CallRefused("alignment: only a site that sends ids blinds others'")
    if turn == 1:
        meeting.hear(read_openings(told.get("openings")))
        check_lists(job.rules, {site: count for site, count in meeting.counts.items() if site != meeting.name})
        with job.accounts.open(job.ledger):
            job.ledger.note("lists", counts=meeting.counts)
    points = told.get("ids")
    if not isinstance(points, Tensor) or points.dtype != torch.uint8:
        raise CallRefused("alignment: what is to be blinded is no list of ids")
    blinded, signature = meeting.blind(turn, points.numpy(), data(told.get("signature")))
    return {"ids": torch.from_numpy(blinded), "signature": tensor(signature)}


def _aligned(job: Participation, told: Tree, log: logging.Logger) -> Tree:
    """Keep of a party's nodes those that all parties have."""
    found = job.found
    if not isinstance(found, PartyData):
        raise CallRefused("a party of a vertical federation aligns its nodes once, right after it has joined")
    if found.meeting is not None:
        check_aligned(job.rules, len(told["common"]))
    holdings = found.align(told, DTYPES[job.config.engine.values["dtype"]])
    if found.data.ids:
        with job.accounts.open(job.ledger):
            job.ledger.note("aligned", common=holdings.data.nodes, own=found.data.nodes)
        log.info("%s", found.kept(holdings.data))
    job.check_marks(found.marks(holdings.data))
    job.begin(holdings, told["width"])
    return describe(holdings, withheld(job.rules))

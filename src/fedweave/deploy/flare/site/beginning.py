"""What a site does between joining a job and its first step: find common nodes with others, agree on lengths, and tell
and hear of nodes at the ends of edges."""

import logging
from dataclasses import replace

import torch
from torch import Tensor

from fedweave.core.arrays import DTYPES
from fedweave.core.federation import Declaration
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.deploy.flare.parties.alignment import BLINDING, read_openings
from fedweave.deploy.flare.parties.exchange import INFO as SHARING
from fedweave.deploy.flare.parties.exchange import Exchange
from fedweave.deploy.flare.parties.party import PartyData
from fedweave.deploy.flare.policy.policy import check_aligned, check_lists, check_summed, least_told
from fedweave.deploy.flare.server.federation import ALIGN, BLIND, PAD
from fedweave.deploy.flare.site.holdings import Holdings
from fedweave.deploy.flare.site.joining import JOINING, describe, withheld
from fedweave.deploy.flare.site.participation import Participation
from fedweave.deploy.flare.sums.masking import data, tensor
from fedweave.deploy.flare.wire.requests import Add, Align, Blind, Meet, Pad, described
from fedweave.errors import CallRefused
from fedweave.experiment.graphs import graph_of
from fedweave.partition.external import SUMS


def answered(
    job: Participation, asked: Align | Blind | Meet | Pad, told: Tree, log: logging.Logger
) -> tuple[str, Tree, Declaration]:
    """What the call is named, what the site says, and what that reveals.

    Raises:
        CallRefused: it is not the time for that, or what the site is `told` cannot be. PolicyViolation: the policy does
            not allow it.
    """
    check_begun(job, asked)
    if isinstance(asked, Blind):
        return BLIND, _blinded(job, asked.turn, told), BLINDING.sends
    if isinstance(asked, Align):
        return ALIGN, _aligned(job, told, log), JOINING
    if isinstance(asked, Pad):
        job.pad(told)
        return PAD, {}, {}
    exchange = _exchange(job)
    if asked.kind == "match":
        exchange.match(told)
    else:
        _take(job, exchange.take(told, len(job.asked.sites)))
    return f"({asked.kind})", {}, {}


def added(job: Participation, asked: Add, told: Tree) -> Tree:
    """What the site tells of the nodes that its edges lead to, not masked yet.

    Raises:
        CallRefused, PolicyViolation: see `answered`.
    """
    check_begun(job, asked)
    check_summed(job.rules, SUMS, SHARING, len(job.asked.sites))
    return _exchange(job).add(told, len(job.asked.sites))


def check_begun(job: Participation, asked: Add | Align | Blind | Meet | Pad) -> None:
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

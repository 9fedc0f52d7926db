"""How a site answers requests between joining a run and its first step.

The sites find common nodes, agree on lengths of lists, number entities, and exchange features over edges between sites.
"""

import logging
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedweave.core.federation import Declaration
from fedweave.core.tree import Tree
from fedweave.errors import CallRefused
from fedweave.experiment.graphs import graph_of
from fedweave.partition.preparation import with_scaled_nodes
from fedweave.sites.flare.alignment import BLINDING, PartyData, read_openings
from fedweave.sites.flare.entities import NUMBERED, UNITE
from fedweave.sites.flare.exchange import Exchange
from fedweave.sites.flare.federation import ALIGN, BLIND
from fedweave.sites.flare.folder import fields
from fedweave.sites.flare.foresight import check_fields
from fedweave.sites.flare.holdings import Holdings
from fedweave.sites.flare.joining import JOINING, describe, private_fields, site_lengths, withhold
from fedweave.sites.flare.masking import data, tensor
from fedweave.sites.flare.participation import EARLY_SUMS, Participation
from fedweave.sites.flare.policy import check_aligned, check_lists, min_exchange_nodes
from fedweave.sites.flare.predicted import note_form
from fedweave.sites.flare.requests import Add, Blind, Settle, describe_request
from fedweave.sites.flare.site_data import form_at


def prepare(
    job: Participation, request: Blind | Settle, message: Tree, log: logging.Logger
) -> tuple[str, Tree, Declaration]:
    """The name of the call, the site's reply, and the reply's declaration."""
    check_begun(job, request)
    if isinstance(request, Blind):
        return BLIND, _blind(job, request.turn, message), BLINDING.sends
    if request.kind == "align":
        reply = _align(job, message, log) if job.entities is None else _number_entities(job, message, log)
        return ALIGN, reply, JOINING
    if request.kind == "pad":
        job.pad(message)
    elif request.kind == "match":
        _exchange(job).match(message)
    else:  # take the columns that other sites sent for the site's nodes into its data
        holdings, exchange = job.holdings, _exchange(job)
        if not isinstance(holdings, Holdings):
            raise CallRefused("exchange: a party of a vertical federation has no edges to others' nodes")
        raw = replace(holdings.data, x=exchange.take(message, len(job.request.sites)))
        note_form(job.request, job.folder, form_at(exchange.site, raw))
        dataset = with_scaled_nodes(raw, exchange.scaling)
        job.exchange = None
        graph = graph_of(dataset, dataset.features, job.dtype)
        tables = None if holdings.tables is None else replace(holdings.tables, x=raw.x)
        job.take_up(replace(holdings, graph=graph, data=dataset, whole=None, tables=tables))
    return f"({request.kind})", {}, {}


def sum_term(job: Participation, request: Add, message: Tree) -> Tree:
    """The site's term of an exchange over edges or of the table of entities, not masked yet."""
    check_begun(job, request)
    check_fields(job.rules, EARLY_SUMS[request.step], len(job.request.sites))
    if request.step == UNITE:
        if job.entities is None:
            raise CallRefused("entities: sites number them once, right after they have joined")
        return job.entities.table(message)
    return _exchange(job).add(message, len(job.request.sites))


def check_begun(job: Participation, request: Add | Blind | Settle) -> None:
    """Raise CallRefused unless the request is for the job that the site has joined."""
    if (request.round, request.predict) != (job.request.round, job.request.predict):
        what = describe_request(request)
        raise CallRefused(f"{what} is allowed once, right after a site has joined, and only for that job")


def _exchange(job: Participation) -> Exchange:
    """The site's part in the present exchange. Its minimum number of nodes in a sum is the larger one of the experiment
    and the policy, which the owner may have tightened since the exchange began."""
    if job.exchange is None:
        raise CallRefused("exchange: sites exchange features over edges once, right after they have joined")
    job.exchange.min_nodes = max(job.config.min_external, min_exchange_nodes(job.rules))
    return job.exchange


def _blind(job: Participation, turn: int, message: Tree) -> Tree:
    """Blind another site's ids (`protocols.intersection`). The journal notes the lengths of all lists, and the policy
    may bound them."""
    owner = job.holdings if isinstance(job.holdings, PartyData) else job.exchange
    meeting = None if owner is None else owner.meeting
    if meeting is None or "ids" in job.rules.deny:
        raise CallRefused("alignment: only a site that sends ids blinds others'")
    if turn == 1:
        meeting.receive_openings(read_openings(message.get("openings")))
        check_lists(job.rules, {site: count for site, count in meeting.counts.items() if site != meeting.name})
        with job.accounts.open(job.ledger):
            job.ledger.note("lists", counts=meeting.counts)
    points = message.get("ids")
    if not isinstance(points, Tensor) or points.dtype != torch.uint8:
        raise CallRefused("alignment: the server sends no list of ids to blind")
    blinded, signature = meeting.blind(turn, points.numpy(), data(message.get("signature")))
    return {"ids": torch.from_numpy(blinded), "signature": tensor(signature)}


def _align(job: Participation, message: Tree, log: logging.Logger) -> Tree:
    """Restrict a party's data to the nodes that all parties have."""
    party = job.holdings
    if not isinstance(party, PartyData):
        raise CallRefused("a party of a vertical federation aligns its nodes once, right after it has joined")
    if party.meeting is not None:
        check_aligned(job.rules, len(message["common"]))
    holdings = party.align(message, job.dtype)
    if party.data.ids:
        with job.accounts.open(job.ledger):
            job.ledger.note("aligned", common=holdings.data.nodes, own=party.data.nodes)
        more = fields("aligned", run=job.run, common=holdings.data.nodes)
        log.info("%s", party.overlap(holdings.data), extra=more)
    job.check_marks(party.marks(holdings.data), partial(party.exclusion, holdings.data, job.folder, job.accounts))
    job.begin(holdings, message["width"])
    return describe(holdings, private_fields(job.rules))


def _number_entities(job: Participation, message: Tree, log: logging.Logger) -> Tree:
    """Take the common numbers of the entities (`entities.Entities`) into the site's data."""
    holdings = job.holdings
    if job.entities is None or not isinstance(holdings, Holdings):
        raise CallRefused("entities: sites number them once, right after they have joined")
    data = job.entities.assign_numbers(message, job.run_folder / NUMBERED, log)
    job.entities = None
    holdings = replace(holdings, graph=graph_of(data, data.features, job.dtype), data=data)
    job.begin(holdings, data.features)
    denied = private_fields(job.rules)
    return describe(holdings, denied) | withhold(site_lengths(job.list_lengths), denied)

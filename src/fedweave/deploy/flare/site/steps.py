"""How a site runs a step: what it finds of other sites, its own privacy noise, and which releases are as before."""

import dataclasses
import hashlib
import logging
import os
from pathlib import Path

import torch
from torch import Tensor

from fedweave.core.federation import Client, Lasting, Step, StepInfo, step_info
from fedweave.core.mechanism import Mechanism, release_of
from fedweave.core.tree import Tree, encode, to
from fedweave.deploy.flare.site.holdings import Holdings, LabelVersion
from fedweave.deploy.flare.site.participation import Participation
from fedweave.deploy.flare.site.sitefile import read_secret
from fedweave.deploy.flare.wire.requests import Call
from fedweave.engines.calls import check_permanent
from fedweave.engines.steps import Watched, find_step
from fedweave.errors import CallRefused, FedweaveError, StepFailed, raised_at
from fedweave.ops import secret


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

"""What a step at a site gets, and how its declaration is completed: client, messages of peers, secrets for noise."""

import dataclasses
import hashlib
import logging
import os
from pathlib import Path

import torch
from torch import Tensor

from fedweave.core.federation import Client, LabelNoise, StepInfo, step_info
from fedweave.core.mechanism import LDP, Gaussian, Mechanism, release_of
from fedweave.core.tree import Tree, encode, to
from fedweave.engines.calls import check_permanent
from fedweave.engines.steps import find_step
from fedweave.ops import hashing
from fedweave.sites.flare.data_marks import site_key
from fedweave.sites.flare.folder import fields
from fedweave.sites.flare.holdings import Holdings, LabelVersion
from fedweave.sites.flare.participation import Participation
from fedweave.sites.flare.requests import StepRequest
from fedweave.sites.flare.sitefile import read_secret


def client_on(job: Participation, state: Tree, key: Tensor, secret_file: Path) -> Client:
    """The client that a step sees, on the device where the site's steps run. The rest of a job stays on the host."""
    test = job.holdings.test if isinstance(job.holdings, Holdings) else None
    if test is not None:
        test = test.to(job.device)
    secrets = label_secrets(job.folder, job.labels)
    if secrets is not None:
        secrets = LabelNoise(*(one.to(job.device) for one in secrets))
    noise = noise_key(secret_file).to(job.device)
    return Client(job.graph_on_device, to(state, job.device), key.to(job.device), noise, test, label_noise=secrets)


def noise_key(path: Path) -> Tensor:
    """A secret key for privacy noise (`ops.hashing`), from the site's own secret and fresh entropy. Others cannot
    compute it, not even from noise that left the site, and every call has another key."""
    key = read_secret(path)
    return hashing.from_bytes(hashlib.blake2b(os.urandom(32), key=key, digest_size=64).digest())


def label_secrets(folder: Path, version: LabelVersion | None) -> LabelNoise | None:
    """The secrets for noise on labels, which are the same in every run of the site in `folder`. None if the labels have
    no `version`."""
    if version is None:
        return None
    secret = site_key(folder)

    def derive(purpose: bytes) -> Tensor:
        return hashing.from_bytes(hashlib.blake2b(purpose, key=secret, digest_size=64).digest())

    marks = torch.from_numpy(version.marks.copy())  # [m]
    return LabelNoise(derive(b"draws of labels"), derive(b"labels" + version.fingerprint), marks)


def read_received(
    job: Participation, request: StepRequest, site: str, log: logging.Logger
) -> tuple[Tree, dict[str, str]]:
    """The message from peers at `site` for the requested step, and {peer: "missing" or "refused"} for the peers without
    a usable parcel."""
    received = request.received
    if received is None:
        return {}, {}
    info, call = step_info(find_step(job.algorithm, received.step)), (request.round, received.again)
    message, faults, refused = job.inbox.open(received.step, info, call, received.sources[site], received.clients)
    for peer, why in refused.items():
        log.error("the parcel of %s is not usable: %s", peer, why, extra=fields("parcel-refused", peer=peer))
    return message, faults


def with_fingerprints(step: str, info: StepInfo, reply: Tree, state: Tree) -> StepInfo:
    """`info`, where every release id has a fingerprint of the entry of `state` that it names.

    So a new draw, after the site went back to an earlier state or in another run, counts as another release.
    """
    check_permanent(step, info, reply, state)
    sends = dict(info.sends)
    for key, spec in info.sends.items():
        mechanisms = list[Mechanism]()
        for one in spec.mechanisms:
            name = release_of(one)
            if name and name in state:
                mark = hashlib.blake2b(encode({name: state[name]}), digest_size=16).hexdigest()
                one = dataclasses.replace(one, release=f"{name}:{mark}")  # type: ignore[arg-type]
            mechanisms.append(one)
        if mechanisms != list(spec.mechanisms):
            sends[key] = dataclasses.replace(spec, mechanism=tuple(mechanisms))
    return dataclasses.replace(info, sends=sends)


def is_noised(info: StepInfo) -> bool:
    """Whether each reply of a step has noise of its own, and so costs ε."""
    if info.replaces_data:
        return False
    for spec in info.sends.values():
        if any(isinstance(one, Gaussian | LDP) and not release_of(one) for one in spec.mechanisms):
            return True
    return False

"""The functions that a site publishes: one for the server, which takes and returns bytes, and one that takes parcels of
other sites."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.collab import collab

from fedweave.core.types import Record
from fedweave.sites.flare.accounts import CallLog
from fedweave.sites.flare.folder import LOG, log_to
from fedweave.sites.flare.gatekeeper import obey
from fedweave.sites.flare.link import steady
from fedweave.sites.flare.member import Member
from fedweave.sites.flare.requests import Answer
from fedweave.sites.protocols.identity import STARTUP


class Site:
    """The client's side of a job; NVFlare makes one in each site's job process."""

    def __init__(self) -> None:
        self._member: Member | None = None
        self._lock, self._at_work, self._answered = threading.Lock(), 0, 0
        self._answer: Record = {}

    @collab.init
    def begin(self) -> None:
        """Find the site's folder. The site reads its data only when the server asks it to join."""
        os.umask(0o077)  # only the owner can read the site's files
        steady()
        folder = Path(collab.workspace.get_root_dir())
        log_to(folder / LOG)
        obey(folder / STARTUP)
        job = collab.fl_ctx.get_prop(FLContextKey.JOB_META) or {}  # as the server writes it
        submitter = str(job.get(JobMetaKey.SUBMITTER_NAME, ""))
        CallLog(collab.site_name, submitter).log_start()
        self._member = Member(folder, collab.site_name, _post, submitter)

    @collab.final
    def end(self) -> None:
        """End the site's part in the job."""
        if self._member is not None:
            self._member.end()

    @collab.publish
    def ping(self) -> int:
        """The number of the present call, 0 if there is none. Only the server gets it, also while a step runs."""
        return self._at_work if collab.caller == "server" else 0

    @collab.publish
    def call(self, request: str, blob: bytes, number: int) -> Record:
        """Answer a call of the server (`member.Member.answer`). If it has the `number` of the last call, return that
        answer again without any work, because an answer can be lost on the way."""
        if collab.caller != "server" or self._member is None:
            return Answer(refusal="only the server may call, once the job runs")._asdict()
        with self._lock:
            if number > self._answered:
                self._at_work = number
                try:
                    self._answer = self._member.answer(request, blob)._asdict()
                finally:
                    self._answered, self._at_work = number, 0
            if number == self._answered:
                return self._answer
            return Answer(refusal="that call was answered long ago", final=False)._asdict()

    @collab.publish
    def deliver(self, label: str, blob: bytes) -> str:
        """Take a parcel of another site (`member.Member.accept`); returns "", or why the site rejects it."""
        if collab.caller == "server" or self._member is None:
            return "only sites may deliver, once the job runs"
        return self._member.accept(collab.caller, label, blob)


def _post(peers: Sequence[str], label: str, blob: bytes, seconds: float) -> dict[str, str]:
    """See `peers.Post`. NVFlare routes it over the server's host; `secure` encrypts it for the receiving site's key."""
    known = {proxy.name for proxy in collab.clients}
    lost = {peer: "it is not connected" for peer in peers if peer not in known}
    here = [peer for peer in peers if peer in known]
    if here:
        deliveries = collab.get_clients(here)(secure=True, optional=True, timeout=seconds).deliver(label, blob)
        lost |= {peer: f"it was not reached ({error.cause})" for peer, error in deliveries.failures.items()}
        lost |= {name.split(".")[0]: why for name, why in deliveries if why}
    return lost

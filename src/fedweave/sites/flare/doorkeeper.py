"""A site's long-lived process: NVFlare's client, restricted to the requests that jobs need.

NVFlare's original client also shows and deletes files of its folder, stops itself and describes its machine when any
member of the federation sends it a message. It checks the sender's rights only if the message asks for that check. No
job needs these requests, so this client has none of them. If a job's process dies, only this site leaves the job.
"""

import sys
import uuid
from typing import Any

from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic, new_cell_message
from nvflare.private.fed.app.client import client_train
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor

from fedweave.core.types import Record
from fedweave.sites.flare import gatekeeper

SERVER = "server"  # the only one that may ask
OF_A_JOB = frozenset(
    {
        TrainingTopic.DEPLOY,
        TrainingTopic.START_JOB,
        TrainingTopic.ABORT,
        TrainingTopic.ABORT_TASK,
        TrainingTopic.NOTIFY_JOB_STATUS,
    }
)
NEEDED = OF_A_JOB | {
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.CHECK_STATUS,
    TrainingTopic.GET_SCOPES,
}


class Doorkeeper(FedAdminAgent):
    """Lets through what the server asks for on behalf of a job."""

    def register_processor(self, processor: RequestProcessor) -> None:
        """Register processors of the requests that jobs need, and ignore all others."""
        if NEEDED.issuperset(processor.get_topics()):
            super().register_processor(processor)

    def _dispatch_request(self, request: Any) -> object:
        if request.get_header(MessageHeaderKey.ORIGIN) != SERVER:
            return new_cell_message({}, error_reply("only the server may ask a site"))
        job = request.payload.get_header(RequestHeader.JOB_ID, "")
        if job or request.payload.topic in OF_A_JOB:
            # NVFlare keeps a job in a folder with the job's id, next to the site's own folder, and empties that first.
            try:
                is_id = isinstance(job, str) and str(uuid.UUID(job)) == job
            except ValueError:
                is_id = False
            if not is_id:
                return new_cell_message({}, error_reply("a job's id is none that NVFlare gives"))
        return super()._dispatch_request(request)


def main() -> int:
    """Run a site until it is stopped. It takes the arguments of NVFlare's client."""
    client_train.FedAdminAgent = Doorkeeper
    return gatekeeper.main(client_train)


class _Handle(ProcessHandle):
    def poll(self) -> int:
        """The return code of the process: success, or unknown."""
        code: int = super().poll()
        return code if code == JobReturnCode.SUCCESS else JobReturnCode.UNKNOWN


class SiteLauncher(ClientProcessJobLauncher):
    """NVFlare's launcher of processes, without its report of a killed one: on such a report the server would end the
    job for all sites, whereas a round continues if its quorum holds."""

    def launch_job(self, job_meta: Record, fl_ctx: object) -> ProcessHandle:
        """Start the job's process."""
        return _Handle(process_adapter=super().launch_job(job_meta, fl_ctx).adapter)


if __name__ == "__main__":
    sys.exit(main())

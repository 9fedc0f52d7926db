"""How a site's job process is started, such that its death is this site's alone."""

from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle

from fedweave.core.records import Record


class SiteLauncher(ClientProcessJobLauncher):
    """NVFlare's launcher of processes, without its report of a killed one: on such a report the server would end the
    job for all sites, whereas a round goes on if its quorum holds."""

    def launch_job(self, job_meta: Record, fl_ctx: object) -> ProcessHandle:
        """Start the job's process."""
        return _Handle(process_adapter=super().launch_job(job_meta, fl_ctx).adapter)


class _Handle(ProcessHandle):
    def poll(self) -> int:
        """How the process ended; unknown unless well."""
        code: int = super().poll()
        return code if code == JobReturnCode.SUCCESS else JobReturnCode.UNKNOWN

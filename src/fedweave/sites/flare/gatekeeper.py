"""The server's long-lived process, and what the site's processes share with it. It is NVFlare's process with three
additions. First, it rejects certificates that the project's authority has revoked: in the TLS handshake, when a member
proves its name, and before it encrypts anything for a certificate. NVFlare itself does not support revocation. Second,
it serves metrics if its owner asks for that. Third, a server that starts takes up the jobs that its end has
interrupted; NVFlare would list them as running for ever.
"""

import logging
import ssl
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from nvflare.apis.fl_constant import SystemComponents
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.fuel.f3.cellnet import cell_cipher
from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.private.fed.app.server import server_train
from nvflare.private.fed.app.utils import version_check
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.private.fed.utils.identity_utils import IdentityVerifier

from fedweave.core.types import Record
from fedweave.errors import CallRefused, FedweaveError
from fedweave.sites.flare.folder import LOG, fields, log_to
from fedweave.sites.flare.machine import metrics_port
from fedweave.sites.protocols.identity import REFUSED, REVOKED, STARTUP, read_root

# NVFlare's own functions, which those that replace them call.
_SSL_CONTEXT, _VERIFY_CHAIN, _VERIFY_NAME, _RUN = (
    net_utils.get_ssl_context,
    cell_cipher.verify_cert_chain,
    IdentityVerifier.verify_common_name,
    JobRunner.run,
)


def load_revoked(context: ssl.SSLContext, kit: Path) -> ssl.SSLContext:
    """Make a TLS context reject the certificates on the revocation list in a kit's folder, if there is a list."""
    path = kit / REVOKED
    if path.exists():
        context.load_verify_locations(path)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def obey(kit: Path) -> None:
    """Make this process use the revocation list in a kit's folder. Connections use the list that is there when the
    process begins to accept them; all other checks use the present list."""

    def ssl_context(params: Record, ssl_server: bool) -> ssl.SSLContext | None:
        context = _SSL_CONTEXT(params, ssl_server)
        return None if context is None else load_revoked(context, Path(params[DriverParams.CA_CERT.value]).parent)

    def verify_chain(leaf_cert: Any, *more: object, **named: object) -> object:
        _refuse_revoked(leaf_cert, kit)
        return _VERIFY_CHAIN(leaf_cert, *more, **named)

    def verify_name(self: IdentityVerifier, *more: object, asserter_cert: Any, **named: object) -> object:
        _refuse_revoked(asserter_cert, kit)
        return _VERIFY_NAME(self, *more, asserter_cert=asserter_cert, **named)

    net_utils.get_ssl_context, cell_cipher.verify_cert_chain = ssl_context, verify_chain
    IdentityVerifier.verify_common_name = verify_name


def _refuse_revoked(certificate: Any, kit: Path) -> None:
    if certificate.serial_number in read_root(kit).revoked:
        raise CallRefused(f"the certificate of {certificate.subject.rfc4514_string()} was revoked", code=REFUSED)


JOB = "fedweave-"  # before a run's number in the name of a job
# Of a job's description, all that says who asked for what. NVFlare's own state of the job is left out.
_COPIED = (
    "name", "resource_spec", "min_clients", "deploy_map", "study", "submitter_name", "submitter_org", "submitter_role",
    "job_folder_name", "data_storage_format",
)  # fmt: skip


def restart_jobs(manager: Any, fl_ctx: Any, folder: Path) -> None:
    """Mark the jobs that the last end of the server in `folder` has interrupted, and submit a copy of each whose run is
    to continue, unless an earlier start has done so. The copy waits until the sites of the interrupted job are
    connected. A run continues after its last saved round, within `engine.wait` of its last message."""
    log = logging.getLogger("fedweave.server")
    copied = {job.meta.get(JobMetaKey.CLONED_FROM.value) for job in manager.get_all_jobs(fl_ctx)}
    for job in manager.get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx):
        run = str(job.meta.get(JobMetaKey.JOB_NAME.value, "")).removeprefix(JOB)
        config, journal = folder / "runs" / run / "config.toml", folder / "ledgers" / f"{run}.jsonl"
        reason = ""  # why it does not continue on its own
        try:
            wait = float(tomllib.loads(config.read_text())["engine"].get("wait", 0.0))
            away = time.time() - journal.stat().st_mtime
            if away > wait:
                reason = f"the server was away for {away:.0f} s, and engine.wait is {wait:g}"
            if (config.parent / "summary.json").exists():
                reason = "its training is done"
        except (OSError, ValueError, KeyError):
            reason = "it had not begun"
        if reason:
            more = fields("job-interrupted", run=run, reason=reason)
            log.info("run %s: its job is over, because the server was stopped; %s", run, reason, extra=more)
        elif job.job_id not in copied:
            sites = list[str]()
            for line in job.meta.get(JobMetaKey.JOB_DEPLOY_DETAIL.value) or ():
                name, _, what = str(line).rpartition(": ")
                if what == "OK" and name != "server":
                    sites.append(name)
            meta = {key: job.meta[key] for key in _COPIED if key in job.meta}
            meta |= {JobMetaKey.MANDATORY_CLIENTS.value: sites, JobMetaKey.CLONED_FROM.value: job.job_id}
            manager.clone(job.job_id, meta, fl_ctx)
            log.info("run %s: goes on after the server was stopped", run, extra=fields("job-taken-up", run=run))
        manager.set_status(job.job_id, RunStatus.FINISHED_ABNORMAL, fl_ctx)


def expose(folder: Path) -> None:
    """Serve `gauges.Gauges` if the member's file names a port. If the port is not available, the process runs without
    metrics."""
    log_to(folder / LOG)
    try:
        port = metrics_port(folder)
        if port:
            from fedweave.sites.operation.gauges import serve  # with PyTorch, which the process needs for nothing else

            serve(folder, port)
    except (FedweaveError, OSError) as error:
        log = logging.getLogger("fedweave.gauges")
        log.error("no metrics (metrics_port): %s", error, extra=fields("no-metrics", reason=str(error)))


def main(train: ModuleType = server_train) -> int:
    """Run the server, or a site with NVFlare's `client_train`, until it is stopped. It takes the arguments of NVFlare's
    module."""
    version_check()
    args = train.parse_arguments()
    folder = Path(args.workspace)
    obey(folder / STARTUP)

    def run(self: JobRunner, fl_ctx: Any) -> None:
        try:  # before it starts other jobs
            restart_jobs(fl_ctx.get_engine().get_component(SystemComponents.JOB_MANAGER), fl_ctx, folder)
        except Exception:  # the server has to serve other jobs
            log = logging.getLogger("fedweave.server")
            log.exception("jobs from before were not taken up", extra=fields("jobs-not-taken-up"))
        _RUN(self, fl_ctx)

    JobRunner.run = run
    expose(folder)
    return int(train.mpm.run(main_func=train.main, run_dir=args.workspace, args=args) or 0)


if __name__ == "__main__":
    sys.exit(main())

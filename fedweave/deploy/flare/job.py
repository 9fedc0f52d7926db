"""A job for NVFlare: configuration alone, for code never travels."""

from collections.abc import Sequence
from pathlib import Path

from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.job_config.api import FedJob

from fedweave.config import Document, dumps
from fedweave.deploy.flare.server import Server
from fedweave.deploy.flare.site import Site

SYNC_SECONDS = 120  # for all sites' processes to start


def write_job(folder: Path, run: str, sites: Sequence[str], document: Document, predict: str = "") -> Path:
    """Write a job's folder below `folder`; it names classes of the installed packages and holds no code."""
    job = FedJob(name=f"fedweave-{run}", min_clients=1)
    job.job.set_app_packages(["fedweave", "nvflare"])
    server = job.to_server(Server(run, sites, dumps(document), predict), "_server")
    job.to_server(CollabController(server_obj_id=server, sync_task_timeout=SYNC_SECONDS), id="controller")
    site = job.to_clients(Site(), id="_client")
    job.to_clients(CollabExecutor(client_obj_id=site), id="executor", tasks=["*"])
    job.export_job(str(folder))
    result: Path = folder / job.name
    return result

"""The server's long-lived process, and what a site's (`site.doorkeeper`) has in common with it: NVFlare's own, which
takes no certificate that the authority has revoked, and tells what monitors it if its owner asks for that."""

import logging
import sys
from pathlib import Path
from types import ModuleType

from nvflare.private.fed.app.server import server_train
from nvflare.private.fed.app.utils import version_check

from fedweave.deploy.flare.site.about import LOG, metrics_port
from fedweave.deploy.flare.site.private import log_to
from fedweave.deploy.flare.wire.revoked import obey
from fedweave.errors import FedweaveError
from fedweave.privacy.aggregation import STARTUP


def main(train: ModuleType = server_train) -> int:
    """Run the server, or a site by NVFlare's `client_train`, until it is stopped; the arguments are those of NVFlare's
    module."""
    version_check()
    args = train.parse_arguments()
    obey(Path(args.workspace) / STARTUP)
    expose(Path(args.workspace))
    return int(train.mpm.run(main_func=train.main, run_dir=args.workspace, args=args) or 0)


def expose(folder: Path) -> None:
    """Serve `gauges.Gauges` where the member's file names a port; a port that cannot be had costs no more than
    these."""
    log_to(folder / LOG)
    try:
        if port := metrics_port(folder):
            from fedweave.deploy.sites.gauges import serve  # with PyTorch, which the process needs for nothing else

            serve(folder, port)
    except (FedweaveError, OSError) as error:
        logging.getLogger("fedweave.gauges").error("no metrics (metrics_port): %s", error)


if __name__ == "__main__":
    sys.exit(main())

"""The server's long-lived process: NVFlare's, which takes no certificate that the authority has revoked, and
tells what monitors it."""

import sys
from pathlib import Path

from nvflare.private.fed.app.server import server_train
from nvflare.private.fed.app.utils import version_check

from fedweave.deploy.flare.wire.revoked import obey
from fedweave.deploy.sites.gauges import expose
from fedweave.privacy.aggregation import STARTUP


def main() -> int:
    """Run the server until it is stopped; the arguments are those of NVFlare's."""
    version_check()
    args = server_train.parse_arguments()
    obey(Path(args.workspace) / STARTUP)
    expose(Path(args.workspace))
    return int(server_train.mpm.run(main_func=server_train.main, run_dir=args.workspace, args=args) or 0)


if __name__ == "__main__":
    sys.exit(main())

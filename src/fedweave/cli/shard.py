"""The command `fedweave shard`: data and cut of an experiment, written once for many runs and for the workers of a
cluster."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.options import Experiment, Settings, Trust, check_consent


def shard(
    config: Experiment,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="A new folder.")],
    settings: Settings = None,
    trust: Trust = False,
) -> None:
    """Load and cut the data of an experiment once, and write each client's part to a folder of its own.

    With data.name = "shards", data.path = DIR and no partition, a run has the numbers of a run from CONFIG.toml. It
    neither reads tables nor cuts again, and on a cluster workers open the parts of their own clients.

    Example: fedweave shard mine.toml -o mine-shards
    """
    from fedweave.accounts.document import print_line
    from fedweave.core.text import counted
    from fedweave.experiment.config import read
    from fedweave.experiment.config.toml import inline
    from fedweave.experiment.sharding import write_shards
    from fedweave.reports.terminal import screen

    check_consent(config, trust)
    experiment, notes = read(config, settings or ())
    manifest = write_shards(experiment, out)
    console = screen()
    for note in notes:
        print_line(console, f"note: {note}")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print_line(
        console,
        f"{out}: {counted(len(manifest['clients']), 'client')}, {counted(manifest['data']['nodes'], 'node')}, "
        f"{counted(manifest['data']['edges'], 'edge')}, {size / 1e6:,.1f} MB",
    )
    print_line(console, f'run it with [data] name = "shards", path = {inline(str(out.absolute()))}, and no [partition]')

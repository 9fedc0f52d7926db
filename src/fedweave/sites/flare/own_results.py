"""What a site has measured for its owner: the joint model's result on its own test examples, and what it reaches alone
(`baselines`). Nothing here needs torch, so that `fedweave sites status` answers quickly.
"""

import json
from pathlib import Path

from fedweave.accounts.verdict import Verdict
from fedweave.core.types import Record
from fedweave.errors import listed
from fedweave.metrics.selection import ALONE, SHELF
from fedweave.sites.flare.folder import RUNS

BASELINES = "alone.json"  # in the run's folder at a site


def read_baselines(run_folder: Path) -> Record:
    """What a site has measured in a run; {} for nothing."""
    path = run_folder / BASELINES
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError):  # another program has written it
        return {}
    return record if isinstance(record, dict) else {}


def verdict_at_site(run_folder: Path) -> Verdict | None:
    """Whether joining pays for the site with this folder of a run; None if it did not measure what it reaches alone."""
    record = read_baselines(run_folder)
    metric = str(record.get("metric"))
    joint = record.get("joint", {})
    value = joint.get("values", {}).get(metric)
    alone = dict[str, float]()
    for how in (SHELF, ALONE):
        of_how = record.get(how, {}).get("values", {}).get(metric)
        if of_how is not None:
            alone[how] = of_how
    if value is None or not alone:
        return None
    tool = record.get(SHELF, {}).get("tool")
    tools = {tool: 1} if tool else {}
    round = None if joint["round"] == record.get("round") else joint["round"]
    return Verdict(metric, value, alone, tools, round=round, of="at this site")


def own_results(run_folder: Path) -> tuple[str, ...]:
    """Lines for the owner on what joining brings the site with this folder of a run; () if it measured nothing."""
    verdict, record = verdict_at_site(run_folder), read_baselines(run_folder)
    if verdict is None:
        return ()
    sent = [kind for kind, metrics in record.get("sent", {}).items() if metrics]
    words = {SHELF: "the shelf", ALONE: "this model alone"}
    left = f"the server has metrics of {listed([words[kind] for kind in sent])}" if sent else "nothing of this has left"
    drawn = record.get(SHELF, {}).get("drawn")
    smaller = (f"the shelf is smaller than it could be, to save time: {drawn}",) if drawn else ()
    return (verdict.sentence, *smaller, f"what the site reaches alone is in {run_folder / BASELINES}; {left}")


def last_verdict(site: Path) -> Verdict | None:
    """`verdict_at_site` of the last run that has one at the site in this folder; None if none has."""
    runs = sorted((site / RUNS).glob(f"*/{BASELINES}"), key=lambda path: path.stat().st_mtime)
    verdicts = (verdict_at_site(path.parent) for path in reversed(runs))
    return next((verdict for verdict in verdicts if verdict is not None), None)

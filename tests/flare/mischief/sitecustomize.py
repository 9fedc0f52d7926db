"""Makes a site's process misbehave as the file `mischief` in its folder says: {"step/round": what}.

Python imports this at start where the folder is on PYTHONPATH. A `what` is done once, then taken out of the file.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

TARGET = "fedweave.engines.flare.member"


def _spoiled(answer, what):
    import torch

    from fedweave.core.tree import decode, encode, map_leaves

    change = {
        "nan": lambda leaf: leaf * float("nan"),
        "shape": lambda leaf: leaf[None],
        "huge": lambda leaf: torch.zeros(5_000_000),
    }
    if what == "garbage":
        return answer._replace(blob=b"\x80\x04garbage" * 100)
    if what == "form":
        return answer._replace(blob="not bytes")
    return answer._replace(blob=encode(map_leaves(change[what], decode(answer.blob))))


def _patch(module):
    honest = module.Member.answer

    def answer(self, request, blob):
        asked, path = json.loads(request), self._folder / "mischief"
        plan = json.loads(path.read_text()) if path.exists() else {}
        what = plan.pop(f"{asked.get('step')}/{asked['round']}", None)
        if what is None:
            return honest(self, request, blob)
        path.write_text(json.dumps(plan))
        if what == "die":
            os.kill(os.getpid(), 9)
        if what.startswith("hang"):
            time.sleep(float(what.split()[1]))
            return honest(self, request, blob)
        return _spoiled(honest(self, request, blob), what)

    module.Member.answer = answer


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _patch(module)

        spec.loader.exec_module = exec_module
        return spec


if (Path.cwd() / "startup").is_dir() or "worker_process" in " ".join(sys.orig_argv):
    sys.meta_path.insert(0, _Finder())

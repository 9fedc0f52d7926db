"""Makes a site's process misbehave as the file `mischief` in its folder says: {"step/round": what}.

Python imports this at start where the folder is on PYTHONPATH. A `what` is done once, then taken out of the file, but
for "die always". Where there is a folder `tap`, a site keeps there what it sends ("sent" to peers, "replied" to the
server), and the server's processes what reaches them as it is when TLS is off ("heard", and who sent it to whom in
"headers"). A file `ask` makes the server or a site send messages of its own.
"""

import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path

SITE, MEMBER, CELL = ("fedweave.sites.flare.site", "fedweave.sites.flare.member", "nvflare.fuel.f3.cellnet.core_cell")


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


def _tap(folder, name, content):
    if (folder / "tap").is_dir():
        with open(folder / "tap" / name, "ab") as file:
            file.write(bytes(content))


def _patch_member(module):
    honest, made = module.Member.answer, module.Member.__init__

    def begin(self, folder, name, post, *more):
        def posted(peers, label, blob, seconds):
            _tap(folder, "sent", blob)
            return post(peers, label, blob, seconds)

        made(self, folder, name, posted, *more)

    def answer(self, request, blob):
        asked, path = json.loads(request), self._folder / "mischief"
        plan = json.loads(path.read_text()) if path.exists() else {}
        what = plan.pop(f"{asked.get('step')}/{asked['round']}", None)
        if what is None:
            told = honest(self, request, blob)
            _tap(self._folder, "replied", told.blob)
            return told
        if what == "die always":
            os.kill(os.getpid(), 9)
        path.write_text(json.dumps(plan))
        if what == "die":
            os.kill(os.getpid(), 9)
        if what.startswith("hang"):
            time.sleep(float(what.split()[1]))
            return honest(self, request, blob)
        if what == "lose":
            (self._folder / "lose").touch()
            return honest(self, request, blob)
        return _spoiled(honest(self, request, blob), what)

    module.Member.answer, module.Member.__init__ = answer, begin


def _patch_site(module):
    """An answer is on its way for longer than anybody waits, once."""
    honest = module.Site.call

    @functools.wraps(honest)
    def call(self, request, blob, number):
        answer, lose = honest(self, request, blob, number), self._member._folder / "lose"
        if lose.exists():
            lose.unlink()
            time.sleep(60)
        return answer

    module.Site.call = call


def _patch_cell(module):
    honest, folder = module.CoreCell.process_message, Path.cwd()

    def process_message(self, endpoint, connection, app_id, message):
        keys = module.MessageHeaderKey
        about = [message.get_header(key) for key in (keys.ORIGIN, keys.DESTINATION, keys.ENCRYPTED)]
        if folder.name == "server":
            _tap(folder, "headers", (json.dumps([self.my_info.fqcn, *about]) + "\n").encode())
            _tap(folder, "heard", message.payload or b"")
        return honest(self, endpoint, connection, app_id, message)

    module.CoreCell.process_message = process_message
    if (folder / "startup").is_dir():
        _ask_for_others(module.CoreCell, folder)


def _ask_for_others(cell, folder):
    """A long-lived process sends whatever message its file `ask` describes, and keeps in `asked` what came back."""
    made = cell.__init__

    def begin(self, *args, **options):
        made(self, *args, **options)
        threading.Thread(target=watch, args=(self,), daemon=True).start()

    def watch(self):
        while True:
            time.sleep(0.05)
            if (folder / "ask").exists():
                asked = json.loads((folder / "ask").read_text())
                (folder / "ask").unlink()
                (folder / "asked.tmp").write_text(json.dumps([_sent(self, *one) for one in asked]))
                (folder / "asked.tmp").rename(folder / "asked")

    cell.__init__ = begin


def _sent(cell, target, topic, headers, body):
    from nvflare.private.admin_defs import Message
    from nvflare.private.defs import CellChannel, new_cell_message

    message = Message(topic=topic, body=body)
    message.headers.update(headers)
    reply = cell.send_request(CellChannel.CLIENT_MAIN, topic, target, new_cell_message({}, message), timeout=10.0)
    return str(getattr(reply.payload, "body", reply.payload))


PATCHES = {SITE: _patch_site, MEMBER: _patch_member, CELL: _patch_cell}


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self):
        self.waiting = dict(PATCHES)

    def find_spec(self, name, path, target=None):
        if name not in self.waiting:
            return None
        patch = self.waiting.pop(name)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


if (Path.cwd() / "startup").is_dir() or "worker_process" in " ".join(sys.orig_argv):
    sys.meta_path.insert(0, _Finder())

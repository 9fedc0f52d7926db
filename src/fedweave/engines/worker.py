"""An executor behind bytes: what stands in another process, on another device or another machine."""

import json
from collections.abc import Callable, Mapping

import torch

from fedweave.core.federation import step_info
from fedweave.core.portions import Batch, Joint, Portion, as_row
from fedweave.core.tree import Tree, map_leaves, nest
from fedweave.engines.executor import Executor
from fedweave.engines.steps import find_step
from fedweave.engines.wire import call, pack, read_request, unpack


class Worker:
    """Owns an executor and an algorithm of its own, whose steps it is told by name. Replies stay here until somebody
    asks for them, or for sums of them.

    executor: of its share of the clients. algorithm: rebuilt from the run's configuration.
    """

    def __init__(self, executor: Executor, algorithm: object) -> None:
        self._executor, self._algorithm = executor, algorithm
        self._kept: dict[int, Portion] = {}
        self._number = 0
        self._methods: Mapping[str, Callable[..., Tree]] = {
            "run": self._run,
            "one": lambda asked: self._of(asked).one(asked["row"]),
            "stack": lambda asked: {"leaf": self._of(asked).stack(asked["path"])},
            "weighted": lambda asked: nest(self._of(asked).weighted(json.loads(asked["paths"]), asked["weights"])()),
            "total": lambda asked: nest(self._of(asked).total(json.loads(asked["paths"]))()),
            "snapshot": lambda asked: self._executor.snapshot(),
            "snapshot_data": lambda asked: self._executor.snapshot_data(),
            "restore": self._restore,
            "save": self._save,
        }

    def answer(self, method: str, *blobs: bytes) -> bytes:
        """Carry out one of its methods on packed trees."""
        return pack(self._methods[method](*map(unpack, blobs)))

    def _run(self, asked: Tree, shared: Tree) -> Tree:
        self._drop(asked)
        step = find_step(self._algorithm, asked["step"])
        clients, messages = read_request(asked, shared)
        ran = list(self._executor.run(call(asked, messages, step, step_info(step)), clients))
        replies = Joint([own.replies for own in ran])
        number, self._number = self._number, self._number + 1
        self._kept[number] = replies
        dtypes = {path: str(replies.dtype(path)).removeprefix("torch.") for path in replies.paths}
        groups = [(group.at, group.form, group.seconds) for own in ran for group in own.groups]
        return {
            "number": number,
            "at": torch.tensor(replies.at, device="cpu"),
            "dtypes": json.dumps(dtypes),
            "groups": json.dumps(groups),
        }

    def _of(self, asked: Tree) -> Portion:
        return self._kept[asked["number"]]

    def _drop(self, asked: Tree) -> None:
        """Let go of replies that nobody will ask for any more."""
        for number in json.loads(asked.get("done", "[]")):
            self._kept.pop(number, None)

    def _save(self, asked: Tree) -> Tree:
        """All that a worker in its place has to `_restore` before the request `asked`; the number is that of the next
        replies."""
        self._drop(asked)
        kept = {
            str(number): {str(at): {"at": at, "reply": replies.one(row)} for row, at in enumerate(replies.at)}
            for number, replies in self._kept.items()
        }
        states, data = self._executor.snapshot(), self._executor.snapshot_data()
        return {"states": states, "data": data, "number": self._number, "kept": kept}

    def _restore(self, asked: Tree) -> Tree:
        self._executor.restore(asked.get("states", {}), asked.get("data", {}))
        self._number = asked.get("number", self._number)
        for number, replies in asked.get("kept", {}).items():
            rows = [Batch((own["at"],), map_leaves(as_row, own.get("reply", {}))) for own in replies.values()]
            self._kept[int(number)] = Joint(rows)
        return {}

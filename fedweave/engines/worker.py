"""An executor behind bytes: what stands in another process, on another device or another machine."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedweave.core.federation import step_info
from fedweave.core.portions import Joint, Portion
from fedweave.core.tree import Tree, nest
from fedweave.engines.executor import Executor
from fedweave.engines.steps import find_step
from fedweave.engines.wire import call, pack, read_request, unpack


class Worker:
    """Owns an executor and an algorithm of its own, whose steps it is told by name. Replies stay here until somebody
    asks for them, or for sums of them.

    executor: of its share of the clients. algorithm: rebuilt from the run's configuration.
    """

    def __init__(self, executor: Executor, algorithm: Any) -> None:
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
        }

    def answer(self, method: str, *blobs: bytes) -> bytes:
        """Carry out one of its methods on packed trees."""
        return pack(self._methods[method](*map(unpack, blobs)))

    def _run(self, asked: Tree, shared: Tree) -> Tree:
        for number in json.loads(asked.get("done", "[]")):
            self._kept.pop(number, None)
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
            "at": torch.tensor(replies.at),
            "dtypes": json.dumps(dtypes),
            "groups": json.dumps(groups),
        }

    def _of(self, asked: Tree) -> Portion:
        return self._kept[asked["number"]]

    def _restore(self, asked: Tree) -> Tree:
        self._executor.restore(asked.get("states", {}), asked.get("data", {}))
        return {}

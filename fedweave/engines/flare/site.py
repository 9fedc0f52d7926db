"""What a site publishes to the server: one function, which takes and gives bytes."""

from pathlib import Path
from typing import Any

from nvflare.collab import collab

from fedweave.engines.flare.federation import Answer
from fedweave.engines.flare.logs import log_to
from fedweave.engines.flare.member import LOG, Member


class Site:
    """The client's side of a job; NVFlare makes one in each site's job process."""

    def __init__(self) -> None:
        self._member: Member | None = None

    @collab.init
    def begin(self) -> None:
        """Find the site's folder; its data is read when the server asks to join."""
        folder = Path(collab.workspace.get_root_dir())
        log_to(folder / LOG)
        self._member = Member(folder, collab.site_name)

    @collab.publish
    def ping(self) -> bool:
        """Whether the process lives, also while a step runs."""
        return True

    @collab.publish
    def call(self, request: str, blob: bytes) -> dict[str, Any]:
        """Answer one call of the server (`member.Member.answer`)."""
        if collab.caller != "server" or self._member is None:
            return Answer(refusal="only the server may call, once the job runs")._asdict()
        return self._member.answer(request, blob)._asdict()

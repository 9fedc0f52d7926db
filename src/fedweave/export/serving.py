"""A scorer that answers requests on one machine: rows in, scores out, the numbers of `fedweave score`."""

import asyncio
import hmac
import ipaddress
import json
import socket
import stat
import tempfile
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from fedweave.core.types import Record
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.runs.files import write_table
from fedweave.experiment.runs.scorer import FORMAT, Scorer

TABLES = ("nodes", "edges", "graphs")
CONSTANT = ("model", "run", "scored_at")  # columns that are the same in every row
OPEN = "/health"  # what a probe may ask without a token
LEAST_TOKEN = 16  # characters
PATIENCE = 30.0  # seconds for the body of a request
AT_ONCE = 32  # connections
SHARED_MEMORY = Path("/dev/shm")  # where a system has it; what is there is on no disk

Scope: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[[Scope, Any, Any], Awaitable[None]]


class Refused(UserError):
    """A request that is not answered with scores; `status` is that of HTTP."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status


def check_installed() -> None:
    """Refuse where the extra `serve` is not installed.

    Raises:
        UserError: names the packages and the command.
    """
    if absent := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise UserError(
            f"fedweave serve needs {' and '.join(absent)}, which this Python has not: install the extra `serve`, in a "
            'clone by pip install -c constraints.txt ".[serve]".',
            code="score.extra",
        )


def read_token(path: Path) -> str:
    """The token in a file that its owner alone can read.

    Raises:
        UserError: there is none, others can read it, or it is short.
    """
    if not path.is_file():
        raise UserError(f"--token-file {path}: there is no such file. Write a token into it.", code="score.token")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UserError(
            f"--token-file {path}: others can read it. Make it yours alone: chmod 600 {path}", code="score.token"
        )
    token = path.read_text(errors="replace").strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"--token-file {path}: a token has {LEAST_TOKEN} or more letters, digits or signs of ASCII, and no space. "
            "`openssl rand -hex 32` prints a good one.",
            code="score.token",
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, token: str | None) -> None:
    """Refuse to listen beyond loopback without a token.

    Raises:
        UserError: names the option.
    """
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host}: other machines could ask for scores. Give --token-file FILE, or leave --host out.",
            code="score.token",
        )


def names_of(host: str) -> tuple[str, ...]:
    """The names by which requests may call a server on `host`; () for any: a web page from elsewhere that has its own
    name lead to loopback (DNS rebinding) asks with that name."""
    return (host, "127.0.0.1", "localhost", "::1") if is_loopback(host) else ()


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens.

    Raises:
        UserError: the address or the port cannot be had.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"port {port} of {host} cannot be listened on ({reason}). Choose another --port, or 0 for a free one.",
            code="score.port",
        ) from error
    with listener:
        yield listener


def server(app: App) -> Any:
    """The uvicorn server of `app`, which logs neither requests nor rows."""
    import uvicorn

    settings = uvicorn.Config(
        app, access_log=False, log_level="warning", server_header=False, limit_concurrency=AT_ONCE, timeout_keep_alive=5
    )
    return uvicorn.Server(settings)


def run(app: App, listener: socket.socket) -> None:
    """Answer requests until the process is told to stop."""
    server(app).run(sockets=[listener])


def application(scorer: Scorer, token: str | None = None, most: int = 16_000_000, names: Collection[str] = ()) -> App:
    """The ASGI application.

    token: that requests must carry as `Authorization: Bearer`; None asks for none. most: bytes of a body. names: by
    which requests may call the server; () for any.

    Raises:
        UserError: see `Scorer.net`.
    """
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

    about, busy = scorer.facts(), threading.Lock()
    scorer.net  # noqa: B018  before the first request

    def fault(status: int, message: str, code: str) -> Any:
        return JSONResponse({"error": message, "code": code}, status)

    async def score(request: Request) -> Any:
        try:
            body = await asyncio.wait_for(_body(request, most), PATIENCE)
        except TimeoutError:
            return fault(408, f"the body took longer than {PATIENCE:g} s. Send fewer rows at once.", "score.slow")
        except Refused as error:
            return fault(error.status, str(error), error.code)
        return await asyncio.to_thread(answered, body)

    def answered(body: bytes) -> Any:
        try:
            with busy:  # one at a time: each takes the memory of its rows
                return JSONResponse(answer(scorer, body))
        except Refused as error:
            return fault(error.status, str(error), error.code)
        except FedweaveError as error:
            return fault(422 if isinstance(error, UserError) else 500, str(error), error.code)
        except Exception as error:
            return fault(500, f"scoring failed ({type(error).__name__}).", "failed")

    async def unknown(request: Request, error: Exception) -> Any:
        message = (
            f"{request.method} {request.url.path} is not answered. Use POST /score, GET /health, /model, /version."
        )
        return fault(getattr(error, "status_code", 404), message, "score.path")

    app = FastAPI(title="fedweave serve", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/score", score, methods=["POST"])
    app.add_api_route(OPEN, lambda: {"status": "ok"}, methods=["GET"])
    app.add_api_route("/model", lambda: about, methods=["GET"])
    versions = {"fedweave": version("fedweave"), "format": FORMAT, "model": scorer.name}
    app.add_api_route("/version", lambda: versions, methods=["GET"])
    for status in (404, 405):
        app.add_exception_handler(status, unknown)

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (why := _refusal(scope, token, names)) is not None:
            await fault(*why)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return guarded


def _refusal(scope: Scope, token: str | None, names: Collection[str]) -> tuple[int, str, str] | None:
    """Why a request gets no answer, whatever it asks."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    if names and _name_of(headers.get("host", "")) not in names:
        return 403, f"the header Host names none of {', '.join(dict.fromkeys(names))}.", "score.host"
    if token is None or scope["path"] == OPEN:
        return None
    kind, _, word = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(word.strip().encode(), token.encode()):
        return 401, "the request carries no valid token. Send the header Authorization: Bearer TOKEN.", "score.token"
    return None


def _name_of(host: str) -> str:
    """The name in a header `Host`, without its port."""
    return host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]


async def _body(request: Any, most: int) -> bytes:
    """The body of a request.

    Raises:
        Refused: it is larger than `most` bytes.
    """
    chunks, size = list[bytes](), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            limit = f"the body is larger than {most:,} bytes. Send fewer rows at once, or raise --body-mb."
            raise Refused(413, limit, "score.size")
        chunks.append(chunk)
    return b"".join(chunks)


def answer(scorer: Scorer, body: bytes) -> Record:
    """The scores of the rows in a body: {"nodes": [{…}, …], "edges": […]}, and "graphs" where these are the examples.

    Raises:
        UserError: the body is no such JSON, or the rows are of another form than those of training.
    """
    tables = _tables(body, scorer)
    memory = str(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fedweave-", dir=memory) as name:
        folder = Path(name) / "request"
        folder.mkdir()
        for table, rows in tables.items():
            write_table(folder / f"{table}.parquet", rows)
        try:
            scores = scorer.score(folder, datetime.now(UTC))
        except UserError as error:
            raise Refused(422, str(error).replace(f"{name}/", ""), error.code) from error
    first = scores.slice(0, 1).select([*CONSTANT]).to_pylist()[0]
    constant = {**first, "scored_at": first["scored_at"].strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {**constant, "rows": scores.drop_columns([*CONSTANT]).to_pylist()}


def _tables(body: bytes, scorer: Scorer) -> dict[str, pa.Table]:
    """The tables that a body holds.

    Raises:
        Refused: it holds something else.
    """
    shape = 'Send {"nodes": [{"id": …, …}, …], "edges": [{"source": …, "target": …}, …]}.'
    try:
        held = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {error}. {shape}", "score.body") from error
    if not isinstance(held, dict) or not held.get("nodes") or (odd := held.keys() - {*TABLES}):
        what = f"it has the key {min(odd)!r}" if isinstance(held, dict) and held.get("nodes") else "it has no nodes"
        raise Refused(400, f"the body is not as it has to be: {what}. {shape}", "score.body")
    tables = {name: _table(name, rows) for name, rows in held.items()}
    if not held.get("edges"):
        tables["edges"] = _no_edges(scorer)
    return tables


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _table(name: str, rows: object) -> pa.Table:
    """Rows of JSON as a table.

    Raises:
        Refused: they are no rows, or a column has values of several kinds.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refused(400, f"{name} is no list of rows. Give each row as an object of columns.", "score.body")
    columns = dict.fromkeys(column for row in rows for column in row)
    arrays = dict[str, pa.Array]()
    for column in columns:
        cells = [row.get(column) for row in rows]
        if any(isinstance(cell, dict | list) for cell in cells):
            raise Refused(400, f"{name}, column {column!r}: a cell holds no list and no object.", "score.body")
        try:
            arrays[column] = pa.array(cells)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            message = f"{name}, column {column!r}: its values are of several kinds ({error}). Give numbers or text."
            raise Refused(422, message, "score.body") from error
    return pa.table(arrays)


def _no_edges(scorer: Scorer) -> pa.Table:
    """The table of edges without a row."""
    settings = scorer.before.settings
    features = settings.get("edge_features")
    chosen = (settings.get("edge_weight"), settings.get("edge_time"))
    columns = [*(features if isinstance(features, tuple) else ()), *filter(None, chosen)]
    called = settings.get("columns") or {}
    ends = {called.get(end, end): pa.array([], pa.string()) for end in ("source", "target")}
    return pa.table(ends | {name: pa.array([], pa.float64()) for name in columns})

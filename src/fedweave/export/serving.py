"""A server that scores on one machine: rows in, scores out, with the numbers of `fedweave score`."""

import asyncio
import hmac
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

from fedweave.apply.scorer import FORMAT, Scorer
from fedweave.core.loopback import LOOPBACK, is_loopback, name_in
from fedweave.core.types import Record
from fedweave.datasets.column_names import OF_EDGES
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.runs.files import write_table

TABLES = ("nodes", "edges", "graphs")
CONSTANT = ("model", "run", "scored_at")  # columns that are the same in every row
OPEN = "/health"  # what a probe may ask without a token
MIN_TOKEN = 16  # characters
PATIENCE = 30.0  # seconds for the body of a request
HEADER_PATIENCE = 5.0  # seconds for its line and headers, from the connection on
AT_ONCE = 32  # connections; a further one takes the place of the one that has been silent for longest
SPARE_COLUMNS = 200  # columns of a table beyond the model's
SPARE_CELLS = 1_000_000  # empty cells that a table may have
SHARED_MEMORY = Path("/dev/shm")  # on systems that have it; its files are not on a disk

Scope: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[[Scope, Any, Any], Awaitable[None]]


class Refused(UserError):
    """A request that gets no scores; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status


def check_installed() -> None:
    """Raise an error if the extra `serve` is not installed.

    Raises:
        UserError: the message has the packages and the command.
    """
    absent = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if absent:
        raise UserError(
            f"fedweave serve needs {' and '.join(absent)}, which this Python has not: install the extra `serve`, in a "
            'clone by pip install -c constraints.txt ".[serve]".',
            code="score.extra",
        )


def read_token(path: Path) -> str:
    """The token in a file that only its owner can read.

    Raises:
        UserError: there is no such file, others can read it, or the token is short.
    """
    if not path.is_file():
        raise UserError(f"--token-file {path}: there is no such file. Write a token into it.", code="score.token")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UserError(
            f"--token-file {path}: others can read it. Make it yours alone: chmod 600 {path}", code="score.token"
        )
    token = path.read_text(errors="replace").strip()
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"--token-file {path}: a token has {MIN_TOKEN} or more letters, digits or signs of ASCII, and no space. "
            "`openssl rand -hex 32` prints a good one.",
            code="score.token",
        )
    return token


def check_address(host: str, token: str | None) -> None:
    """Reject an address beyond loopback without a token.

    Raises:
        UserError: the message names the option.
    """
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host}: other machines could ask for scores. Give --token-file FILE, or leave --host out.",
            code="score.token",
        )


def names_of(host: str) -> tuple[str, ...]:
    """The host names that requests to a server on `host` may use; () allows any.

    This blocks DNS rebinding: a web page whose name resolves to loopback sends its own name in the request.
    """
    return (host, LOOPBACK, "localhost", "::1") if is_loopback(host) else ()


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket.

    Raises:
        UserError: the address or the port is not available.
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
    from uvicorn.protocols.http.h11_impl import H11Protocol

    silent = dict[Any, asyncio.TimerHandle]()  # connections without a whole head of a request, oldest first

    class Connection(H11Protocol):
        """Closes connections whose request does not arrive: uvicorn limits only the time after a reply."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.wait()
            if len(self.connections) > AT_ONCE and silent:
                next(iter(silent)).close()

        def data_received(self, data: bytes) -> None:
            if self not in silent and (self.cycle is None or self.cycle.response_complete):
                self.wait()  # for the next request of a connection
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self.forget()

        def connection_lost(self, error: Exception | None) -> None:
            self.forget()
            super().connection_lost(error)

        def wait(self) -> None:
            silent[self] = self.loop.call_later(HEADER_PATIENCE, self.close)

        def forget(self) -> None:
            if self in silent:
                silent.pop(self).cancel()

        def close(self) -> None:
            self.forget()
            self.transport.close()

    settings = uvicorn.Config(
        app,
        http=Connection,
        access_log=False,
        log_level="warning",
        server_header=False,
        limit_concurrency=AT_ONCE + 1,
        timeout_keep_alive=5,
    )
    return uvicorn.Server(settings)


def run(app: App, listener: socket.socket) -> None:
    """Answer requests until the process gets a signal to stop."""
    server(app).run(sockets=[listener])


def application(
    scorer: Scorer, token: str | None = None, max_bytes: int = 16_000_000, names: Collection[str] = ()
) -> App:
    """The ASGI application.

    token: requests must have it as `Authorization: Bearer`; None needs none. max_bytes: the largest size of a body.
    names: the host names that requests may use; () allows any.

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
            body = await asyncio.wait_for(_body(request, max_bytes), PATIENCE)
        except TimeoutError:
            return fault(408, f"the body took longer than {PATIENCE:g} s. Send fewer rows at once.", "score.slow")
        except Refused as error:
            return fault(error.status, str(error), error.code)
        return await asyncio.to_thread(response, body)

    def response(body: bytes) -> Any:
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
        rejection = _rejection(scope, token, names) if scope["type"] == "http" else None
        await (app if rejection is None else fault(*rejection))(scope, receive, send)

    return guarded


def _rejection(scope: Scope, token: str | None, names: Collection[str]) -> tuple[int, str, str] | None:
    """(status, message, code) for a request that gets no answer to any path; None for others."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    if names and name_in(headers.get("host", "")) not in names:
        return 403, f"the header Host names none of {', '.join(dict.fromkeys(names))}.", "score.host"
    if token is None or scope["path"] == OPEN:
        return None
    kind, _, word = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(word.strip().encode(), token.encode()):
        return 401, "the request carries no valid token. Send the header Authorization: Bearer TOKEN.", "score.token"
    return None


async def _body(request: Any, max_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        Refused: it is larger than `max_bytes`.
    """
    chunks, size = list[bytes](), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            limit = f"the body is larger than {max_bytes:,} bytes. Send fewer rows at once, or raise --body-mb."
            raise Refused(413, limit, "score.size")
        chunks.append(chunk)
    return b"".join(chunks)


def answer(scorer: Scorer, body: bytes) -> Record:
    """The scores of the rows in a body: {"nodes": [{…}, …], "edges": […]}, and "graphs" where these are the examples.

    Raises:
        UserError: the body is not such JSON, or its rows have another form than the training data.
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
    """The tables in a body.

    Raises:
        Refused: it contains something else.
    """

    def reject_constant(word: str) -> None:
        raise ValueError(f"{word} is not a number of JSON")

    small_graphs = scorer.form.example == "graph"
    shape = 'Send {"nodes": [{"id": …, …}, …], "edges": [{"source": …, "target": …}, …]}.'
    if small_graphs:
        shape = 'Send {"graphs": [{"id": …, …}, …]} with "nodes" and "edges", or of molecules with their smiles.'
    try:
        document = json.loads(body, parse_constant=reject_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}. {shape}", "score.body") from error
    document = document if isinstance(document, dict) else {}
    needed = "graphs" if small_graphs and document and not document.get("nodes") else "nodes"
    unknown = document.keys() - {*TABLES}
    if not document.get(needed) or unknown:
        what = f"it has the key {min(unknown)!r}" if document.get(needed) else f"it has no {needed}"
        raise Refused(400, f"the body has another form: {what}. {shape}", "score.body")

    # The tables, with columns that may be empty and that no row has: most writers of JSON leave out what is null.
    settings = {**scorer.before.settings, **scorer.before.edge_settings}
    empty = dict.fromkeys(scorer.before.settings.get("missing") or (), pa.float64())
    empty |= dict.fromkeys(scorer.before.settings.get("categories") or (), pa.string())
    empty |= {f"{OF_EDGES}label": pa.string()} if scorer.before.edge_kinds else {}
    names, features = settings.get("columns") or {}, settings.get("edge_features")

    def is_there(column: str, table: pa.Table) -> bool:
        """Whether a table has a column, by its meaning or as its owner calls it."""
        return not {column, names.get(column, column)}.isdisjoint(table.column_names)

    max_columns, tables = SPARE_COLUMNS + 2 * len(scorer.before.columns), dict[str, pa.Table]()
    for name, rows in document.items():
        if not rows:
            continue
        table = _table(name, rows, max_columns)
        for entry, kind in empty.items():
            column, owner = entry.removeprefix(OF_EDGES), "edges" if entry.startswith(OF_EDGES) else "nodes"
            if owner == name and not is_there(column, table):
                table = table.append_column(column, pa.nulls(len(table), kind))
        tables[name] = table

    # Each needs the columns that have a meaning for the model, by the names that its tables had.
    node_columns = [names.get("id", "id")] + ([names.get("graph", "graph")] if small_graphs else [])
    edge_ends = [names.get("source", "source"), names.get("target", "target")]
    edge_columns = [*features] if isinstance(features, tuple) else []
    edge_columns += [column for column in (settings.get("edge_weight"), settings.get("edge_time")) if column]
    columns = {"nodes": node_columns, "edges": [*edge_ends, *edge_columns], "graphs": []}
    for name, table in tables.items():
        absent = [column for column in columns[name] if not is_there(column, table)]
        if absent:
            raise Refused(
                422,
                f"{name}: no row has the column {absent[0]!r}. Give it in each row, as in the tables that the model "
                "was trained on.",
                "score.column",
            )
    if "nodes" in tables and "edges" not in tables:
        ends = {end: pa.array([], pa.string()) for end in edge_ends}
        edge_columns += [entry.removeprefix(OF_EDGES) for entry in empty if entry.startswith(OF_EDGES)]
        tables["edges"] = pa.table(ends | {column: pa.array([], pa.float64()) for column in edge_columns})
    return tables


def _table(name: str, rows: object, max_columns: int) -> pa.Table:
    """Rows of JSON as a table of `max_columns` at most: a small body must not become a large table.

    Raises:
        Refused: these are not rows, they have more columns, or a column has values of several kinds.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refused(400, f"{name} is not a list of rows. Give each row as an object of columns.", "score.body")
    columns = dict[str, None]()
    for at, row in enumerate(rows):
        if all(cell is None for cell in row.values()):  # a table's blank rows are skipped: it would get no score
            raise Refused(422, f"{name}: row {at} is empty. Leave it out, or give its columns.", "score.body")
        columns |= dict.fromkeys(row)
    for column in columns:
        if not column.isprintable():
            raise Refused(422, f"{name}: {column!r} is not a name of a column.", "score.body")
    if len(columns) > max_columns or len(columns) * len(rows) > SPARE_CELLS + 8 * sum(map(len, rows)):
        limit = f"{name} has {len(columns):,} columns in {len(rows):,} rows, most of them empty or unknown."
        raise Refused(422, f"{limit} Give the columns that GET /model names.", "score.body")
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

"""The page of error codes, read from the package's source: every code, its messages, and where they are raised."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import fedweave
from fedweave.errors import CODES

PACKAGE = Path(fedweave.__file__).parent
MOST = 3  # messages that are shown of one code
_LONGEST = 240
_CODE = re.compile(r"[a-z]+(-[a-z]+)*(\.[a-z0-9-]+)?")
# Functions that raise an error whose code they complete: the prefix, the place of the rest among the arguments, what
# stands there if nothing is given, and the place of the message.
_RAISE = {
    "refuse": ("data.", 3, "", 1),
    "refuse_rows": ("data.", 4, "row", 2),
    "refuse_first": ("data.", 4, "", 2),
    "_refuse": ("init.", 0, "", 1),
}


class Refusal(NamedTuple):
    """One place where a code is raised: the module, and the message with "…" where values stand."""

    module: str
    message: str


@cache
def codes() -> dict[str, list[Refusal]]:
    """{code: where it is raised}, by code; of a code that a class of errors has by itself, the class's docstring."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    modules = {path: _module(path) for path in trees}
    constants = {modules[path]: _constants(tree) for path, tree in trees.items()}
    every: dict[str, list[Refusal]] = {}
    for path, tree in trees.items():
        known = _imported(tree, constants) | constants[modules[path]]
        for code, message in _raised(tree, known):
            every.setdefault(code, []).append(Refusal(modules[path], message))
    return dict(sorted(every.items()))


def page() -> str:
    """The page: the groups, then every code of each group with its messages."""
    every = codes()
    lines = [
        "# Error codes",
        "Every error has a `code`, which programs read: `error.code` in Python. A mistake that you can correct ends a "
        "command with exit status 2, any other fault with 1. The part before the point says what kind of fault it is. "
        "Messages below have … where yours has a name or a number.",
        "\n".join(
            [
                "| group | what it means | read more |",
                "| --- | --- | --- |",
                *(f"| [`{name}`](#{name}) | {about} | {_link(place)} |" for name, (about, place) in CODES.items()),
            ]
        ),
    ]
    for name, (about, place) in CODES.items():
        rows = [_row(code, found) for code, found in every.items() if code.partition(".")[0] == name]
        lines += [f"## {name}", f"{about} {_link(place)}.", "\n".join(["| code | message |", "| --- | --- |", *rows])]
    return "\n\n".join(lines) + "\n"


def _row(code: str, found: list[Refusal]) -> str:
    messages = list(dict.fromkeys(one.message for one in found if one.message))
    shown = "<br>".join(_cell(message) for message in messages[:MOST])
    rest = len(messages) - MOST
    modules = ", ".join(f"`{name}`" for name in dict.fromkeys(one.module for one in found))
    more = f"<br>and {rest} more" if rest > 0 else ""
    return f'| <a id="{code}"></a>`{code}` | {shown}{more or ""}{"<br>" if shown else ""}in {_few(modules)} |'


def _few(modules: str) -> str:
    names = modules.split(", ")
    return modules if len(names) <= MOST else f"{', '.join(names[:MOST])} and {len(names) - MOST} more modules"


def _link(place: str) -> str:
    title, _, target = place.partition(": ")
    return f"[{title}](../{target})"


def _cell(text: str) -> str:
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …"
    return re.sub(r"([|*_\[\]`~])", r"\\\1", cut.replace("&", "&amp;").replace("<", "&lt;"))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module names."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _imported(tree: ast.Module, constants: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The texts that a module takes from others of the package."""
    return {
        alias.asname or alias.name: constants[module][alias.name]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (module := (node.module or "").removeprefix("fedweave.")) in constants
        for alias in node.names
        if alias.name in constants[module]
    }


class Names:
    """What names stand for in one module: texts, and the expressions that they are assigned or called with."""

    def __init__(self, tree: ast.Module, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.assigned: dict[str, list[ast.expr]] = {}
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.assigned.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.FunctionDef):
                called = [call.args for call in calls if isinstance(call.func, ast.Name) and call.func.id == node.name]
                for place, argument in enumerate(node.args.args):
                    given = [args[place] for args in called if len(args) > place]
                    self.assigned.setdefault(argument.arg, []).extend(given)

    def codes(self, node: ast.expr, depth: int = 2) -> list[str]:
        """What a code's expression can be, as far as the source says."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) and _CODE.fullmatch(node.value) else []
        if isinstance(node, ast.IfExp):
            return [*self.codes(node.body, depth), *self.codes(node.orelse, depth)]
        if not isinstance(node, ast.Name) or not depth:
            return []
        if node.id in self.texts:
            return [self.texts[node.id]]
        return [code for value in self.assigned.get(node.id, ()) for code in self.codes(value, depth - 1)]

    def message(self, node: ast.expr, depth: int = 2) -> str:
        """A message with "…" for what is filled in; "" of one that is no text in the source."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            return "" if re.fullmatch(r"[…\W]*", text) else text
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.message(node.left, depth) + self.message(node.right, depth)
        if isinstance(node, ast.Call) and node.args:
            return self.message(node.args[0], depth)
        if isinstance(node, ast.Name) and depth:
            near = [value for value in self.assigned.get(node.id, ()) if value.lineno <= node.lineno]
            return self.message(max(near, key=lambda value: value.lineno), depth - 1) if near else ""
        return ""


def _raised(tree: ast.Module, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(code, message) of every error that a module raises or defines."""
    names = Names(tree, texts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            about = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            yield from ((code, about) for line in node.body for code in _of_class(line))
        elif isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if called in _RAISE:
                prefix, place, usual, said = _RAISE[called]
                rest = given.get("code", node.args[place] if len(node.args) > place else ast.Constant(usual))
                yield from ((f"{prefix}{one}", names.message(node.args[said])) for one in names.codes(rest))
            elif "code" in given:
                message = "; ".join(filter(None, map(names.message, node.args)))
                yield from ((one, message) for one in names.codes(given["code"]))
        elif isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            code, message = node.value.elts  # a requirement that is not met
            requirement_codes = [one for one in names.codes(code) if one.partition(".")[0] in CODES and "." in one]
            yield from ((one, names.message(message)) for one in requirement_codes)


def _of_class(line: ast.stmt) -> Iterator[str]:
    if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str):
        yield from (line.value.value for name in line.targets if isinstance(name, ast.Name) and name.id == "code")

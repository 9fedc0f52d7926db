"""The page of error codes, read from the package's source: every code with a message."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import fedweave
from fedweave.errors import CODES

PACKAGE = Path(fedweave.__file__).parent
MAX_LENGTH = 120  # of a message
_CODE = re.compile(r"[a-z]+(-[a-z]+)*(\.[a-z0-9-]+)?")
# Functions that raise an error and complete its code: the code's prefix, the position of its rest among the arguments,
# the default of this argument, and the position of the message.
_RAISING_FUNCTIONS = {
    "refuse": ("data.", 3, "", 1),
    "refuse_rows": ("data.", 4, "row", 2),
    "refuse_first": ("data.", 4, "", 2),
    "_refuse": ("init.", 0, "", 1),
}


@cache
def codes() -> dict[str, list[str]]:
    """{code: its messages, with "…" for values}, sorted by code. A class of errors with its own code has its docstring
    as message."""
    trees: dict[str, ast.Module] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        trees[module] = ast.parse(path.read_text(encoding="utf-8"))
    constants = {module: _constants(tree) for module, tree in trees.items()}
    result: dict[str, list[str]] = {}
    for module, tree in trees.items():
        texts = _imported_constants(tree, constants) | constants[module]
        for code, message in _raises(tree, texts):
            result.setdefault(code, []).append(message)
    return dict(sorted(result.items()))


def page() -> str:
    """The page: every code of each group with a message."""
    lines = [
        "# Error codes",
        "Every error has a `code`, which programs read: `error.code` in Python. A mistake that you can correct ends a "
        "command with exit status 2, any other fault with 1. The part before the point says what kind of fault it is. "
        "A message has … where yours has a name or a number; where a code has several, this is one of them.",
    ]
    for name, (about, place) in CODES.items():
        rows = [_row(code, messages) for code, messages in codes().items() if code.partition(".")[0] == name]
        lines += [f"## {name}", f"{about} {_link(place)}.", "\n".join(["| code | message |", "| --- | --- |", *rows])]
    return "\n\n".join(lines) + "\n"


def _row(code: str, messages: list[str]) -> str:
    message = next(filter(None, messages), "")  # the search finds a code, not the words of its message
    return f'| <a id="{code}"></a>`{code}` | <span data-search-exclude>{_cell(message)}</span> |'


def _link(place: str) -> str:
    title, _, target = place.partition(": ")
    return f"[{title}](../{target})"


def _cell(text: str) -> str:
    if len(text) > MAX_LENGTH:
        text = f"{text[:MAX_LENGTH].rpartition(' ')[0]} …"
    return re.sub(r"([|*_\[\]`~])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def _constants(tree: ast.Module) -> dict[str, str]:
    """{name: text} of the texts that a module assigns to names at its top level."""
    result = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    result[target.id] = node.value.value
    return result


def _imported_constants(tree: ast.Module, constants: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The texts that a module imports from other modules of the package."""
    result = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            texts = constants.get((node.module or "").removeprefix("fedweave."), {})
            for alias in node.names:
                if alias.name in texts:
                    result[alias.asname or alias.name] = texts[alias.name]
    return result


class Names:
    """The values of names in one module: texts, and the expressions that they are assigned or called with."""

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
                calls_of_node = [call.args for call in calls if call.func.id == node.name]  # type: ignore[attr-defined]
                for position, argument in enumerate(node.args.args):
                    values = [args[position] for args in calls_of_node if len(args) > position]
                    self.assigned.setdefault(argument.arg, []).extend(values)

    def codes(self, node: ast.expr, depth: int = 2) -> list[str]:
        """The codes that an expression can have, as far as the source shows."""
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
        """A message with "…" for values; "" if the source has no text for it."""
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
            before = [value for value in self.assigned.get(node.id, ()) if value.lineno <= node.lineno]
            return self.message(max(before, key=lambda value: value.lineno), depth - 1) if before else ""
        return ""


def _raises(tree: ast.Module, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(code, message) of every error that a module raises or defines."""
    names = Names(tree, texts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            about = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            code_of_class = _constants(ast.Module(node.body, [])).get("code")
            if code_of_class is not None:
                yield code_of_class, about
        elif isinstance(node, ast.Call):
            function = node.func.id if isinstance(node.func, ast.Name) else ""
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            if function in _RAISING_FUNCTIONS:
                prefix, position, default, message_position = _RAISING_FUNCTIONS[function]
                argument = node.args[position] if len(node.args) > position else ast.Constant(default)
                for rest in names.codes(keywords.get("code", argument)):
                    yield f"{prefix}{rest}", names.message(node.args[message_position])
            elif "code" in keywords:
                message = "; ".join(filter(None, map(names.message, node.args)))
                for code in names.codes(keywords["code"]):
                    yield code, message
        elif isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            code_node, message_node = node.value.elts  # a requirement that is not met
            for code in names.codes(code_node):
                if code.partition(".")[0] in CODES and "." in code:
                    yield code, names.message(message_node)

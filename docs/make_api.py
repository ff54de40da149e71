"""Write docs/api.md: the public names of the package and what their docstrings say.

Run ``python docs/make_api.py`` (``make docs``) after a change of a public name or its docstring.
The source is read, not imported, so the page is the same for every version of Python and torch.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
IN_FULL = ("bayes_dc", "bayes_dc.models", "bayes_dc.metrics", "bayes_dc.datasets")
IN_A_LINE = tuple(f"bayes_dc.{name}" for name in ("nn", "mc", "acquire", "report", "train"))

Node = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
_HEAD = """\
# Reference of the public names

Made from the docstrings by `python docs/make_api.py`; do not edit. Shapes stand in brackets: `T`
passes, `B` samples, `N` outputs, `K` inputs, `C` classes. What masks depend on is defined in
[bayes_dc/rng/SPEC.md](../bayes_dc/rng/SPEC.md).
"""
_SECTION = re.compile(
    r"(Args|Attributes|Returns|Raises|Yields|Determinism|Accuracy|Source|Example)::?"
)
_LISTS = ("Args", "Attributes", "Raises")
_ROLE = re.compile(r":(?:func|class|meth|mod):`")
_ITEM = re.compile(r"(\*{0,2}\w+): (.*)")


@cache
def tree(module: str) -> ast.Module:
    """Syntax tree of a module or package."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def exports(package: str) -> list[str]:
    """The names in ``__all__``."""
    for node in tree(package).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise SystemExit(f"{package} has no __all__: write the list of its public names.")


def find(module: str, name: str) -> tuple[ast.Module, Node] | None:
    """Definition of a name, followed through imports; None for a sub-package."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bayes_dc"):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    source = str(node.module)
                    return None if source == module else find(source, alias.name)
    for top in tree(module).body:
        if isinstance(top, ast.FunctionDef | ast.ClassDef) and top.name == name:
            return tree(module), top
        if isinstance(top, ast.Assign) and ast.unparse(top.targets[0]) == name:
            return tree(module), top
        if isinstance(top, ast.AnnAssign) and ast.unparse(top.target) == name:
            return tree(module), top
    raise SystemExit(f"{module} has no {name}, although something imports it from there.")


def docstring(scope: ast.Module | ast.ClassDef, node: Node) -> str:
    """Docstring of a definition; of a value, the string below it."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return ast.get_docstring(node) or ""
    below = scope.body[scope.body.index(node) + 1 :][:1]
    match below:
        case [ast.Expr(ast.Constant(str(text)))]:
            return inspect.cleandoc(text)
    return ""


def signature(name: str, node: Node) -> str:
    """How a name is called, or what it is."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        value = ast.unparse(node.value) if node.value else ""
        return f"{name} = {value}" if len(value) < 80 else name
    function = node
    if isinstance(node, ast.ClassDef):
        own = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if not own:
            return f"class {name}"
        function = own[0]
    assert isinstance(function, ast.FunctionDef)
    if any(ast.unparse(one) == "property" for one in function.decorator_list):
        return f"{name}: {ast.unparse(function.returns)}" if function.returns else name
    prefix = "class " if isinstance(node, ast.ClassDef) else ""
    given = arguments(function.args)
    end = f" -> {ast.unparse(function.returns)}" if function.returns and not prefix else ""
    line = f"{prefix}{name}({', '.join(given)}){end}"
    if len(line) <= 96:
        return line
    rows = "".join(f"    {one},\n" for one in given)
    return f"{prefix}{name}(\n{rows}){end}"


def arguments(args: ast.arguments) -> list[str]:
    """Arguments as they are written, without self."""
    places = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(places) - len(args.defaults)) + [*args.defaults]
    named = list(zip(args.kwonlyargs, args.kw_defaults, strict=True))
    shown = [_argument(*pair) for pair in zip(places, defaults, strict=True)]
    shown = shown[1:] if places and places[0].arg in ("self", "cls") else shown
    star = [f"*{_argument(args.vararg)}"] if args.vararg else ["*"] * bool(named)
    rest = [f"**{_argument(args.kwarg)}"] if args.kwarg else []
    return [*shown, *star, *(_argument(*pair) for pair in named), *rest]


def _argument(arg: ast.arg, default: ast.expr | None = None) -> str:
    kind = f": {ast.unparse(arg.annotation)}" if arg.annotation else ""
    space = " " if kind else ""
    return f"{arg.arg}{kind}" + (f"{space}={space}{ast.unparse(default)}" if default else "")


def markdown(text: str) -> Iterator[str]:
    """Lines of a docstring as Markdown: sections in bold, entries as lists, formulas fenced."""
    section, lines = "", _ROLE.sub("`", text).replace("``", "`").split("\n")
    while lines:
        line = lines.pop(0)
        heading = _SECTION.fullmatch(line)
        if heading:
            section = heading[1]
            yield from ("", f"**{section}**", "")
        else:
            line = line.removeprefix("    ") if section else line
            item = _ITEM.fullmatch(line) if section in _LISTS else None
            line = f"* `{item[1]}`: {item[2]}" if item else line
            yield line[:-1] if line.endswith("::") else line
        if line.endswith("::") or section == "Example":
            block = []
            while lines and (not lines[0] or lines[0].startswith("    ")):
                block.append(lines.pop(0))
            code = inspect.cleandoc("\n".join(["", *block]))
            yield from ("", "```python" if ">>>" in code else "```text", code, "```", "")


def entry(title: str, scope: ast.Module | ast.ClassDef, name: str, node: Node, mark: str) -> str:
    """A name with signature, text and, of a class, its public methods."""
    lines = [f"{mark} `{title}`", "", "```python", signature(name, node), "```", ""]
    lines += markdown(docstring(scope, node))
    parts = ["\n".join(lines).strip()]
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and ast.get_docstring(method):
                public = not method.name.startswith("_") or method.name == "__call__"
                whole = f"{name}.{method.name}"
                parts += [entry(whole, node, method.name, method, f"{mark}#")] * public
    return "\n\n".join(parts)


def first_line(text: str) -> str:
    """First paragraph of a docstring, fit for a table."""
    paragraph = " ".join(_ROLE.sub("`", text).replace("``", "`").split("\n\n")[0].split())
    return paragraph.rstrip(":").replace("|", "\\|")


def page() -> str:
    """The whole page."""
    parts = [_HEAD.strip()]
    for package in IN_FULL:
        parts += [f"## {package}", first_line(ast.get_docstring(tree(package)) or "")]
        for name in exports(package):
            found = find(package, name)
            if found is None:
                parts.append(f"### `{package}.{name}`\n\nSub-package, see below.")
            else:
                parts.append(entry(f"{package}.{name}", found[0], name, found[1], "###"))
    for package in IN_A_LINE:
        parts += [f"## {package}", first_line(ast.get_docstring(tree(package)) or "")]
        rows = ["| name | |", "|---|---|"]
        for name in exports(package):
            found = find(package, name)
            assert found is not None
            rows.append(f"| `{name}` | {first_line(docstring(*found))} |")
        parts.append("\n".join(rows))
    text = re.sub(r"[ \t]+\n", "\n", "\n\n".join(parts) + "\n")
    return re.sub(r"\n{3,}", "\n\n", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")

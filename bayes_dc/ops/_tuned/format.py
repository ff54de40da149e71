"""The files of launch configurations: what they may hold, reading and writing.

    gpu: NVIDIA H200
    measured:
      linear_fwd: {torch: 2.11.0, triton: 3.6.0, date: '2026-01-31'}
    configs:
      linear_fwd:
      - {dtype: float32, M: 16384, N: 1024, K: 1024, config: {rows: 2, lanes: 32, warps: 1}}

Lists of shapes to be tuned look like the value of ``configs``, without ``config``. yaml is imported
with the first file.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch


class Op(NamedTuple):
    """What describes a launch of an operator.

    Attributes:
        sizes: Names of the sizes of its shape.
        fields: Names of the numbers of its launch configuration.
    """

    sizes: tuple[str, ...]
    fields: tuple[str, ...]


class Entry(NamedTuple):
    """The configuration chosen for one shape.

    Attributes:
        dtype: Type of the input.
        sizes: Sizes of the shape, by name.
        config: Launch configuration; the fields left out have their defaults.
    """

    dtype: torch.dtype
    sizes: dict[str, int]
    config: dict[str, int]


class Tuned(NamedTuple):
    """A file.

    Attributes:
        gpu: Name of the GPU, as torch reports it.
        measured: Versions and date, by operator.
        configs: Entries, by operator, in the order of the file.
    """

    gpu: str
    measured: dict[str, dict[str, str]]
    configs: dict[str, list[Entry]]


_ROW = ("rows", "lanes", "quads", "warps", "registers")
_ANY_NUMBER = {"registers": 0, "stages": 1}
_MOST = 1024
_GROUPED = ("rows", "outputs", "inputs", "warps", "stages")

OPS = {
    "linear_fwd": Op(("M", "N", "K"), _ROW),
    "linear_dx": Op(("M", "N", "K"), _ROW),
    "linear_dw": Op(("M", "N", "K"), _ROW),
    "linear_grouped_fwd": Op(("G", "R", "N", "K"), _GROUPED),
    "linear_grouped_dx": Op(("G", "R", "N", "K"), _GROUPED),
    "linear_grouped_dw": Op(("G", "R", "N", "K"), _GROUPED),
    "gaussian_linear": Op(("M", "N", "K"), _GROUPED),
}
"""Operators that can be tuned; a test compares the fields with the launchers' configurations."""

DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float32, torch.bfloat16, torch.float16)}
"""Types of the entries, by name."""

_NOT_YAML = "{where} is not YAML: {cause}. {remedy}"
_MUST_BE = "{where}: {key} must be {expected}, got {got!r}. {remedy}"
_KEYS = "{where}: {key} has the unknown key {name!r}; known keys are {known}. {remedy}"
_MISSING = "{where}: {key} lacks the key {name!r}; needed are {known}. {remedy}"
_KEY_TWICE = "{where}: the key {name!r} comes twice, again at line {line}. {remedy}"
_TWICE = "{where}: {key} is the same shape as {other}. {remedy}"
_REMEDY = "Correct it, or delete the file and write it again with scripts/tune.py."
_REMEDY_SHAPES = (
    "A list of shapes looks like this: linear_fwd: [{dtype: float32, M: 9, N: 9, K: 9}]"
)


def parse(text: str, where: str) -> Tuned:
    """Return the content of a file.

    Args:
        text: YAML.
        where: Name of the file, for messages.

    Returns:
        The content, every key and number checked.

    Raises:
        ValueError: If the text is not YAML, a key is missing or unknown, a value is of another
            type, or a key or a shape comes twice; the message names file and key.
    """
    check = _Check(where, _REMEDY)
    raw = check.yaml(text)
    check.keys(raw, "the file", ("gpu", "measured", "configs"))
    if not isinstance(raw["gpu"], str):
        raise check.must_be("gpu", "text", raw["gpu"])
    configs = check.ops(raw["configs"], configured=True)
    check.keys(raw["measured"], "measured", tuple(configs))
    measured = {}
    for op, how in raw["measured"].items():
        check.keys(how, f"measured.{op}", ("torch", "triton", "date"))
        measured[op] = {n: check.text(value, f"measured.{op}.{n}") for n, value in how.items()}
    return Tuned(raw["gpu"], measured, configs)


def parse_shapes(text: str, where: str) -> dict[str, list[Entry]]:
    """Return a list of shapes for each operator.

    Args:
        text: YAML.
        where: Name of the file, for messages.

    Returns:
        Entries with an empty ``config``, by operator.

    Raises:
        ValueError: As ``parse``.
    """
    check = _Check(where, _REMEDY_SHAPES)
    return check.ops(check.yaml(text), configured=False)


def dump(tuned: Tuned) -> str:
    """Return the text of a file, a line for each shape.

    Args:
        tuned: What was measured.

    Returns:
        YAML that ``parse`` reads back to an equal object.
    """
    import yaml

    def flow(value: Mapping[str, Any]) -> str:
        return yaml.safe_dump(
            dict(value), sort_keys=False, default_flow_style=True, width=10**6
        ).strip()

    lines = ["# Written by scripts/tune.py; format.py beside this file describes it."]
    lines += [yaml.safe_dump({"gpu": tuned.gpu}).strip(), "measured:"]
    lines += [f"  {op}: {flow(how)}" for op, how in tuned.measured.items()]
    lines += ["configs:"]
    for op, entries in tuned.configs.items():
        lines += [f"  {op}:"]
        for entry in entries:
            dtype = {"dtype": str(entry.dtype).removeprefix("torch.")}
            lines += [f"  - {flow(dtype | entry.sizes | {'config': entry.config})}"]
    return "\n".join(lines) + "\n"


class _Check(NamedTuple):
    """Refusals that name the file, the key and what to do."""

    where: str
    remedy: str

    def yaml(self, text: str) -> Any:
        """The content of a YAML text; yaml alone would keep the last of two equal keys."""
        import yaml

        check = self

        class Loader(yaml.SafeLoader):
            def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
                seen = set[str]()
                for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                    if key.value in seen:
                        line = key.start_mark.line + 1
                        raise check._error(_KEY_TWICE, name=key.value, line=line)
                    seen.add(key.value)
                return super().construct_mapping(node, deep)

        try:
            return yaml.load(text, Loader)
        except yaml.YAMLError as error:
            raise self._error(_NOT_YAML, cause=error) from error

    def ops(self, raw: Any, *, configured: bool) -> dict[str, list[Entry]]:
        """A mapping from operators to their entries."""
        self.keys(raw, "configs" if configured else "the file", tuple(OPS), required=())
        prefix = "configs." if configured else ""
        return {op: self._entries(op, raw[op], f"{prefix}{op}", configured) for op in raw}

    def keys(
        self, raw: Any, key: str, known: Sequence[str], required: Sequence[str] | None = None
    ) -> None:
        """Refuse what is no mapping, has an unknown key or lacks one of ``required`` (of all)."""
        if not isinstance(raw, Mapping):
            raise self.must_be(key, f"a mapping with the keys {', '.join(known)}", raw)
        for template, names in (
            (_KEYS, [name for name in raw if name not in known]),
            (
                _MISSING,
                [name for name in (known if required is None else required) if name not in raw],
            ),
        ):
            if names:
                raise self._error(template, key=key, name=names[0], known=", ".join(known))

    def text(self, value: Any, key: str) -> str:
        """A version or a date as text; YAML makes numbers and dates of some."""
        if not isinstance(value, str | int | float | datetime.date) or isinstance(value, bool):
            raise self.must_be(key, "text", value)
        return str(value)

    def must_be(self, key: str, expected: str, got: Any) -> ValueError:
        """The error of a value of another type."""
        return self._error(_MUST_BE, key=key, expected=expected, got=got)

    def _entries(self, op: str, listed: Any, key: str, configured: bool) -> list[Entry]:
        if not isinstance(listed, list):
            raise self.must_be(key, "a list of entries", listed)
        sizes, fields = OPS[op]
        first: dict[tuple[Any, ...], str] = {}
        entries = []
        for i, raw in enumerate(listed):
            at = f"{key}[{i}]"
            self.keys(raw, at, ("dtype", *sizes, *(["config"] if configured else [])))
            if not isinstance(raw["dtype"], str) or raw["dtype"] not in DTYPES:
                raise self.must_be(f"{at}.dtype", " or ".join(DTYPES), raw["dtype"])
            config = raw.get("config", {})
            self.keys(config, f"{at}.config", fields, required=())
            entry = Entry(
                DTYPES[raw["dtype"]],
                {name: self._whole(raw[name], f"{at}.{name}", 1) for name in sizes},
                {name: self._field(n, name, f"{at}.config.{name}") for name, n in config.items()},
            )
            other = first.setdefault((entry.dtype, *entry.sizes.values()), at)
            if other != at:
                raise self._error(_TWICE, key=at, other=other)
            entries.append(entry)
        return entries

    def _whole(self, value: Any, key: str, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.must_be(key, f"a whole number of at least {least}", value)
        return value

    def _field(self, value: Any, name: str, key: str) -> int:
        if name in _ANY_NUMBER:
            return self._whole(value, key, _ANY_NUMBER[name])
        if self._whole(value, key, 1) & (value - 1) or value > _MOST:
            raise self.must_be(key, f"a power of two of at most {_MOST}", value)
        return value

    def _error(self, template: str, **parts: Any) -> ValueError:
        return ValueError(template.format(where=self.where, remedy=self.remedy, **parts))

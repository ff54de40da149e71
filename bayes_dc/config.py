"""Configuration of a run: one YAML file, checked to the last key before anything starts.

Library code takes the settings objects; only the scripts read YAML, through ``load_config``.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from bayes_dc.acquire import AcquireConfig
from bayes_dc.datasets import DataConfig, PathText, Settings
from bayes_dc.train import ModelConfig, TrainConfig

MAX_BYTES = 2**17
"""Largest configuration file that is read: PyYAML takes a second for it."""

MAX_FAULTS = 20
"""Faults of one configuration that are listed."""

_MAX_DEPTH = 16

_ALSO_CALLED = {
    "drop_prob": "p",
    "drop_rate": "p",
    "dropout": "p",
    "dropconnect": "p",
    "dataset": "data",
    "learning_rate": "lr",
    "augmentation": "augment",
    "num_epochs": "epochs",
    "out": "output_dir",
    "precision": "amp",
    "pretrained": "init_from",
    "samples": "passes",
    "wd": "weight_decay",
}
"""Other people's names of our keys, so that the nearest valid key is found by meaning, too."""

_MUST_BE = {
    "bool_type": "must be true or false",
    "finite_number": "must be finite",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "missing": "is missing and has no default: add it",
    "model_type": "must be a section with keys of its own",
    "string_type": "must be text",
    "tuple_type": "must be a list, e.g. [800, 800]",
}


class ConfigError(ValueError):
    """A configuration cannot be used; one line per fault, each names file, key and remedy."""


class PredictConfig(Settings):
    """Defaults of ``scripts/mc_predict.py``.

    Attributes:
        passes: Monte Carlo passes T.
        batch_size: Inputs per call.
    """

    passes: int = Field(default=100, ge=1)
    batch_size: int = Field(default=1000, ge=1)


class Config(Settings):
    """Everything that defines a run.

    Attributes:
        output_dir: Folder of checkpoints and metrics; ``~`` is the home folder.
        seed: Chooses initial weights, order and changes of the samples, and masks.
        init_from: Checkpoint, or output folder of a run, whose weights training starts from; null
            for random ones. The network must be the same, its DropConnect need not be.
        model: The network.
        data: The data set.
        train: Training.
        predict: Defaults of prediction.
    """

    output_dir: PathText
    seed: int = Field(default=0, ge=0, lt=2**64)
    init_from: PathText | None = None
    model: ModelConfig = ModelConfig()
    data: DataConfig
    train: TrainConfig = TrainConfig()
    predict: PredictConfig = PredictConfig()


class ActiveConfig(Config):
    """A run of active learning: the network is trained anew after every acquisition.

    Attributes:
        acquire: Which inputs get a label next.
    """

    acquire: AcquireConfig = AcquireConfig()


_Kind = TypeVar("_Kind", bound=Config)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file and apply overrides.

    Args:
        path: YAML file of at most 128 KiB. Anchors, aliases, tags and duplicate keys are refused;
            ``1e-3`` is a number; only ``true`` and ``false`` are booleans.
        overrides: ``section.key=value``, the value in YAML; of two for one key the later wins.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: If the file cannot be read or any setting is unknown, missing, of another type
            or out of range.
    """
    return _load(path, overrides, Config)


def load_active_config(path: str | Path, overrides: Sequence[str] = ()) -> ActiveConfig:
    """Read a configuration of active learning; see ``load_config``.

    Args:
        path: YAML file.
        overrides: ``section.key=value``.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: As ``load_config``.
    """
    return _load(path, overrides, ActiveConfig)


def _load(path: str | Path, overrides: Sequence[str], kind: type[_Kind]) -> _Kind:
    """Read, override and check."""
    raw = _parse(_read_text(Path(path)), str(path))
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must hold keys and values, got {type(raw).__name__}")
    overridden = [_override(raw, text) for text in overrides]
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        faults = error.errors()
        lines = [_explain(f, str(path), overridden, kind) for f in faults[:MAX_FAULTS]]
        if len(faults) > MAX_FAULTS:
            lines.append(f"{path}: and {len(faults) - MAX_FAULTS} more faults")
        raise ConfigError("\n".join(lines)) from error


def dump_config(config: Config) -> str:
    """Write a configuration with every default filled in.

    Args:
        config: Configuration.

    Returns:
        YAML that ``load_config`` reads back to an equal object.
    """
    values = config.model_dump(mode="json")
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None)


class _Loader(yaml.SafeLoader):
    """YAML without surprises: no anchors, tags or duplicate keys, plain numbers and booleans."""

    # YAML 1.1 would read 1e-3 as text, yes as true, 010 as 8 and 1:30 as 90.
    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML copies it for subclasses
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            _refuse(event, "anchors (&) and aliases (*) are not read: write the value out")
        if getattr(event, "tag", None) is not None:
            _refuse(event, f"tags are not read: remove {event.tag}")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            _refuse(event, f"nested deeper than {_MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                _refuse(key, "keys must be text")
            if key.value in seen:
                _refuse(key, f"key {key.value} is given twice (first in line {seen[key.value]})")
            seen[key.value] = line
        return super().construct_mapping(node, deep)


_FLOAT = (
    r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
for _tag, _pattern, _first in (
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(f"^(?:{_pattern})$"),
        [c if c != "\0" else "" for c in _first],
    )


def _refuse(where: Any, problem: str) -> None:
    """Raise a YAML error that knows its line."""
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


def _read_text(path: Path) -> str:
    """Read a small UTF-8 file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than 128 KiB: not a configuration file")
        return content.decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}. Name a YAML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: not a configuration file") from error


def _parse(text: str, source: str) -> Any:
    """Parse YAML, naming source and line of a fault."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(f"{source}: {line}{error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}") from error


def _override(raw: dict[str, Any], text: str) -> str:
    """Apply ``a.b=value`` and return its key."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {text}: must read section.key=value, e.g. model.p=0.5")
    section = raw
    for part in parts[:-1]:
        inner = section.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {text}: {part} is a value, not a section")
        section = inner
    section[parts[-1]] = _parse(value, f"--set {text}")
    return ".".join(parts)


def _explain(
    fault: ErrorDetails, source: str, overridden: Sequence[str], settings: type[Config]
) -> str:
    """Turn one of pydantic's findings into a line that says what to do."""
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    if any(key == o or key.startswith(o + ".") for o in overridden):
        source = f"{source} with --set {key[:200]}"
    shown = key if len(key) <= 200 else key[:197] + "..."
    where = f"{source}: {shown}" if key else source
    kind, got = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        return f"{where}: unknown key; the nearest valid key is {_nearest(path, settings)}"
    if kind == "missing":
        return f"{where}: {_MUST_BE[kind]}"
    if kind == "value_error":
        return f"{where}: {fault['msg'].removeprefix('Value error, ')}"
    must = _MUST_BE.get(kind, fault["msg"].replace("Input should be", "must be"))
    return f"{where}: {must}; got {_shown(got)}{_hint(kind, got, fault)}"


def _shown(value: Any) -> str:
    """Return a value as it stands in YAML, cut to what fits a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _reads_as_number(text: str) -> bool:
    """Whether a text in quotes is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _hint(kind: str, got: Any, fault: ErrorDetails) -> str:
    """Return the likely remedy for a value of the wrong type."""
    if isinstance(got, str) and got.lower() == "none" and kind != "literal_error":
        return ": for no value write null, not None"
    if isinstance(got, str) and kind in ("float_type", "int_type") and _reads_as_number(got):
        return ": a number must stand without quotes"
    if isinstance(got, str) and kind == "bool_type":
        return ": write it without quotes"
    if kind == "literal_error" and isinstance(got, str):
        options = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        close = difflib.get_close_matches(got, options, 1)
        return f": did you mean {close[0]}?" if close else ""
    return ""


def _valid_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a settings class, sections included."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _valid_keys(field.annotation, f"{prefix}{name}.")


def _nearest(path: Sequence[str], settings: type[Config]) -> str:
    """Return the valid key that was probably meant: first in the same section, then anywhere.

    Where none is like it, all of the section are named beside it.
    """
    keys = list(_valid_keys(settings))
    section, leaf = ".".join(path[:-1]), path[-1].lower()
    siblings = [k for k in keys if k.rpartition(".")[0] == section]
    for pool in (siblings, keys):
        by_name: dict[str, str] = {k.rpartition(".")[2]: k for k in reversed(pool)}
        known: Mapping[str, str] = {
            **{a: by_name[b] for a, b in _ALSO_CALLED.items() if b in by_name},
            **by_name,
        }
        close = difflib.get_close_matches(leaf, known, 1, cutoff=0.6)
        if close:
            return known[close[0]]
    nearest = difflib.get_close_matches(".".join(path), keys, 1, cutoff=0.0)[0]
    if not siblings:
        return nearest
    names = ", ".join(key.rpartition(".")[2] for key in siblings)
    return f"{nearest}; {f'keys of {section}' if section else 'sections and keys'}: {names}"

"""What of a model is frozen in an engine, and whether it is still as it was."""

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from bayes_dc.mc.engine_snapshot import Snapshot
from bayes_dc.mc.engine_values import address, brief, called, differ, frozen, is_plain
from bayes_dc.mc.guards import lock_of

_KINDS = {"Parameter": "_parameters", "Buffer": "_buffers", "Module": "_modules"}
_NOTHING = object()
_HIDDEN = {"training", "call_super_init", "dump_patches", "masks", "forward", "_version"}
_HIDDEN |= set(nn.Module().__dict__)

_REPLACED = (
    "{kind} {name!r} is another tensor, or has other memory, than when the engine was planned: "
    "{how}. Write into it instead (parameter.copy_(new), load_state_dict without assign=True), "
    "or make a new MonteCarloEngine."
)
_OTHER_OBJECT = "it was replaced (assigned to, or loaded with load_state_dict(assign=True))"
_OTHER_MEMORY = "it was moved or converted (model.to(…), parameter.data = …)"
_CHANGED = (
    "{what} of {where} was {was} when the engine was planned and is {now} now. Make a new "
    "MonteCarloEngine, or set it back."
)
_STRUCTURE = (
    "The parts of {where} are others than when the engine was planned: {was} then, {now} now. "
    "Make a new MonteCarloEngine."
)
_CALLED = (
    "A call of {where} does something else than when the engine was planned: its class, its "
    "forward or its hooks are others. Make a new MonteCarloEngine."
)


class ModelChanged(RuntimeError):
    """The model is not what the engine was planned for."""


class _Options(NamedTuple):
    """Numbers, words and flags among the attributes of a module."""

    where: str
    module: weakref.ref[nn.Module]
    names: tuple[str, ...]
    read: Callable[[dict[str, Any]], Any]
    values: Any


class _Other(NamedTuple):
    """An attribute that is a container, a function, a tensor, or stands in the class."""

    where: str
    module: weakref.ref[nn.Module]
    name: str
    value: object  # itself where it is plain, else nothing that anything else is
    was: Any
    shown: str


class _Held(NamedTuple):
    """A module, and the names, ids and classes of its parameters, buffers and modules."""

    name: str
    module: weakref.ref[nn.Module]
    was: dict[str, dict[str, tuple[int, str]]]


class Guard:
    """Notices what an engine cannot follow: other tensors, other memory, other parts and options.

    Values of parameters and buffers may change, and so may training and evaluation mode, which an
    engine does not look at. What a forward reads from elsewhere (globals, attributes that are
    objects of other classes) is not followed. Modules are not kept alive.

    Args:
        model: The model.
        constants: Tensors that were planned for, to know which plain attributes are among them.
    """

    def __init__(self, model: nn.Module, constants: Sequence[Tensor | None] = ()) -> None:
        self._planned = {address(t) for t in constants if t is not None} - {0}
        self._options: list[_Options] = []
        self._others: list[_Other] = []
        self._where: list[str] = []
        self._held: list[_Held] = []
        self._modules: list[weakref.ref[nn.Module]] = []
        self._names: list[str] = []
        self._kinds: list[str] = []
        self._tensors: list[Tensor] = []
        for name, module in model.named_modules():
            where = f"module {name!r}" if name else "the model"
            self._note_options(where, module)
            self._note_others(name, where, module)
            self._note_parts(name, module)
            self._where.append(where)
        self._calls = [called(ref()) for ref in self._modules]
        self._addresses = [t.data_ptr() for t in self._tensors]
        self._shapes = [t.shape for t in self._tensors]
        self._strides = [t.stride() for t in self._tensors]
        names = {id(options.module()): options.names for options in self._options}
        modules = list(model.modules())
        self._snapshot = Snapshot(modules, [names.get(id(module), ()) for module in modules])

    def check(self) -> None:
        """See that everything is as it was; about a tenth of a microsecond for each of it.

        Raises:
            ModelChanged: If not, with the names.
        """
        message = self.difference()
        model = self._modules[0]()
        if message is not None and model is not None:
            # Another thread may be tracing the model, with other tensors in the place of weights.
            with lock_of(model):
                message = self.difference()
        if message is not None:
            raise ModelChanged(message)

    def check_memory(self) -> None:
        """See that tensors are where they were: before kernels read them.

        Raises:
            ModelChanged: If not.
        """
        if not self._in_place():
            self.check()

    def check_modules(self) -> None:
        """See that all else is as it was: it may be done while kernels run.

        Raises:
            ModelChanged: If not.
        """
        if not self._snapshot.is_current() or self._other_changed() is not None:
            self.check()

    def difference(self) -> str | None:
        """What has changed.

        Returns:
            The first difference; None if there is none.
        """
        if not self._in_place():
            return self._moved()
        found = None if self._snapshot.is_current() else self._module_changed()
        return found or self._other_changed()

    def _in_place(self) -> bool:
        tensors = self._tensors
        return (
            list(map(Tensor.data_ptr, tensors)) == self._addresses
            and [t.shape for t in tensors] == self._shapes
            and list(map(Tensor.stride, tensors)) == self._strides
        )

    def _module_changed(self) -> str | None:
        """The first difference among parts, calls and options; None if there is none."""
        for held in self._held:
            message = _parts_changed(held)
            if message is not None:
                return message
        calls = [called(module()) for module in self._modules]
        if calls != self._calls:
            pairs = zip(self._where, calls, self._calls, strict=True)
            return _CALLED.format(where=next(where for where, now, was in pairs if now != was))
        for options in self._options:
            module = options.module()
            if module is None:  # its owner was asked before
                continue
            try:
                now = options.read(module.__dict__)
            except KeyError as missing:
                what = f"Attribute {missing.args[0]!r}"
                return _CHANGED.format(what=what, where=options.where, was="'set'", now="'gone'")
            if now is not options.values and differ(now, options.values):
                return _option_changed(options, now)
        return None

    def _other_changed(self) -> str | None:
        """The first difference among the other attributes; None if there is none."""
        for other in self._others:
            now = getattr(other.module(), other.name, "gone")
            if now is not other.value and frozen(now) != other.was:
                what = f"Attribute {other.name!r}"
                return _CHANGED.format(
                    what=what, where=other.where, was=other.shown, now=brief(now)
                )
        return None

    def _note_options(self, where: str, module: nn.Module) -> None:
        attributes = module.__dict__
        names = tuple(
            name
            for name, value in attributes.items()
            if name not in _HIDDEN and not name.startswith("__") and is_plain(value)
        )
        if names:
            read = operator.itemgetter(*names)
            ref, values = weakref.ref(module), read(attributes)
            self._options.append(_Options(where, ref, names, read, values))

    def _note_others(self, of: str, where: str, module: nn.Module) -> None:
        attributes = module.__dict__
        shared = {  # what a forward finds in the class where the module has none of its own
            name: value
            for kind in reversed(type(module).__mro__)
            if kind is not nn.Module
            for name, value in vars(kind).items()
            if name not in attributes and is_plain(value)
        }
        for name, value in (shared | attributes).items():
            own_plain = name in attributes and is_plain(value)
            if name in _HIDDEN or name.startswith("__") or own_plain:
                continue
            if isinstance(value, Tensor):
                if address(value) not in self._planned:
                    continue
                self._note_tensor("Attribute", f"{of}.{name}" if of else name, value)
            was = frozen(value)
            if was is not None:
                itself = value if is_plain(value) else _NOTHING
                ref, shown = weakref.ref(module), brief(value)
                self._others.append(_Other(where, ref, name, itself, was, shown))

    def _note_parts(self, name: str, module: nn.Module) -> None:
        was = {
            kind: {part: (id(v), type(v).__name__) for part, v in module.__dict__[of].items()}
            for kind, of in _KINDS.items()
        }
        self._held.append(_Held(name, weakref.ref(module), was))
        self._modules.append(weakref.ref(module))
        for part, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            kind = "Parameter" if isinstance(tensor, nn.Parameter) else "Buffer"
            self._note_tensor(kind, f"{name}.{part}" if name else part, tensor)

    def _note_tensor(self, kind: str, name: str, tensor: Tensor) -> None:
        self._kinds.append(kind)
        self._names.append(name)
        self._tensors.append(tensor)

    def _moved(self) -> str:
        """The first tensor with other memory."""
        before = zip(self._addresses, self._shapes, self._strides, strict=True)
        now = ((t.data_ptr(), t.shape, t.stride()) for t in self._tensors)
        place = next(n for n, (a, b) in enumerate(zip(now, before, strict=True)) if a != b)
        kind, name = self._kinds[place], self._names[place]
        return _REPLACED.format(kind=kind, name=name, how=_OTHER_MEMORY)


def _parts_changed(held: _Held) -> str | None:
    """A tensor was exchanged, or something came or went; None if not in this module."""
    module = held.module()
    attributes: dict[str, Any] = {} if module is None else module.__dict__
    now = {kind: dict(attributes.get(of, {})) for kind, of in _KINDS.items()}
    for kind in ("Parameter", "Buffer"):
        for part, (was, _) in held.was[kind].items():
            if part in now[kind] and id(now[kind][part]) != was:
                name = f"{held.name}.{part}" if held.name else part
                return _REPLACED.format(kind=kind, name=name, how=_OTHER_OBJECT)
    # In their order, too: some modules call what they hold one after another.
    ids = {kind: [(part, id(v)) for part, v in parts.items()] for kind, parts in now.items()}
    if ids == {kind: [(p, i) for p, (i, _) in parts.items()] for kind, parts in held.was.items()}:
        return None
    where = f"module {held.name!r}" if held.name else "the model"
    then = _described({p: n for parts in held.was.values() for p, (_, n) in parts.items()})
    today = {p: type(v).__name__ for parts in now.values() for p, v in parts.items()}
    return _STRUCTURE.format(where=where, was=then, now=_described(today))


def _option_changed(options: _Options, now: Any) -> str:
    """The first option that differs."""
    was = options.values
    if len(options.names) == 1:
        was, now = (was,), (now,)
    name, before, after = next(
        (n, a, b) for n, a, b in zip(options.names, was, now, strict=True) if differ(a, b)
    )
    return _CHANGED.format(
        what=f"Attribute {name!r}", where=options.where, was=brief(before), now=brief(after)
    )


def _described(kinds: dict[str, str]) -> str:
    """Names and classes of parts."""
    return ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "none"

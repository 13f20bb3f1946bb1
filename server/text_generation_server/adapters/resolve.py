"""Finding the modules of an adapter among those of the checkpoint.

Trainers wrap models, and so put words before the names of modules or leave some out. One such rewriting must fit every
module of the layers, or the adapter is refused: a module that is taken for another one would be silently wrong.
"""

from collections.abc import Iterable, Mapping

from ..errors import AdapterError

_WRAPPERS = frozenset(
    {"_orig_mod", "backbone", "base_model", "language_model", "llm", "model", "module", "text_model", "transformer"}
)
_Rewriting = tuple[str, str]
"""What is taken from the beginning of a name, and what is put there."""
_NONE: _Rewriting = ("", "")
_SHOWN = 5


class KnownNames:
    """Names of the checkpoint, by name and by what follows their first words."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names` maps names to those of the checkpoint."""
        self._names = names
        self._before: dict[str, list[str]] = {}
        for name in names:
            for before, rest in _cuts(name):
                self._before.setdefault(rest, []).append(before)

    def __getitem__(self, name: str) -> str:
        return self._names[name]

    def rewritings(self, module: str) -> set[_Rewriting]:
        """Returns all that make a known name of `module`."""
        found = ((cut, before) for cut, rest in _cuts(module) for before in self._before.get(rest, ()))
        return {_shortest(cut, before) for cut, before in found}


def resolve(modules: Iterable[str], known: KnownNames, path: object) -> dict[str, str]:
    """Returns the name in the checkpoint of each module or tensor. Raises AdapterError that lists what belongs to
    nothing.
    """
    modules = list(dict.fromkeys(modules))
    found = {module: known.rewritings(module) for module in modules}
    if missing := [module for module in modules if not found[module]]:
        raise AdapterError(
            f"{path}: {listed(missing)} belong to no part of this model: the adapter is of another model, or names are "
            "not those of PEFT"
        )
    layers = [found[module] for module in modules if any(part.isdigit() for part in module.split("."))]
    common = set.intersection(*layers) if layers else set[_Rewriting]()
    if layers and not common:
        raise AdapterError(f"{path}: names of its modules begin differently: {listed(modules)} fit no one model")
    rewriting = _chosen(common, path, modules) if layers else _NONE
    resolved: dict[str, str] = {}
    for module in modules:
        own = rewriting if rewriting in found[module] else _chosen(found[module], path, [module])
        resolved[module] = known[own[1] + module.removeprefix(own[0])]
    if len(set(resolved.values())) < len(resolved):
        raise AdapterError(f"{path}: two of its modules are the same module of the model: {listed(modules)}")
    return resolved


def listed(names: list[str]) -> str:
    """Returns the first names, and how many there are."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + rest


def _chosen(rewritings: set[_Rewriting], path: object, modules: list[str]) -> _Rewriting:
    if _NONE in rewritings:
        return _NONE
    if len(rewritings) > 1:
        raise AdapterError(f"{path}: {listed(modules)} could be several parts of this model: name them as it does")
    return next(iter(rewritings))


def _cuts(name: str) -> Iterable[tuple[str, str]]:
    """Yields the beginnings of a name that consist of wrappers' words, with what follows."""
    rest, before = name, ""
    yield before, rest
    while (word := rest.partition(".")[0]) in _WRAPPERS and "." in rest:
        before, rest = f"{before}{word}.", rest.partition(".")[2]
        yield before, rest


def _shortest(cut: str, before: str) -> _Rewriting:
    """Leaves out the words that both end with."""
    first, second = cut.split(".")[:-1], before.split(".")[:-1]
    while first and second and first[-1] == second[-1]:
        first.pop()
        second.pop()
    return "".join(f"{word}." for word in first), "".join(f"{word}." for word in second)

"""JSON to specs, with errors by dotted path."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from modelfactory.errors import FactoryError, InvalidInput, SpecError, closest
from modelfactory.spec.checking import check_class
from modelfactory.spec.writing import IMPORT, TYPE


def from_json(data: Any, place: str = "") -> Any:
    """Rebuild the value that `to_json` wrote.

    Raises:
        SpecError: an unknown class or field (with the closest known name), a missing field, or a value
            that its class refuses; the dotted path says where.
    """
    if isinstance(data, list):
        return tuple(from_json(item, f"{place}[{n}]") for n, item in enumerate(data))
    if not isinstance(data, dict):
        return data
    if IMPORT in data:
        return load_object(data[IMPORT], place)
    if TYPE not in data:
        raise SpecError(
            place=place or "spec",
            found=f"an object with the keys {', '.join(sorted(data)) or 'none'}",
            wanted=f"the key {TYPE!r} that names its class",
            remedy="Write specs with to_json.",
        )
    cls = load_object(data[TYPE], place)
    check_class(cls)
    return _build(cls, {key: value for key, value in data.items() if key != TYPE}, place)


def load_object(name: str, place: str = "") -> Any:
    """Import `module:Name`."""
    module_name, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise SpecError(
            place=place or "spec",
            found=f"{name!r} ({error})",
            wanted="a module that can be imported",
            remedy="Put its folder on the Python path.",
        ) from error
    except FactoryError:
        raise
    except Exception as error:
        raise SpecError(
            place=place or "spec",
            found=f"{name!r}, whose module raises {type(error).__name__}: {error}",
            wanted="a module that can be imported",
            remedy=f"Mend {module_name}.",
        ) from error
    for part in qualname.split("."):
        if not hasattr(found, part):
            remedy = closest(part, [known for known in vars(found) if not known.startswith("_")])
            raise SpecError(
                place=place or "spec", found=f"{name!r}", wanted=f"a name in {module_name}", remedy=remedy
            )
        found = getattr(found, part)
    return found


def _build(cls: type[Any], body: dict[str, Any], place: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in body:
        if name not in fields:
            here = f"{place}.{name}" if place else name
            wanted = f"a field of {cls.__name__}"
            raise SpecError(place=here, found="an unknown field", wanted=wanted, remedy=closest(name, fields))
    for name, field in fields.items():
        has_default = (
            field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        )
        if name not in body and not has_default:
            here = f"{place}.{name}" if place else name
            wanted = f"a value: {cls.__name__} needs it"
            raise SpecError(place=here, found="nothing", wanted=wanted, remedy="")
    values = {name: from_json(value, f"{place}.{name}" if place else name) for name, value in body.items()}
    try:
        return cls(**values)
    except InvalidInput as error:
        raise _placed(error, cls, place) from error


def _placed(error: InvalidInput, cls: type[Any], place: str) -> InvalidInput:
    """Say where in the document: the class name that a declaration error starts with becomes the path."""
    own = error.place.removeprefix(f"{cls.__name__}.")
    here = f"{place}.{own}" if place else own
    return type(error)(place=here, found=error.found, wanted=error.wanted, remedy=error.remedy)

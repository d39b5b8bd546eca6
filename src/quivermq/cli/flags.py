"""Command line flags made of a settings model, so that no setting lacks its flag."""

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo


def with_flags(model: type[BaseModel]) -> Callable[[Callable[..., None]], Any]:
    """Decorate a command whose last parameter is `**flags`: it gets one for each field of `model`.

    A flag that is not given is not passed, so that other sources can tell.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())[:-1]
        generated = [_parameter(*item) for item in model.model_fields.items()]

        def run(**given: Any) -> None:
            named = {parameter.name: given[parameter.name] for parameter in own}
            flags = {
                name: value.value if isinstance(value, Enum) else value
                for name in model.model_fields
                if (value := given[name]) is not None
            }
            command(**named, **flags)

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__annotations__ = {item.name: item.annotation for item in (*own, *generated)}
        # The library reads the parameters of a command from its signature.
        run.__signature__ = inspect.Signature([*own, *generated])  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    option = typer.Option(
        help=f"{field.description}{_default(field)}",
        show_default=False,
        metavar=_metavar(name, field),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_flag_type(name, field) | None, option],
    )


def _default(field: FieldInfo) -> str:
    """Told in words: the flag's own default is "not given"."""
    default = field.get_default(call_default_factory=True)
    if default in ("", {}):
        return ""
    shown = {True: "yes", False: "no"}.get(default) if isinstance(default, bool) else default
    return f" [default: {shown}]"


def _flag_type(name: str, field: FieldInfo) -> Any:
    """What the shell's word becomes. Whatever else a value must be, the model checks."""
    if get_origin(field.annotation) is Literal:
        choices = {str(choice): choice for choice in get_args(field.annotation)}
        return Enum(name.title().replace("_", ""), choices)
    return field.annotation if field.annotation in (int, bool) else str


def _metavar(name: str, field: FieldInfo) -> str | None:
    if field.annotation is bool or get_origin(field.annotation) is Literal:
        return None
    if field.annotation is int:
        unit = next((unit for unit in ("ms", "bytes") if unit in name.split("_")), "n")
        return unit.upper()
    if get_origin(field.annotation) is dict:
        return "ID=HOST:PORT,..."
    return "DIR" if name.endswith("_dir") else "HOST:PORT"

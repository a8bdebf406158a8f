"""The program: its commands, how their help is grouped, how their options are declared, and how it prints."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge
from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from unfit import __version__
from unfit.base.errors import UsageError, clean_lines, explained
from unfit.base.files import Strict
from unfit.base.overview import first_steps, overview
from unfit.base.reading import Metavar

Function = TypeVar("Function", bound=Callable[..., Any])
PURPOSES = {  # the sections of a command's help, in order, and the parameters that each holds
    "Model": "model layer input_shape base update checkpoints rounds arch init biases",
    "Data": "data n members feature_names unseen num_unseen num_samples by classes resize scale mean std center "
    "as_is data_dir",
    "Training": "loss weight_decay lr epochs batch momentum flow_time target_loss max_time",
    "Attack": "method solver score num_candidates budget seeds skip iterations candidates trials sampler ranges "
    "controls baselines first attacks",
    "Policy": "fail_on max_leaked min_budget fpr window accept",
    "Machines": "threads device workers cpus_per_trial gpus_per_trial ray",
    "Output": "out_folder collected out_file force redacted author audience images junit_file sarif_file "
    "page_file eval_file benchmark task examples as_json mlflow",
    "Also": "repeat status listing seed verbose help",
}


class Printer(Console):
    """Names in files may be anything; and Rich would end the process with exit code 1, which here is a leak."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Words are wrapped at spaces on a terminal; elsewhere lines stay whole."""
        cleaned = (clean_lines(each) if isinstance(each, str) else each for each in objects)
        super().print(*cleaned, **{"soft_wrap": not self.is_terminal} | options)

    def on_broken_pipe(self) -> None:
        raise


class Command(TyperCommand):
    """A command whose help is grouped by purpose."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PURPOSES)}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                sections[purpose(parameter)].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def purpose(parameter: Any) -> str:
    """The section of the help that a parameter stands in, by its name unless it says so itself."""
    if parameter.param_type_name == "argument":
        return "Arguments"
    named = (purpose for purpose, names in PURPOSES.items() if parameter.name in names.split())
    return getattr(parameter, "rich_help_panel", None) or next(named, "Also")


class Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return overview()


class App(typer.Typer):
    def command(self, *words: Any, **options: Any) -> Callable[[Function], Function]:
        """A command, which may take groups of options."""
        register = super().command(*words, **{"cls": Command} | options)

        def add(function: Function) -> Function:
            register(grouped(function))
            return function

        return add


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """Let a command take groups of options: dataclasses or settings, each of whose fields is an option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, list[inspect.Parameter]] = {}
    for name, hint in hints.items():
        if is_dataclass(hint):
            inner = get_type_hints(hint, include_extras=True)
            groups[name] = [_parameter(each.name, inner[each.name], each.default) for each in fields(hint)]
        elif isinstance(hint, type) and issubclass(hint, Strict):
            groups[name] = [_option(each, field, hint) for each, field in hint.model_fields.items()]
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        flat += groups.get(name) or [_parameter(name, hints[name], parameter.default)]

    @wraps(command)
    def call(**given: Any) -> int:
        for name, options in groups.items():
            given[name] = _value(hints[name], {each.name: given.pop(each.name) for each in options})
        return command(**given)

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _value(group: Any, given: dict[str, Any]) -> Any:
    """The group with what was given; settings check it and have the defaults of the rest."""
    if not issubclass(group, Strict):
        return group(**given)
    try:
        return group(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise UsageError(explained(error)) from error


def _option(name: str, field: FieldInfo, settings: type[Strict]) -> inspect.Parameter:
    """A field of settings as an option, in the words of its description; lists are repeatable."""
    flags = {each: f"--{each.replace('_', '-')}" for each in settings.model_fields}
    words = re.sub(r"`(\w+)`", lambda found: flags.get(found[1], found[0]), field.description or "")
    metavar = next((each.name for each in field.metadata if isinstance(each, Metavar)), None)
    least = next((each.ge for each in field.metadata if isinstance(each, Ge)), None)
    option = typer.Option(flags[name], help=words, metavar=metavar, min=least)  # type: ignore[arg-type]
    kind, default = _kind(field.annotation), field.default
    kind, default = (list[str], None) if get_origin(kind) is tuple else (kind, default)
    return _parameter(name, Annotated[kind | None if default is None else kind, option], default)


def _kind(hint: Any) -> Any:
    """The type of what stands on a command line: text, where the settings read that themselves."""
    if get_origin(hint) in (Union, UnionType):
        return _kind(next(each for each in get_args(hint) if each is not NoneType))
    if get_origin(hint) is not Annotated:
        return hint
    kind, *metadata = get_args(hint)
    return str if any(isinstance(each, BeforeValidator) for each in metadata) else _kind(kind)


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


app = App(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands: they take it from here
)
out = Printer(highlight=False, markup=False)  # a path may hold [brackets]


@app.callback(invoke_without_command=True)
def unfit(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Reconstruct training samples from the weights of a trained classifier, and audit what it gives away."""
    if version:
        out.print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        out.print(first_steps())
        raise typer.Exit(UsageError.exit_code)

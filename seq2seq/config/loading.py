"""From TOML to a Config and back."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args

import cattrs
import tomli_w

from seq2seq.config.models import MODEL_KINDS, RNNConfig, TransformerConfig
from seq2seq.config.requirements import validate
from seq2seq.config.schema import Config, ConfigError


def load_config(path: str | Path, overrides: dict[str, Any] | None = None) -> Config:
    """Read and check a TOML config; `overrides` maps dotted keys to values.

    Raises:
        ConfigError: missing file, malformed TOML, unknown key, wrong type or impossible value.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError("config", "an existing file", "no such file", path) from None
    except IsADirectoryError:
        raise ConfigError("config", "a TOML file", "a folder", path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", "valid TOML", f"{error}", path) from None
    for key, value in (overrides or {}).items():
        _set_dotted(values, key, value, path)
    return validate(_structure(values, path), path)


def save_config(config: Config, path: str | Path) -> None:
    """Write every value of `config` as TOML; a kill leaves the file as it was or whole."""
    part = Path(path).with_suffix(".part")
    part.write_text(tomli_w.dumps(_converter.unstructure(config)), encoding="utf-8")
    part.replace(path)


def to_dict(config: Config) -> dict[str, Any]:
    """Nested plain values of `config`."""
    return _converter.unstructure(config)


def _structure(values: dict[str, Any], path: Path) -> Config:
    try:
        return _converter.structure(values, Config)
    except cattrs.BaseValidationError as error:
        raise _first_error(error, "", path) from None
    except ConfigError as error:
        error.file = path
        raise


def _first_error(error: Exception, prefix: str, path: Path) -> ConfigError:
    """The first leaf of a cattrs error tree, as a ConfigError with its dotted key."""
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [f.name for f in dataclasses.fields(error.cl)]
        key = sorted(error.extra_fields)[0]
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"{near[0]!r}" if near else "one of " + ", ".join(known)
        return ConfigError(prefix + key, f"a known key ({hint})", f"unknown key {key!r}", path)
    if isinstance(error, cattrs.BaseValidationError):
        inner = error.exceptions[0]
        notes = [n for n in getattr(inner, "__notes__", ()) if hasattr(n, "name") or hasattr(n, "index")]
        name = f"{notes[0].name}." if notes and hasattr(notes[0], "name") else ""
        return _first_error(inner, prefix + name, path)
    if isinstance(error, ConfigError):
        return ConfigError(prefix + error.key if error.key else prefix.rstrip("."), error.expected, error.got, path)
    return ConfigError(prefix.rstrip("."), "a usable value", error, path)


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


def _strict(kind: type, name: str):
    """Structure hook that refuses to convert: "1e-4" is no number, True no integer."""

    def hook(value: Any, _: type) -> Any:
        numeric = kind is float and type(value) is int
        if type(value) is not kind and not numeric:
            raise ConfigError("", name, _shown(value))
        return kind(value)

    return hook


def _structure_literal(value: Any, kind: Any) -> Any:
    options = get_args(kind)
    if not any(type(value) is type(option) and value == option for option in options):
        near = difflib.get_close_matches(str(value), options, n=1)
        raise ConfigError(
            "", f"one of {', '.join(map(repr, options))}" + (f" (perhaps {near[0]!r})" if near else ""), _shown(value)
        )
    return value


def _structure_tuple(value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError("", "a list", _shown(value))
    return tuple(_converter.structure(item, get_args(kind)[0]) for item in value)


def _structure_model(value: Any, _: Any) -> RNNConfig | TransformerConfig:
    if not isinstance(value, dict):
        raise ConfigError("", "a table [model]", _shown(value))
    kind = value.get("kind", "rnn")
    if kind not in MODEL_KINDS:
        raise ConfigError("kind", f"one of {', '.join(map(repr, MODEL_KINDS))}", _shown(kind))
    return _converter.structure(value, MODEL_KINDS[kind])


def _table_hook(cls: type):
    inner = cattrs.gen.make_dict_structure_fn(cls, _converter, _cattrs_forbid_extra_keys=True)

    def hook(value: Any, kind: Any) -> Any:
        if not isinstance(value, dict):
            raise ConfigError("", f"a table of {cls.__name__}", _shown(value))
        return inner(value, kind)

    return hook


def _build_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    for kind, name in ((int, "an integer"), (float, "a number"), (str, "a string"), (bool, "true or false")):
        converter.register_structure_hook(kind, _strict(kind, name))
    converter.register_structure_hook_func(lambda t: getattr(t, "__origin__", None) is Literal, _structure_literal)
    converter.register_structure_hook_func(lambda t: getattr(t, "__origin__", None) is tuple, _structure_tuple)
    converter.register_structure_hook(RNNConfig | TransformerConfig, _structure_model)
    converter.register_structure_hook_factory(dataclasses.is_dataclass, _table_hook)
    return converter


def _set_dotted(values: dict[str, Any], key: str, value: Any, path: Path) -> None:
    *tables, last = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(key, "a known key", f"{table!r} is no table", path)
    values[last] = value


_converter = _build_converter()

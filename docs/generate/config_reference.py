"""The page of every config key: type, default and description, from the pydantic models."""

from __future__ import annotations

from tables import code, escape, header, row

from vlmrl.config.key_help import help_of_field, sections

INTRODUCTION = """# Config

Every key of a config, with its type, default and meaning. Any of them can be set on the command line:
`vlmrl train mine.yaml rollout.group_size=16`. An unknown key is an error that names the nearest valid
one. A file may begin with `extends: NAME`, the path or shipped name of the config to start from, or a list
of them: later ones are laid over earlier ones.
`vlmrl config show CONFIG` prints all values as they will run; `vlmrl config schema` prints this page as
a [JSON schema](config.schema.json) for editors. [Schedules and stages](../train/schedules.md) change
values during a run.
"""


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    for path, section in dict(sections()).items():
        lines += [f"## `{path}`" if path else "## Top level", ""]
        lines += [escape(" ".join((section.__doc__ or "").split())), ""] if path else []
        lines += header("key", "type", "default", "description")
        for name in section.model_fields:
            key = help_of_field(f"{path}.{name}".lstrip("."), section, name)
            default = key.default if key.default == "required" else code(key.default)
            lines.append(row(code(key.path), code(key.type), default, escape(key.description)))
        lines.append("")
    return "\n".join(lines)

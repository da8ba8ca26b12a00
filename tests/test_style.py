"""The style script sees what it is there to see: each rule is broken once, and a sound file breaks none."""

from __future__ import annotations

from pathlib import Path

import pytest
import style

CACHED = (style.imports, style.vocabulary, style.members)
LONG = "def f() -> None:\n" + "    print()\n" * 60
BROKEN = [
    (style.lengths, "vlmrl/x.py", LONG, "f has 61 lines"),
    (style.docstrings, "vlmrl/x.py", "X = 1", "no docstring"),
    (style.exports, "vlmrl/x.py", "__all__ = []", "__all__"),
    (style.vague_names, "vlmrl/x.py", "for found in []: pass", "`found`"),
    (style.private_names, "vlmrl/x.py", "from vlmrl.plugins import _files", "imports _files"),
    (style.private_names, "vlmrl/x.py", "from . import plugins", "relative"),
    (style.circles, "vlmrl/x.py", "import vlmrl.x", "a circle"),
    (style.lost_parts, "rewards/box_oiu.py", "class BoxIou: ...", "no class BoxOiu"),
    (style.retired_words, "vlmrl/x.py", "def f(picture): ...", "say image"),
    (style.retired_words, "vlmrl/x.py", "video_clip = 1", "never a clip"),
    (style.quoted_names, "vlmrl/x.py", '"""Like `no_such_name`."""', "nowhere in the code"),
    (style.quoted_names, "vlmrl/x.py", '"""See `no_such_file.py`."""', "no such file"),
    (style.quoted_names, "vlmrl/x.py", '"""Run `vlmrl teach`."""', "no command"),
    (style.metric_names, "vlmrl/training/x.py", 'X = "loss/no_such"', "loss/no_such is not in"),
    (style.the_step, "vlmrl/x.py", "", "one Trainer.step, got 0"),
]


def test_a_broken_rule_is_seen(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    for rule, path, text, message in BROKEN:
        with subtests.test(f"{rule.__name__}: {text[:30]}"):
            modules = (style.parse(Path(path), text),)
            monkeypatch.setattr(style, "modules", lambda modules=modules: modules)
            for cached in CACHED:
                cached.cache_clear()
            assert any(message in finding.text for finding in rule())
    for cached in CACHED:
        cached.cache_clear()


def test_classes_of_one_name_and_a_part_imported_by_name_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = style.parse(Path("rewards/box_iou.py"), "class BoxIou: ...\nclass Card: ...")
    user = "from vlmrl.rewards.box_iou import BoxIou\nclass Card: ...\nclass BoxIou: ..."
    monkeypatch.setattr(style, "modules", lambda: (part, style.parse(Path("vlmrl/x.py"), user)))
    style.imports.cache_clear()
    assert [finding.text for finding in style.class_names()] == [
        "class Card is also in rewards/box_iou.py"
    ]
    assert "use plugins.load" in "".join(f.text for f in style.parts_by_name())
    style.imports.cache_clear()


def test_keys_and_commands_of_a_page_are_checked() -> None:
    page = "Set `rollout.group_size: 4` or `rollout.grup`; see `rollout.md`.\n"
    page += "```sh\nvlmrl train a rollout.n=3 algorithm.options.kl=0.1\n```\n"
    assert style.named_keys(page) == ["rollout.group_size", "rollout.grup"]
    assert style.overrides(page) == ["rollout.n", "algorithm.options.kl"]
    assert style.shown_commands(page) == {"train"}
    known = [style.is_key(key.split(".")) for key in style.named_keys(page)]
    assert known == [True, False]
    assert style.is_key(["algorithm", "options", "kl"])
    assert not style.is_key(["algorithm", "options", "no_such"])
    assert list(style.wrong_in_config("rollout: {grup: 4}")) == [
        "rollout.grup is no key of the config"
    ]

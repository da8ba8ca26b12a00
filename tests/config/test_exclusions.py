"""What excludes what: each exclusion is refused somewhere, and the table of the documentation is theirs."""

from __future__ import annotations

import inspect
import re

import pytest

from vlmrl import plugins
from vlmrl.config import exclusions, load
from vlmrl.errors import UserError

TOOLS = "data.train.0.tools=[crop]"


def test_every_exclusion_is_of_a_problem_and_every_problem_of_one() -> None:
    source = inspect.getsource(exclusions)
    names = [n for n, one in vars(exclusions).items() if isinstance(one, exclusions.Exclusion)]
    yielded = re.findall(r"(?:yield \(?|\()\s*([A-Z][A-Z_]{2,}),", source)
    assert set(yielded) == set(names) and len(names) == len(exclusions.exclusions())
    assert len(re.findall(r"^ +yield\b", source, re.MULTILINE)) == len(yielded)
    for one in exclusions.exclusions():
        assert all(one) and not one.why.endswith(".")


def test_the_table_names_the_parts_that_state_it() -> None:
    able = [n for n in plugins.names("strategy") if plugins.load("strategy", n).of_turns]
    assert exclusions.TOOLS_STRATEGIES.excludes.startswith(f"`strategies` but `{able[0]}`")
    assert len(able) == 1


@pytest.mark.parametrize(
    ("more", "exclusion"),
    [
        ("stages=[{until: 0.5}, {}]", exclusions.TOOLS_STAGES),
        ("strategies=[rehearsal]", exclusions.TOOLS_STRATEGIES),
        ("evaluation.force_thinking=true", exclusions.TOOLS_FORCING),
        ("algorithm=papo", exclusions.TOOLS_MASKED),
    ],
)
def test_what_tools_exclude_is_refused_with_the_reason(
    more: str, exclusion: exclusions.Exclusion
) -> None:
    config = load("quickstart", [TOOLS, more])
    with pytest.raises(UserError) as error:
        exclusions.refuse_parts(config)
    line = str(error.value)
    assert "a source has tools or an environment, which excludes" in line
    assert line.endswith(exclusion.why)

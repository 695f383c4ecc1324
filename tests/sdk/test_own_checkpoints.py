"""Where a script keeps checkpoints of its own: said in a template or on the command line, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from allpass.cli.template_options import template_of
from allpass.wire.template import Template


def test_a_text_says_where_they_are() -> None:
    """As an option, in a template of one's own, and beside rules of what stays."""
    assert Template.model_validate({"checkpoints": "./out/checkpoint-*"}).checkpoints.folders == "out/checkpoint-*"
    assert template_of(None, checkpoints="ckpt-*.pt").checkpoints.folders == "ckpt-*.pt"


def test_an_option_stands_beside_what_the_file_says(tmp_path: Path) -> None:
    """And before what it says of the same thing."""
    file = tmp_path / "template.json"
    file.write_text('{"checkpoints": {"keep_last": 3}}')
    told = template_of(file, checkpoints="out/step_*").checkpoints
    assert (told.keep_last, told.folders) == (3, "out/step_*")
    file.write_text('{"checkpoints": "a/*"}')
    assert template_of(file).checkpoints.folders == "a/*"
    assert template_of(file, checkpoints="out/step_*").checkpoints.folders == "out/step_*"


@pytest.mark.parametrize(
    "text",
    [
        "out/checkpoint-100",
        "out/*/checkpoint-*",
        "*/out",
        "/out/checkpoint-*",
        "../c-*",
        "out/v2*",
        "out/*5",
        "",
        "out/[0-9]*",
    ],
)
def test_what_names_no_number_is_refused(text: str) -> None:
    """With what would do."""
    with pytest.raises(ValidationError) as refused:
        Template.model_validate({"checkpoints": text})
    assert "checkpoints" in str(refused.value)

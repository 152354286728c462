"""The snippets of the page on PyTorch run, one after another."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'laconic[torch]'"
)

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def test_the_snippets_run():
    found = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    names: dict = {}
    ran = [text for text in found if "DiLoCo(" not in text]  # run as examples/torch_diloco.py
    before = None
    for text in ran:
        exec(compile(text, "snippet", "exec"), names)
        weight = names["model"][0].weight.detach()
        assert torch.isfinite(weight).all()
        before, changed = weight.clone(), before is None or not torch.equal(weight, before)
        assert changed or "step(" not in text
    assert (len(found), len(ran)) == (4, 3)
    assert names["outer"].param_groups[0]["layout"] == "as-is"

"""The text format, from pages as servers write them and from what is none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forno.bench.exposition import Sample, samples

PAGE = """# HELP forno:a_total What it is.
forno:a_total{kind="a \\"b\\", c",le="+Inf"} 1.5e+09 1764460000
vllm:a_total 3
a_total_more 4
b{} +Inf	
forno:a_total{kind="x"} word
forno:a_total
"""


def test_samples_in_order_and_what_is_none_left_out() -> None:
    assert list(samples(PAGE)) == [
        Sample("forno:a_total", {"kind": 'a \\"b\\", c', "le": "+Inf"}, 1.5e9),
        Sample("vllm:a_total", {}, 3.0),
        Sample("a_total_more", {}, 4.0),
        Sample("b", {}, float("inf")),
    ]


def test_names_are_whole_ones_under_any_prefix_or_theirs() -> None:
    assert [s.name for s in samples(PAGE, ["a_total"])] == ["forno:a_total", "vllm:a_total"]
    assert [s.value for s in samples(PAGE, ["vllm:a_total", "b"])] == [3.0, float("inf")]
    assert {s.metric for s in samples(PAGE, ["a_total"])} == {"a_total"}


@given(st.text(max_size=200))
def test_any_page_can_be_read(page: str) -> None:
    assert list(samples(f"{page}\nlast_of_all 7\n", ["last_of_all"]))[-1].value == 7.0

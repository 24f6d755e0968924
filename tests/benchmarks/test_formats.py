"""The report over formats."""

from __future__ import annotations

from benchmarks import formats


def test_the_report_has_a_line_per_format_with_shares() -> None:
    one = {"tok_s": {"prefill-512": 600.0, "decode-1": 50.0}, "ceiling": {"prefill-512": 1000.0, "decode-1": 100.0}}
    lines = formats.report({"Q4_0": one, "BF16": one}).splitlines()
    assert lines[0].split()[-2:] == ["prefill-512", "decode-1"]
    assert [line.split() for line in lines[1:]] == [[name, "600", "(60%)", "50", "(50%)"] for name in ("Q4_0", "BF16")]

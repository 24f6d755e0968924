"""Result files as one HTML page that needs nothing else. It reads ``records`` only; matplotlib is imported where it draws."""

from __future__ import annotations

from forno.bench.report.page import write_html

__all__ = ["write_html"]

"""The report of an audit as one HTML page, which needs nothing else: for a browser, a phone and paper."""

from __future__ import annotations

from gapless.audit.page.document import html

__all__ = ["html"]

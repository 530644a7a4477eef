"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("octavo", deadline=None)  # a machine under load is no defect; pytest-timeout bounds each test
settings.load_profile("octavo")

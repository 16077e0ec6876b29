"""Logging: what a line looks like, what is left out, and that it never fails its caller."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
import structlog

from volfs.telemetry import get_logger, set_up_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave logging as it was found."""
    handlers, level, raising = logging.root.handlers[:], logging.root.level, logging.raiseExceptions
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    logging.raiseExceptions = raising
    structlog.reset_defaults()


def test_a_name_with_a_line_feed_stays_on_its_line() -> None:
    """Values are quoted: a file name cannot forge a line of the log."""
    stream = io.StringIO()
    set_up_logging("info", stream)
    get_logger("test.forged").info("opened", name="a\n2020-01-01 [error] forged", path=b"\xff")

    assert stream.getvalue().count("\n") == 1
    assert r"name='a\n2020-01-01 [error] forged'" in stream.getvalue()
    assert r"path=b'\xff'" in stream.getvalue()


def test_levels() -> None:
    """Lines below the level are left out, of the standard library's loggers too."""
    stream = io.StringIO()
    set_up_logging("warning", stream)
    log = get_logger("test.levels")
    log.info("no")
    log.warning("yes")
    logging.getLogger("other").info("no")
    logging.getLogger("other").warning("also %s", "this")

    lines = stream.getvalue().splitlines()
    assert [("yes" in line, "also this" in line) for line in lines] == [(True, False), (False, True)]


def test_a_traceback_shows_no_values() -> None:
    """A traceback names the lines, not the variables: those hold users' data."""
    stream = io.StringIO()
    set_up_logging("info", stream)
    try:
        secret = "hunter2".upper()
        raise ValueError(len(secret))
    except ValueError:
        get_logger("test.traceback").exception("failed")

    assert "Traceback" in stream.getvalue()
    assert "HUNTER2" not in stream.getvalue()


def test_a_full_disk_costs_the_line_only() -> None:
    """ENOSPC under the log reaches no caller."""
    with open("/dev/full", "wb", buffering=0) as full:
        set_up_logging("info", io.TextIOWrapper(full, write_through=True))
        get_logger("test.full").warning("a line", filler="x" * 100_000)
        logging.getLogger("other").warning("another")

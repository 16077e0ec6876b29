"""Notifications: sent in order from a thread of their own, never twice for one wait, none after close."""

from __future__ import annotations

import threading

from volfs.kernel.notify import KernelNotifier


class Recorder:
    """A sender that can be held up."""

    def __init__(self) -> None:
        self.sent: list[tuple[object, ...]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def _record(self, *call: object) -> None:
        self.entered.set()
        self.gate.wait(10)
        self.sent.append((threading.current_thread().name, *call))

    def content(self, number: int) -> None:
        """Pages of an inode."""
        self._record("content", number)

    def attributes(self, number: int) -> None:
        """Attributes of an inode."""
        self._record("attributes", number)
        if number == 99:
            raise OSError(5, "broken")

    def entry(self, parent: int, name: bytes, deleted: int) -> None:
        """One name."""
        self._record("entry", parent, name, deleted)


def test_all_kinds_are_sent_by_the_thread() -> None:
    """In the order in which they were asked for, and an error costs only itself."""
    sender = Recorder()
    notifier = KernelNotifier()
    notifier.start(sender)
    notifier.attributes(99)
    notifier.content(1)
    notifier.entry(2, b"n", 3)
    assert notifier.wait_idle(10)
    assert notifier.close(10)
    assert sender.sent == [
        ("volfs-notify", "attributes", 99),
        ("volfs-notify", "content", 1),
        ("volfs-notify", "entry", 2, b"n", 3),
    ]


def test_what_waits_is_not_queued_twice() -> None:
    """A thousand writes to one file while the kernel blocks are one notification."""
    sender = Recorder()
    sender.gate.clear()
    notifier = KernelNotifier()
    notifier.start(sender)
    notifier.content(1)
    assert sender.entered.wait(10)
    for _ in range(1000):
        notifier.content(2)
    sender.gate.set()
    assert notifier.wait_idle(10)
    notifier.close(10)
    assert [call[1:] for call in sender.sent] == [("content", 1), ("content", 2)]


def test_nothing_is_sent_after_close() -> None:
    """Also what was waiting: an unmount must not be held up."""
    sender = Recorder()
    sender.gate.clear()
    notifier = KernelNotifier()
    notifier.start(sender)
    notifier.content(1)
    assert sender.entered.wait(10)
    notifier.content(2)
    assert not notifier.close(0.01)
    notifier.content(3)
    sender.gate.set()
    assert notifier.close(10)
    assert [call[1:] for call in sender.sent] == [("content", 1)]

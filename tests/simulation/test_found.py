"""Lists that once failed, shrunk, each under several schedules."""

from __future__ import annotations

import errno

from tests.simulation.replay import replay

test_lost_reply_of_the_last_step = replay(
    """The store renamed the file into place and its answer was lost: the next fsync finds that out.""",
    "close",
    ("put", (0, 0, ("a",), "append")),
    ("fail", (0, "upload.show", errno.EIO, 1, 1, "lose")),
    ("fsync", (0, 0)),
    ("fsync", (0, 0)),
    ("put", (0, 0, ("a",), "append")),
)
test_lost_reply_of_a_copy_is_no_conflict = replay(
    """As above, where a copy was renamed: the retry must not take its own file for somebody else's.""",
    "close-cached",
    ("put", (0, 0, ("a",), "append")),
    ("fail", (0, "upload.show", errno.EIO, 1, 1, "lose")),
    ("fsync", (0, 0)),
)
test_exclusive_creation_on_two_hosts = replay(
    """Both won on their mounts, in background mode: neither may take the other's bytes away.""",
    "background",
    ("put", (1, 0, ("b",), "create")),
    ("put", (0, 0, ("b",), "create")),
    ("close", (1, 0)),
    ("settle", ()),
    ("close", (0, 0)),
)
test_truncating_open_behind_a_conflict = replay(
    """An open with O_TRUNC waits for a commit that ends as a conflict: it empties the name, not the copy.""",
    "background-cached",
    ("put", (0, 1, ("a",), "append")),
    (
        "together",
        (("close", (0, 1)), ("open", (0, 0, ("a",), "replace")), ("outside", ("replace", ("a",)))),
    ),
    ("wait", (6.0,)),
)
test_renamed_while_it_waits = replay(
    """A crash after the rename of a file that was acknowledged and not committed: it has its new name.""",
    "background",
    ("fail", (0, "upload", errno.EIO, 1, 50, "fail")),
    ("save", (0, ("d", "a"), "append")),
    ("rename", (0, ("d", "a"), ("b",))),
    ("crash", (0, 0, 3)),
)
test_directory_renamed_while_a_file_waits = replay(
    """As above, for the directory that it is in.""",
    "background",
    ("fail", (0, "upload", errno.EIO, 1, 50, "fail")),
    ("save", (0, ("d", "a"), "append")),
    ("rename", (0, ("d",), ("e",))),
    ("crash", (0, 0, 3)),
)
test_removed_while_it_waits = replay(
    """A crash after the unlink of a file that is open, acknowledged and not committed: it stays away.""",
    "background",
    ("fail", (0, "upload", errno.EIO, 1, 50, "fail")),
    ("save", (0, ("b",), "create")),
    ("open", (0, 0, ("b",), "append")),
    ("unlink", (0, ("b",))),
    ("restart", (1,)),
    ("crash", (0, 0, None)),
)

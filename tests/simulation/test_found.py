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
test_later_writers_go_on_with_the_base_of_the_first = replay(
    """Others change the file after the first program opened it: what a later one writes is a conflict too."""
    """ One may truncate what the first wrote.""",
    "background",
    ("put", (0, 0, ("a",), "append")),
    ("outside", ("append", ("a",))),
    ("save", (0, ("a",), "edit")),
    ("together", (("save", (0, ("a",), "append")), ("commit", (0,)))),
)
test_a_close_beside_an_open_writer_is_not_acknowledged = replay(
    """The last writer's close commits (W3a): a crash before it may cost what was written to a new file.""",
    "close",
    ("open", (0, 0, ("d", "a"), "append")),
    ("fsync", (0, 0)),
    ("save", (0, ("d", "a"), "append")),
    ("crash", (0, 0, None)),
)
test_rename_that_others_look_at = replay(
    """Whoever looks between the store's rename and ours may have lost the old name, or found the new one."""
    """ It is renamed all the same.""",
    "close-cached",
    ("save", (0, ("d", "a"), "append")),
    (
        "together",
        (
            *(("read", (0, ("a",))), ("refresh", (0,)), ("rename", (0, ("d", "a"), ("a",)))),
            *(("read", (0, ("d", "a"))), ("refresh", (0,))),
        ),
    ),
)
test_lost_reply_and_then_replaced_by_others = replay(
    """W7: the file was shown, the answer lost, and others have replaced it: it was committed, there is no"""
    """ conflict.""",
    "close",
    ("fail", (0, "upload.show", errno.EIO, 1, 1, "lose")),
    ("save", (0, ("a",), "append")),
    ("truncate", (1, ("a",))),
)
test_lost_reply_of_a_conflict_copy = replay(
    """W7: the retry finds the copy that was made, and makes no second one.""",
    "close-cached",
    ("open", (0, 0, ("b",), "create")),
    ("fail", (0, "upload.show", errno.EIO, 1, 1, "lose")),
    ("outside", ("append", ("b",))),
)
test_directory_took_the_name = replay(
    """W7: others made a directory of the name: the bytes are kept beside it.""",
    "background-cached",
    ("outside", ("delete", ("a",))),
    ("open", (1, 0, ("a",), "append")),
    ("rename", (0, ("d",), ("a",))),
)
test_listing_beside_a_commit = replay(
    """A file that is committed while its attributes are asked for does not vanish from the listing.""",
    "background-cached",
    ("save", (0, ("d", "a"), "append")),
    ("list", (0, ("d",))),
    ("save", (0, ("a",), "append")),
    ("list", (0, ("d",))),
)
test_more_was_appended_after_a_lost_answer = replay(
    """W7b: a commit without an answer, then more is appended, then a crash: no conflict with ourselves.""",
    "background-cached",
    ("save", (0, ("a",), "append")),
    ("fail", (0, "upload.show", errno.EIO, 1, 1, "lose")),
    ("save", (0, ("a",), "append")),
    ("crash", (0, 0, None)),
)

"""What the metadata of a checkpoint promises, compared with what is there.

It reads no data: names and sizes only. A checkpoint whose metadata names an item that nobody stored
fails at its load with a KeyError, perhaps months later; here it fails at the save.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from volfs_client.checkpoint.files import current_size
from volfs_client.mount import is_volfs

__all__ = ["differences", "file_ends", "unstored"]

#: Each look is a round trip to the store, and a large job has thousands of files.
_LOOKS: Final = 16

#: So many are named in a message.
_SHOWN: Final = 5


def file_ends(storage_data: Mapping[Any, Any]) -> dict[str, int]:
    """How many bytes each file must have at least, by its name relative to the checkpoint."""
    ends: dict[str, int] = {}
    for info in storage_data.values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    return ends


def unstored(metadata: Metadata) -> list[str]:
    """Names of items, with the offset of the chunk, that the metadata lists and nobody stored."""
    stored = metadata.storage_data or {}
    lost = []
    for name, item in metadata.state_dict_metadata.items():
        if isinstance(item, TensorStorageMetadata):
            lost += [
                f"{name} at {list(chunk.offsets)}"
                for chunk in item.chunks
                if MetadataIndex(name, chunk.offsets) not in stored
            ]
        elif MetadataIndex(name) not in stored:
            lost.append(name)
    return lost


def differences(directory: Path, ends: Mapping[str, int], *, exactly: bool = False) -> str:
    """What is wrong with the files: `NAME is missing, NAME has 3 of 7 bytes`; empty if nothing is.

    Sizes are those of the store now. `exactly`: a file that is too long is wrong, too. Raises
    OSError where a file cannot be looked at for another reason than that it is not there.
    """
    on_volfs = is_volfs(directory)

    def look(name: str) -> str:
        try:
            size = current_size(directory / name, on_volfs=on_volfs)
        except FileNotFoundError:
            return f"{name} is missing"
        if size < ends[name] or (exactly and size != ends[name]):
            return f"{name} has {size} bytes, not {ends[name]}"
        return ""

    names = sorted(ends)
    if not names:
        return ""
    with ThreadPoolExecutor(min(_LOOKS, len(names)), "volfs-look") as pool:
        wrong = [said for said in pool.map(look, names) if said]
    more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return ", ".join(wrong[:_SHOWN]) + more

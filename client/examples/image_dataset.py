"""Images from a volume, decoded by a data set that wraps the files.

    python image_dataset.py /Volumes/main/data/images --batch-size 32

Works on any directory. With Pillow installed, images become uint8 tensors of one size, without it all files
are taken as bytes. The label is the name of the directory that the file is in.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset
from volfs_client import DataLoader, LocalPath, VolumeDataset

try:
    from PIL import Image, UnidentifiedImageError
except ImportError:
    Image = None


class Images(IterableDataset):
    """Makes one item of each file: its tensor and its label."""

    def __init__(self, files: VolumeDataset, size: int) -> None:
        self.files = files
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, str]]:
        for path in self.files:
            # The path to read may be that of a cache file: names are taken from its source.
            yield self.decode(path), os.path.basename(os.path.dirname(path.source))

    def decode(self, path: LocalPath) -> torch.Tensor:
        """Height x width x 3, or the first bytes of what is no image."""
        with open(path, "rb") as file:
            if Image is not None:
                try:
                    image = Image.open(file).convert("RGB").resize((self.size, self.size))
                    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(
                        self.size, self.size, 3
                    )
                except UnidentifiedImageError:
                    file.seek(0)
            # All of one shape, so that they make a batch.
            content = bytearray(file.read(self.size * self.size * 3).ljust(self.size * self.size * 3, b"\0"))
        return torch.frombuffer(content, dtype=torch.uint8).view(self.size, self.size, 3)


def main() -> None:
    """Read the directory for some epochs, and say how fast."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--pattern", help='such as "**/*.jpg"; by default all files')
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workers", type=int, help="by default as many as suits this machine")
    arguments = parser.parse_args()

    files = VolumeDataset(arguments.directory, pattern=arguments.pattern, shuffle=True, seed=1)
    loader = DataLoader(Images(files, arguments.size), arguments.batch_size, num_workers=arguments.workers)
    for epoch in range(arguments.epochs):
        began_s = time.monotonic()
        count = 0
        for images, labels in loader:
            assert len(images) == len(labels)
            count += len(images)
        print(f"epoch {epoch}: {count} samples, {count / (time.monotonic() - began_s):.0f}/s")


if __name__ == "__main__":
    main()

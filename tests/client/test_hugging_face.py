"""Hugging Face `datasets` on a mount: what it writes there, and its cache. Needs the extra `heavy`."""

from __future__ import annotations

import pytest

from tests.conftest import Area

pytestmark = [pytest.mark.long, pytest.mark.modes("cached"), pytest.mark.timeout(180)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_hugging_face_on_a_mount(area: Area) -> None:
    """C27: A cache that one mount made is used on another, which also reads what `save_to_disk` wrote."""
    import datasets
    import pyarrow
    from pyarrow import parquet

    rows = {"id": list(range(5000)), "text": [str(number) * 10 for number in range(5000)]}
    parquet.write_table(pyarrow.table(rows), area.here / "rows.parquet")
    files = str(area.here / "rows.parquet")
    for mount in (area.here, area.there):
        loaded = datasets.load_dataset(
            "parquet", data_files=files, split="train", cache_dir=str(mount / "cache")
        )
        assert loaded["text"][:] == rows["text"]
    (cached,) = (area.back / "cache").rglob("*.arrow")
    assert cached.stat().st_size > len("".join(rows["text"]))

    loaded.save_to_disk(str(area.here / "saved"), num_shards=3)
    assert len(list((area.back / "saved").glob("*.arrow"))) == 3
    assert datasets.load_from_disk(str(area.there / "saved"))["id"][:] == rows["id"]

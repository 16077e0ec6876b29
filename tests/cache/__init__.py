"""The block cache, on a real directory, over a store that the tests hold in their hands."""

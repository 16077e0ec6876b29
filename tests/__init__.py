"""The tests of volfs, a mirror of the package plus `mount`, `property`, `client` and `bench`."""

"""The benchmark suite, `make bench`: volfs and its peers at the same work over the same slow store.

`python -m tests.bench` runs `scenarios` on `systems` round by round and prints a table with verdicts. What it
measures is a ratio within one run: machines and their moods differ.
"""

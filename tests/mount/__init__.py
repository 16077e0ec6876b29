"""Tests on real mounts. One file a theme; what each file proves stands in its first line."""

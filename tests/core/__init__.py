"""The pure decisions, by tables and properties."""

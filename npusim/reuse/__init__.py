"""Answers used again: in memory, in stores on disk, and calls timed on other devices."""

"""What was worked out before and is used again: caches, stores on disk, calls on other devices."""

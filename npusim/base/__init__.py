"""Foundations of every room: errors, integers, quantities, files, processes; no device, no call."""
